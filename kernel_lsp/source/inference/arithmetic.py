"""Compute with the numbers of a constructor, within bounds."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence

from kernel_lsp.source.inference.values import UNKNOWN

MAX_EXPONENT, MAX_BITS = 64, 64
"""Maximum exponent, and bits of an integer: repeated powers and products take unbounded time. No size has more."""
_ARITHMETIC: dict[type[ast.operator], Callable[..., object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def arithmetic(op: ast.operator, left: object, right: object) -> object:
    """Return the result of an operator on two numbers; UNKNOWN for other operands, and beyond the bounds."""
    apply = _ARITHMETIC.get(type(op))
    if apply is None or not all(type(each) in (int, float) for each in (left, right)):
        return UNKNOWN
    if isinstance(op, ast.Pow) and isinstance(right, (int, float)) and abs(right) > MAX_EXPONENT:
        return UNKNOWN
    try:
        found = apply(left, right)
    except (ArithmeticError, ValueError):
        return UNKNOWN
    return UNKNOWN if isinstance(found, int) and found.bit_length() > MAX_BITS else found


def converted(name: str, values: Sequence[object]) -> object:
    """Return the result of a builtin on numbers, such as ``int`` or ``max``; UNKNOWN where it raises."""
    apply: dict[str, Callable[..., object]] = {"int": int, "max": max, "min": min, "round": round, "float": float}
    try:
        return apply[name](*values)
    except (TypeError, ValueError, OverflowError):
        return UNKNOWN
