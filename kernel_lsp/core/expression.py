"""Expressions over dims and scalars, used in launch plans and symbolic shapes, and their text.

Expressions are frozen, hashable and compare by structure. `expression_parser` reads them, `expression_value` evaluates
them, `expression_rules` builds simplified ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

Number = int | float | bool

FUNCTIONS = ("ceil_div", "min", "max")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
MAX_MAGNITUDE = 1 << 63
"""Smallest magnitude that is rejected: no tensor, grid or scalar of a kernel can hold it."""


class ExpressionError(ValueError):
    """Parse or evaluation error of an expression. `column` is 0-based within the text."""

    def __init__(self, message: str, column: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.column = column


class Expression:
    """Base of all nodes. `str` returns a text that parses to the same expression."""

    __slots__ = ()

    def __str__(self) -> str:
        return _print(self, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Expression):
    """A literal. `value` is an int, a float or a bool, and 1, 1.0 and true are three different literals."""

    value: Number

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant) or type(self.value) is not type(other.value):
            return False
        return self.value == other.value or (self.value != self.value and other.value != other.value)

    def __hash__(self) -> int:
        return hash((type(self.value), self.value if self.value == self.value else "nan"))


@dataclass(frozen=True, slots=True)
class Name(Expression):
    """A dim or a scalar parameter."""

    id: str


@dataclass(frozen=True, slots=True)
class Unary(Expression):
    """``-operand`` or ``not operand``."""

    operator: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary(Expression):
    """``left operator right``."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Call(Expression):
    """``function(arguments)`` with one of `FUNCTIONS`."""

    function: str
    arguments: tuple[Expression, ...]


def free_names(expression: Expression) -> frozenset[str]:
    """Return every name in the expression."""
    match expression:
        case Name(id):
            return frozenset((id,))
        case Unary(_, operand):
            return free_names(operand)
        case Binary(_, left, right):
            return free_names(left) | free_names(right)
        case Call(_, arguments):
            return frozenset().union(*(free_names(argument) for argument in arguments))
    return frozenset()


def parts(expression: Expression) -> Iterator[Expression]:
    """Yield the expression and all its subexpressions."""
    yield expression
    match expression:
        case Unary(_, operand):
            yield from parts(operand)
        case Binary(_, left, right):
            yield from parts(left)
            yield from parts(right)
        case Call(_, arguments):
            for argument in arguments:
                yield from parts(argument)


# --- below: the text of an expression

_PRECEDENCE = {"or": 1, "and": 2, **dict.fromkeys(COMPARISONS, 4), "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6}
_NOT_PRECEDENCE = 3
_NEGATION_PRECEDENCE = 7


def _print(expression: Expression, outer: int) -> str:
    match expression:
        case Constant(value):
            return _print_number(value, outer)
        case Name(id):
            return id
        case Call(function, arguments):
            return f"{function}({', '.join(_print(argument, 0) for argument in arguments)})"
        case Unary(operator, operand):
            precedence = _NOT_PRECEDENCE if operator == "not" else _NEGATION_PRECEDENCE
            sign = "not " if operator == "not" else "-"
            return _parenthesize(sign + _print(operand, precedence), precedence, outer)
        case Binary(operator, left, right):
            precedence = _PRECEDENCE[operator]
            left_outer = precedence + 1 if operator in COMPARISONS else precedence
            text = f"{_print(left, left_outer)} {operator} {_print(right, precedence + 1)}"
            return _parenthesize(text, precedence, outer)
    raise TypeError(f"not an expression: {expression!r}")


def _print_number(value: Number, outer: int) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return {True: "inf", False: "-inf"}[value > 0] if not math.isnan(value) else "nan"
    text = repr(value)
    return _parenthesize(text, _NEGATION_PRECEDENCE, outer) if text.startswith("-") else text


def _parenthesize(text: str, precedence: int, outer: int) -> str:
    return f"({text})" if precedence < outer else text
