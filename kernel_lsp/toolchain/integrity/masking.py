"""Blank comments and literals of CUDA text, so that simple rules see only code, and find preprocessor conditions in it
that another compiler may evaluate differently from NVRTC, which checked the text. Lines and columns are preserved."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from kernel_lsp.source.preprocessor import blanked

_NOT_CODE = re.compile(
    r"""
      (?P<line_comment>//(?:\\\n|[^\n])*)
    | (?P<block_comment>/\*.*?(?:\*/|\Z))
    | (?P<raw>(?<!\w)(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)")
    | (?P<string>"(?:\\.|[^"\\\n])*")
    | (?P<number>(?<!\w)\.?[0-9](?:'\w|[eEpP][+-]|[\w.])*)
    | (?P<character>'(?:\\.|[^'\\\n])+')
    """,
    re.VERBOSE | re.DOTALL,
)
"""Includes numbers, which are code, because their digit separators look like quotes."""
_GLOBAL_FUNCTION = re.compile(
    r"\b__global__\b[^;{}]{0,500}?\b(?P<name>[A-Za-z_]\w*)\s*\((?=[^;{}]{0,4000}\)[^;{}()]{0,200}\{)"
)
_LAUNCH_BOUNDS = re.compile(
    r"\b__(?:launch_bounds|cluster_dims|maxnreg|block_size)__\s*\([^()]*(?:\([^()]*\)[^()]*)*\)"
)


@lru_cache(maxsize=4)
def mask_comments(text: str) -> str:
    """Replace every comment in `text` by spaces; string literals stay."""
    return _NOT_CODE.sub(lambda match: blanked(match[0]) if match.lastgroup in _COMMENTS else match[0], text)


@lru_cache(maxsize=4)
def mask_literals(text: str) -> str:
    """Replace every comment, string and character literal in `text` by spaces."""
    return _NOT_CODE.sub(lambda match: match[0] if match.lastgroup == "number" else blanked(match[0]), text)


def kernel_at_line(text: str, line: int) -> str | None:
    """Return the `__global__` function that contains the 1-based `line`; None outside of all."""
    for name, first, last in kernel_spans(text):
        if first <= line <= last:
            return name
    return None


@lru_cache(maxsize=8)
def kernel_spans(text: str) -> tuple[tuple[str, int, int], ...]:
    """Return name, first line and last line (1-based) of each `__global__` function with a body."""
    code = _LAUNCH_BOUNDS.sub(lambda match: blanked(match[0]), mask_literals(text))
    spans = []
    for match in _GLOBAL_FUNCTION.finditer(code):
        end = _end_of_body(code, code.find("{", match.end()))
        spans.append((match["name"], code.count("\n", 0, match.start()) + 1, code.count("\n", 0, end) + 1))
    return tuple(spans)


_COMMENTS = ("line_comment", "block_comment")


def _end_of_body(code: str, start: int) -> int:
    depth = 0
    for position in range(start, len(code)):
        if code[position] == "{":
            depth += 1
        elif code[position] == "}":
            depth -= 1
            if depth == 0:
                return position
    return len(code)


_DIRECTIVE = re.compile(
    r"^[ \t]*(?:#|%:|\?\?=)[ \t]*(?P<name>define|undef|if|ifdef|ifndef|elif|elifdef|elifndef|endif)\b(?P<rest>.*)$"
)
_DEFINED = re.compile(r"[ \t]*(?P<name>[A-Za-z_]\w*)(?P<rest>.*)$", re.DOTALL)
_IDENTIFIER = re.compile(r"(?<![\w.'])[A-Za-z_]\w*")
_OPERATORS = frozenset(("defined", "true", "false"))


@dataclass(frozen=True)
class ForeignCondition:
    """A condition at a 1-based line on `name`, which the text itself does not determine."""

    name: str
    line: int


def foreign_conditions(text: str) -> tuple[ForeignCondition, ...]:
    """Return the conditions on compiler-dependent names, such as `__CUDA_ARCH__`, `__NVCC__` and `linux`: on anything
    but numbers and macros that the text defines before, unconditionally, as numbers. The excluded branches were never
    compiled when the kernel was checked."""
    own: dict[str, set[str]] = {}
    found: list[ForeignCondition] = []
    depth = 0
    for name, rest, line in _directives(text):
        defined = _DEFINED.match(rest)
        if name == "define" and defined and not depth:
            own.setdefault(defined["name"], set()).update(_IDENTIFIER.findall(defined["rest"]))
        elif name == "undef" and defined:
            own.pop(defined["name"], None)
        elif name.startswith(("if", "elif")):
            asked = _IDENTIFIER.findall(rest)
            found += [ForeignCondition(each, line) for each in asked if not _is_own(each, own, frozenset())]
        depth += name.startswith("if") - (name == "endif")
    return tuple(found)


def _directives(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield the name, rest and 1-based line of each directive, with line splices resolved."""
    code = mask_literals(text).split("\n")
    number = 0
    while number < len(code):
        first, line = number, code[number]
        # A blank after the backslash is a splice to some compilers only; treat it as one.
        while line.rstrip().endswith("\\") and number + 1 < len(code):
            number += 1
            line = line.rstrip()[:-1] + code[number]
        if match := _DIRECTIVE.match(line):
            yield match["name"], match["rest"], first + 1
        number += 1


def _is_own(name: str, own: dict[str, set[str]], seen: frozenset[str]) -> bool:
    """Return True for names determined by the text: operators, and macros whose every definition is."""
    if name in _OPERATORS or name in seen:
        return True
    return name in own and all(_is_own(inner, own, seen | {name}) for inner in own[name])
