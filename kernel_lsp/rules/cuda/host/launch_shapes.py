"""Read the block and the template arguments of each launch in host code, by text search."""

from __future__ import annotations

import re

from kernel_lsp.rules.cuda.literals import integer_literal
from kernel_lsp.source.host_launches import split_top

_NAMED = re.compile(r"\b(?:const|constexpr|int|unsigned|auto|size_t)\s+(\w+)\s*[={]\s*([^;,{}]+)[;,}]")
_DIM3 = re.compile(
    r"\bdim3\s+(\w+)\s*(?:=\s*dim3\s*)?[({]([^;]*?)[)}]\s*[;,]|\bdim3\s+\w+\s*\([^;()]*(?:\([^()]*\)[^;()]*)*\)\s*,\s*(\w+)\s*\(([^;()]*)\)\s*;"
)
LaunchShape = tuple[tuple[int | None, ...], tuple[int, int, int]]
_DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+\(?([\w \t*/+-]+?)\)?[ \t]*$", re.MULTILINE)
_LAUNCH = re.compile(r"\b(\w+)\s*(?:<([^<>;{}]*)>)?\s*<<<([^;]*?)>>>\s*\(")


def launch_shapes(text: str, constants: dict[str, int]) -> dict[str, tuple[LaunchShape, ...]]:
    """Return the template arguments and the block of each launch whose block is known, by kernel."""
    found: dict[str, tuple[LaunchShape, ...]] = {}
    constants = dict(constants)
    for name, value in _DEFINED.findall(text):
        number = None if name in constants else _evaluated(value, constants)
        if number is not None:
            constants[name] = number
    for launch in _LAUNCH.finditer(text):
        names = dict(constants)
        before = text[max(0, launch.start() - 3000) : launch.start()]
        for name, value in _NAMED.findall(before):
            number = _evaluated(value, names)
            names[name] = number if number is not None else -1
        parts = split_top(launch[3])
        block = _block(parts[1], names, before) if len(parts) > 1 else None
        if block is not None:
            arguments = tuple(_evaluated(each, names) for each in split_top(launch[2] or ""))
            found[launch[1]] = (*found.get(launch[1], ()), (arguments, block))
    return found


def _block(text: str, names: dict[str, int], before: str) -> tuple[int, int, int] | None:
    text = text.strip()
    sizes = text
    declared = [one or two for name, one, other, two in _DIM3.findall(before) if text in (name, other)]
    if declared:
        sizes = declared[-1]
    elif text.startswith("dim3"):
        sizes = text[4:].strip("(){} ")
    numbers = [_evaluated(each, names) for each in split_top(sizes)]
    if not 1 <= len(numbers) <= 3 or any(each is None or each <= 0 for each in numbers):
        return None
    x, y, z = (*[each or 1 for each in numbers], 1, 1)[:3]
    return x, y, z


def _evaluated(text: str, names: dict[str, int]) -> int | None:
    """Return the value of a product or quotient of known numbers."""
    text = re.sub(r"\(\s*(?:int|unsigned|size_t)\s*\)", "", text).strip()
    terms = re.split(r"([*/+-])", text.strip("() "))
    total: int | None = None
    sign = ""
    for term in terms:
        term = term.strip("() ")
        if term in ("*", "/", "+", "-"):
            sign = term
            continue
        number = integer_literal(term)
        number = names.get(term) if number is None else number
        if number is None or number < 0:
            return None
        if total is None:
            total = number
        elif sign == "/":
            total = total // number if number else None
        else:
            total = total * number if sign == "*" else total + number if sign == "+" else total - number
        if total is None:
            return None
    return total
