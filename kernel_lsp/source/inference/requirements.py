"""Read what code requires of shapes in so many words: assertions, and conditions under which it raises."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from kernel_lsp.source.inference.arrays import Array, Dim, join, same_shape
from kernel_lsp.source.inference.values import Shape

MAX_RANK = 8


@dataclass(frozen=True)
class Rank:
    """The number of dims of a tensor."""

    array: Array


def raises(body: list[ast.stmt], orelse: list[ast.stmt]) -> bool:
    """Return True for a branch that does nothing but raise."""
    return isinstance(body[-1], ast.Raise) and not orelse


def require(test: ast.expr, value: Callable[[ast.expr], object], holds: bool = True) -> None:
    """Record what follows for shapes where a condition holds, or with `holds` False where it does not. `value` returns
    the value of an expression."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            require(operand, value, not holds)
        case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) == holds:
            for each in values:
                require(each, value, holds)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            _require_comparison(op, value(left), value(right), holds)


def _require_comparison(op: ast.cmpop, left: object, right: object, holds: bool) -> None:
    is_equal = isinstance(op, ast.Eq if holds else ast.NotEq)
    if isinstance(left, Shape) and isinstance(right, Shape) and is_equal:
        same_shape(left.array, right.array)
        for each in (left, right):
            each.array.elements.is_operand = True
    if isinstance(left, Rank):
        is_least = isinstance(op, ast.GtE if holds else ast.Lt)
        if isinstance(right, int) and 0 < right <= MAX_RANK and (is_equal or is_least):
            if is_equal:
                left.array.set_rank(right)
            left.array.root.least_rank = max(left.array.root.least_rank, right)
        if isinstance(right, list) and right and isinstance(op, ast.In if holds else ast.NotIn):
            _require_comparison(ast.GtE(), left, right[-1], True)
    if is_equal:
        sides = [left, right]
        dims = [side for side in sides if isinstance(side, Dim)]
        if len(dims) > 1:
            join(*dims)
        for dim in dims:
            dim.give(next((side for side in sides if type(side) is int), None))
