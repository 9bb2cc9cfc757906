"""Conditions of the preprocessor that another compiler may answer otherwise than NVRTC, which checked the text."""

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
    """A condition at a 1-based line that asks for `name`, which the text itself does not settle."""

    name: str
    line: int


def foreign_conditions(text: str) -> tuple[ForeignCondition, ...]:
    """Conditions on anything but numbers and macros that the text has defined before, outside of all conditions, and
    that come down to numbers: those on what only a compiler knows, `__CUDA_ARCH__`, `__NVCC__`, `linux` and the like.
    What they leave out was never compiled when the kernel was checked."""
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


# --- below


def _directives(text: str) -> Iterator[tuple[str, str, int]]:
    """Name, rest and 1-based line of each, line splices resolved."""
    code = mask_literals(text).split("\n")
    number = 0
    while number < len(code):
        first, line = number, code[number]
        # A blank after the backslash is a splice to some compilers and none to others: taken for one.
        while line.rstrip().endswith("\\") and number + 1 < len(code):
            number += 1
            line = line.rstrip()[:-1] + code[number]
        if match := _DIRECTIVE.match(line):
            yield match["name"], match["rest"], first + 1
        number += 1


def _is_own(name: str, own: dict[str, set[str]], seen: frozenset[str]) -> bool:
    """Whether the text settles it: an operator, or a macro of which every definition is settled."""
    if name in _OPERATORS or name in seen:
        return True
    return name in own and all(_is_own(inner, own, seen | {name}) for inner in own[name])
