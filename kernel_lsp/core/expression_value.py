"""Evaluate expressions for given dims and scalars: 64-bit integers, doubles and bools only."""

from __future__ import annotations

from collections.abc import Mapping

from kernel_lsp.core.expression import (
    MAX_MAGNITUDE,
    Binary,
    Call,
    Constant,
    Expression,
    ExpressionError,
    Name,
    Number,
    Unary,
    parts,
)


def evaluate(expression: Expression, values: Mapping[str, Number]) -> Number:
    """Evaluate the expression. Raises ExpressionError for an unbound name or a division by zero."""
    if isinstance(expression, Name):  # fast path: most are names, and choosing cases evaluates thousands
        if expression.id not in values:
            raise ExpressionError(f"'{expression.id}' has no value here")
        return values[expression.id]
    match expression:
        case Constant(value):
            return value
        case Unary(operator, operand):
            value = evaluate(operand, values)
            return (not value) if operator == "not" else _bounded(-value)
        case Binary("and", left, right):
            return bool(evaluate(left, values)) and bool(evaluate(right, values))
        case Binary("or", left, right):
            return bool(evaluate(left, values)) or bool(evaluate(right, values))
        case Binary(operator, left, right):
            return _apply(operator, evaluate(left, values), evaluate(right, values))
        case Call(function, arguments):
            numbers = [evaluate(argument, values) for argument in arguments]
            if function == "ceil_div":
                return _bounded(-_apply("//", -numbers[0], numbers[1]))
            return min(numbers) if function == "min" else max(numbers)
    raise ExpressionError(f"cannot evaluate {expression!r}")


def evaluate_int(expression: Expression, values: Mapping[str, Number]) -> int:
    """Evaluate an integer expression. Raises ExpressionError when the value is not an integer."""
    value = evaluate(expression, values)
    if isinstance(value, float):
        divides = any(isinstance(part, Binary) and part.operator == "/" for part in parts(expression))
        hint = ": '/' makes a float, '//' and ceil_div() make integers" if divides else ""
        raise ExpressionError(f"'{expression}' is {value}, and must be an integer{hint}")
    return int(value)


# --- below: one operator

_OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


def _bounded(value: Number) -> Number:
    if not isinstance(value, float) and abs(value) >= MAX_MAGNITUDE:
        raise ExpressionError("the value does not fit 64 bits")
    return value


def _apply(operator: str, left: Number, right: Number) -> Number:
    if operator in ("/", "//", "%") and right == 0:
        raise ExpressionError("division by zero")
    try:
        return _bounded(_OPERATIONS[operator](left, right))
    except OverflowError:
        raise ExpressionError("the value does not fit a double") from None
