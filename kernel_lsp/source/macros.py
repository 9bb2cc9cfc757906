"""Expand C macros like a preprocessor, and preprocess a text as far as it determines itself: its own macros and
conditions.

A macro's name in its own expansion is not expanded (C17 6.10.3.4): each token carries the macros that it came from,
after Prosser's algorithm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kernel_lsp.core.expression import ExpressionError, evaluate, parse

MAX_TOKENS = 200_000
"""Maximum tokens read for one text, since nested macros can grow without bounds. A text of a thousand lines has
15,000."""
MAX_DEPTH = 40
"""Maximum nesting of invocations in arguments."""
VARIADIC = "__VA_ARGS__"

_TOKEN = re.compile(
    r"""\s+|[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|'\w|[\w.])*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#\#|.""",
    re.VERBOSE | re.DOTALL,
)
_DEFINITION = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)(?:\((?P<parameters>[^()]*)\))?(?P<body>.*)", re.DOTALL)


class MacroError(Exception):
    """The expansion exceeds its limits."""


@dataclass(frozen=True)
class Macro:
    """A `#define`. `parameters` is None for an object-like macro."""

    name: str
    parameters: tuple[str, ...] | None
    body: tuple[str, ...]

    @property
    def is_variadic(self) -> bool:
        return self.parameters is not None and self.parameters[-1:] == (VARIADIC,)


def read_macro(definition: str) -> Macro | None:
    """Parse the text after `#define`; None if malformed."""
    match = _DEFINITION.fullmatch(definition)
    if match is None:
        return None
    parameters = None
    if match["parameters"] is not None:
        names = [name.strip().replace("...", VARIADIC) for name in match["parameters"].split(",")]
        parameters = tuple(name for name in names if name)
    return Macro(match["name"], parameters, tuple(_TOKEN.findall(match["body"].strip())))


def expanded(text: str, macros: Mapping[str, Macro]) -> str:
    """Expand all macros in `text`, on as many lines. Raises MacroError."""
    return Expansion(macros).expanded(text)


class Expansion:
    """Expand the parts of one text, which share the limit `MAX_TOKENS`. `macros` may change in between."""

    def __init__(self, macros: Mapping[str, Macro]) -> None:
        self._macros, self._n_left = macros, MAX_TOKENS

    def expanded(self, text: str) -> str:
        """Expand all macros in a part, on as many lines. Raises MacroError."""
        return "".join(token.text for token in self._run([_Token(word, _NOTHING) for word in _TOKEN.findall(text)], 0))

    # --- below

    def _run(self, tokens: Sequence[_Token], depth: int) -> list[_Token]:
        if depth > MAX_DEPTH:
            raise MacroError
        done: list[_Token] = []
        ahead = list(reversed(tokens))
        while ahead:
            self._spend(1)
            token = ahead.pop()
            macro = self._macros.get(token.text)
            if macro is None or token.text in token.hidden:
                done.append(token)
            elif macro.parameters is None:
                ahead += reversed(self._substituted(macro, [], token, depth))
            elif (invocation := self._invocation(ahead)) is None:
                done.append(token)
            else:
                ahead.append(_Token("\n" * invocation.n_lines, _NOTHING))
                ahead += reversed(self._substituted(macro, invocation.arguments, token, depth))
        return done

    def _spend(self, n_tokens: int) -> None:
        self._n_left -= n_tokens
        if self._n_left < 0:
            raise MacroError

    def _invocation(self, ahead: list[_Token]) -> _Invocation | None:
        """Consume the parenthesized arguments that follow; None, consuming nothing, without any."""
        position = len(ahead) - 1
        while position >= 0 and ahead[position].is_blank:
            position -= 1
        if position < 0 or ahead[position].text != "(":
            return None
        arguments: list[list[_Token]] = [[]]
        depth = 0
        for index in range(position, -1, -1):
            token = ahead[index]
            depth += (token.text == "(") - (token.text == ")")
            if depth == 0:
                n_lines = sum(token.text.count("\n") for token in ahead[index:])
                self._spend(len(ahead) - index)
                del ahead[index:]
                return _Invocation([_stripped(argument) for argument in arguments], n_lines)
            if token.text == "," and depth == 1:
                arguments.append([])
            elif index != position:
                arguments[-1].append(token._replace(text=" ") if token.is_blank else token)
        self._spend(len(ahead))
        return None

    def _substituted(self, macro: Macro, arguments: Sequence[list[_Token]], name: _Token, depth: int) -> list[_Token]:
        """Return the body with arguments substituted for parameters."""
        given = _by_parameter(macro, arguments)
        hidden = name.hidden | {macro.name}
        found: list[_Token] = []
        body, position = macro.body, 0
        while position < len(body):
            word = body[position]
            after = _next_word(body, position)
            if word == "##":
                position = after
                right = given.get(body[position], [_Token(body[position], _NOTHING)]) if position < len(body) else []
                _paste(found, right)
            elif word == "#" and after < len(body) and body[after] in given:
                position = after
                found.append(_Token(_quoted(given[body[position]]), _NOTHING))
            elif word in given:
                is_pasted = after < len(body) and body[after] == "##"
                found += (given[word] or [_Token("", _NOTHING)]) if is_pasted else self._run(given[word], depth + 1)
            else:
                found.append(_Token(word, _NOTHING))
            position += 1
        self._spend(len(found))
        return [_Token(token.text, token.hidden | hidden) for token in found]


