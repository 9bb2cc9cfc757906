"""Detect preprocessor conditions that another compiler may evaluate differently from NVRTC, which checked the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernel_lsp.toolchain.integrity.masking import mask_literals

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
