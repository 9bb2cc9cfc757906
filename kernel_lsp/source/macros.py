"""Expand C macros like a preprocessor.

A macro's name in its own expansion is not expanded (C17 6.10.3.4): each token carries the macros that it came from,
after Prosser's algorithm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