_NOTHING: frozenset[str] = frozenset()


class _Token(NamedTuple):
    """A token, and the macros that must not be expanded in it."""

    text: str
    hidden: frozenset[str]

    @property
    def is_blank(self) -> bool:
        return self.text.isspace()


class _Invocation(NamedTuple):
    """Arguments of an invocation, and the number of lines that it spans."""

    arguments: list[list[_Token]]
    n_lines: int


def _by_parameter(macro: Macro, arguments: Sequence[list[_Token]]) -> dict[str, list[_Token]]:
    """Return arguments by name, those of `...` as one. Missing ones are empty."""
    names = macro.parameters or ()
    given = list(arguments)
    if macro.is_variadic and len(given) >= len(names):
        n_named = len(names) - 1
        rest: list[_Token] = []
        for argument in given[n_named:]:
            rest += [_Token(",", _NOTHING), *argument] if rest else argument
        given = [*given[:n_named], rest]
    given += [[] for _ in range(len(names) - len(given))]
    return dict(zip(names, given, strict=False))


def _next_word(body: Sequence[str], position: int) -> int:
    """Return the position of the next token that is not blank."""
    position += 1
    while position < len(body) and body[position].isspace():
        position += 1
    return position


def _paste(found: list[_Token], right: Sequence[_Token]) -> None:
    """Apply `##`: join the last token and the first of `right`."""
    while found and found[-1].is_blank:
        found.pop()
    left = found.pop() if found else _Token("", _NOTHING)
    if left.text == "," and not right:  # ", ##__VA_ARGS__" without arguments
        return
    first = right[0] if right else _Token("", _NOTHING)
    found += [_Token(left.text + first.text, left.hidden & first.hidden), *right[1:]]


def _quoted(argument: Sequence[_Token]) -> str:
    escaped = "".join(token.text for token in argument).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _stripped(argument: list[_Token]) -> list[_Token]:
    while argument and argument[-1].is_blank:
        argument.pop()
    while argument and argument[0].is_blank:
        argument.pop(0)
    return argument


MAX_NESTING = 256
"""Maximum nesting of conditions; C17 5.2.4.1 requires 63."""
DEFINED = {"__CUDACC__": "1", "__CUDACC_RTC__": "1", "__cplusplus": "201703", "__CUDA_ARCH__": "__CUDA_ARCH__"}
"""Macros predefined by NVRTC that kernels test. The architecture number depends on the GPU, so it stays symbolic."""
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(?P<name>\w+)(?P<rest>.*)", re.DOTALL)
_COMMENT = re.compile(
    r"""(?P<comment>//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z))|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""", re.DOTALL
)
_ASKS_WHETHER = re.compile(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|\b(\w+))")
_NAME = re.compile(r"\b[A-Za-z_]\w*")
_SUFFIX = re.compile(r"(?<=\d)[uUlL]+\b")
_OPERATORS = ((re.compile(r"&&"), " and "), (re.compile(r"\|\|"), " or "), (re.compile(r"!(?!=)"), " not "))
_WORDS = frozenset(("and", "or", "not", "true", "false"))


def preprocessed(text: str) -> str:
    """Expand macros, remove comments and directives, and blank text excluded by conditions, on as many lines. A
    condition that only a compiler can decide excludes nothing. Raises MacroError when the expansion does not end or
    conditions nest too deep."""
    reader = _Reader()
    lines = _COMMENT.sub(_without_comment, text.replace("\r\n", "\n")).split("\n")
    number = 0
    while number < len(lines):
        line, n_lines = lines[number], 1
        while line.endswith("\\") and number + n_lines < len(lines):
            line, n_lines = line[:-1] + lines[number + n_lines], n_lines + 1
        reader.read(line, n_lines)
        number += n_lines
    return reader.finished()


