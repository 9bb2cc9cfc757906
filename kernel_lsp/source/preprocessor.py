"""Preprocess a CUDA text as far as it determines itself: its own macros and conditions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernel_lsp.core.expression import ExpressionError, evaluate, parse
from kernel_lsp.source.macros import Expansion, Macro, MacroError, read_macro

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