def blanked(text: str) -> str:
    """Replace everything but line ends by spaces. Works by lines; by characters, megabytes take seconds."""
    return "\n".join(" " * len(line) for line in text.split("\n"))


# --- below


@dataclass(frozen=True)
class _Branch:
    """A branch of an `#if`: whether it may be compiled, whether it or an earlier one certainly is, and whether all
    conditions are known."""

    is_open: bool
    is_settled: bool
    is_sure: bool

    def next(self, answer: bool | None) -> _Branch:
        """Return the following branch, given its condition's value."""
        is_open = answer is not False and not self.is_settled
        return _Branch(is_open, self.is_settled or answer is True, self.is_sure and answer is not None)


_BEFORE_ALL = _Branch(is_open=False, is_settled=False, is_sure=True)


class _Reader:
    """Process logical lines one by one."""

    def __init__(self) -> None:
        self._macros = {name: Macro(name, None, (value,)) for name, value in DEFINED.items()}
        self._expansion = Expansion(self._macros)
        self._branches: list[_Branch] = []
        self._waiting: list[str] = []
        self._done: list[str] = []

    def read(self, line: str, n_lines: int) -> None:
        """Process a logical line that spans the given number of physical lines."""
        match = _DIRECTIVE.match(line)
        if match is not None:
            self._expand_waiting()
            self._directive(match["name"], match["rest"])
        kept = line if match is None and self._is_open else ""
        self._waiting += [kept, *[""] * (n_lines - 1)]

    def finished(self) -> str:
        self._expand_waiting()
        return "\n".join(self._done)

    @property
    def _is_open(self) -> bool:
        return all(branch.is_open for branch in self._branches)

    def _expand_waiting(self) -> None:
        if self._waiting:
            self._done.append(self._expansion.expanded("\n".join(self._waiting)))
            self._waiting = []

    def _directive(self, name: str, rest: str) -> None:
        match name:
            case "define" if self._is_open:
                self._define(rest)
            case "undef" if self._is_open:
                self._macros.pop(rest.strip(), None)
            case "if" | "ifdef" | "ifndef" if len(self._branches) == MAX_NESTING:
                raise MacroError
            case "if" | "ifdef" | "ifndef":
                self._branches.append(_BEFORE_ALL.next(self._answer(name, rest)))
            case "elif" | "else" if self._branches:
                answer = True if name == "else" else self._answer("if", rest)
                self._branches.append(self._branches.pop().next(answer))
            case "endif" if self._branches:
                self._branches.pop()

    def _define(self, rest: str) -> None:
        """Define a macro. Of branches with undecidable conditions, the first definition counts."""
        macro = read_macro(rest)
        if macro is not None and (macro.name not in self._macros or all(branch.is_sure for branch in self._branches)):
            self._macros[macro.name] = macro

    def _answer(self, name: str, rest: str) -> bool | None:
        """Evaluate the condition; None where only a compiler knows."""
        if name == "if":
            return self._value(rest)
        answer = self._is_defined(rest.strip())
        return answer if answer is None or name == "ifdef" else not answer

    def _is_defined(self, name: str) -> bool | None:
        if name in self._macros:
            return True
        return None if name.startswith("_") else False

    def _value(self, condition: str) -> bool | None:
        answers = {name: self._is_defined(name) for pair in _ASKS_WHETHER.findall(condition) for name in pair if name}
        plain = _ASKS_WHETHER.sub(lambda match: _number(answers[match[1] or match[2]]), condition)
        try:
            plain = _SUFFIX.sub("", self._expansion.expanded(plain))
        except MacroError:
            return None
        plain = _NAME.sub(lambda match: match[0] if match[0] in _WORDS or match[0][0] == "_" else "0", plain)
        for operator, word in _OPERATORS:
            plain = operator.sub(word, plain)
        try:
            return bool(evaluate(parse(" ".join(plain.split())), {}))
        except ExpressionError:
            return None


def _number(answer: bool | None) -> str:
    """Return a number; an unknown name makes the whole condition undecidable."""
    return "__unknown" if answer is None else str(int(answer))


def _without_comment(match: re.Match[str]) -> str:
    return blanked(match[0]) if match["comment"] else match[0]
