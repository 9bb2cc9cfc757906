"""Build simplified expressions: fold constants and remove identities without changing any value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernel_lsp.core.expression import (
    MAX_MAGNITUDE,
    Binary,
    Call,
    Constant,
    Expression,
    ExpressionError,
    Name,
    Unary,
    evaluate,
)


def substitute(expression: Expression, replacements: Mapping[str, Expression]) -> Expression:
    """Replace names in the expression and simplify."""
    match expression:
        case Name(id):
            return replacements.get(id, expression)
        case Unary(operator, operand):
            return unary(operator, substitute(operand, replacements))
        case Binary(operator, left, right):
            return binary(operator, substitute(left, replacements), substitute(right, replacements))
        case Call(function, arguments):
            return call(function, *(substitute(argument, replacements) for argument in arguments))
    return expression


def unary(operator: str, operand: Expression) -> Expression:
    """``operator operand``, folded when the operand is a constant."""
    node = Unary(operator, operand)
    return _folded(node) if isinstance(operand, Constant) else node


def call(function: str, *arguments: Expression) -> Expression:
    """``function(arguments)``, folded when every argument is a constant."""
    node = Call(function, arguments)
    if all(isinstance(argument, Constant) for argument in arguments):
        return _folded(node)
    if function == "ceil_div" and arguments[1] == Constant(1) and _is_integral(arguments[0]):
        return arguments[0]
    if function in ("min", "max") and len(set(arguments)) == 1:
        return arguments[0]
    return node


def binary(operator: str, left: Expression, right: Expression) -> Expression:
    """Build ``left operator right`` with constants folded and identities removed.

    The rules hold for all integers, including negative ones, and assume that names are integers. Expressions with a
    float constant or a `/` are never regrouped.
    """
    if isinstance(left, Constant) and isinstance(right, Constant):
        return _folded(Binary(operator, left, right))
    simpler = _IDENTITIES.get(operator, _no_identity)(left, right)
    return simpler if simpler is not None else Binary(operator, left, right)


def _no_identity(left: Expression, right: Expression) -> Expression | None:
    return None


def _folded(expression: Expression) -> Expression:
    """Return the value as a constant, or the expression itself when it has none, e.g. a division by zero."""
    try:
        return Constant(evaluate(expression, {}))
    except ExpressionError:
        return expression


def _is_integral(expression: Expression) -> bool:
    """Return True when the value is an integer for all integer names."""
    match expression:
        case Constant(value):
            return not isinstance(value, float)
        case Unary("-", operand):
            return _is_integral(operand)
        case Binary(operator, left, right):
            return operator != "/" and _is_integral(left) and _is_integral(right)
        case Call(_, arguments):
            return all(_is_integral(argument) for argument in arguments)
    return True


def integer_of(expression: Expression) -> int | None:
    """Return the integer value of a constant expression, else None."""
    if isinstance(expression, Constant) and type(expression.value) is int:
        return expression.value
    return None


def _add(left: Expression, right: Expression) -> Expression | None:
    if integer_of(left) == 0:
        return right
    added = integer_of(right)
    if added == 0:
        return left
    if integer_of(left) is not None:
        return binary("+", right, left)
    if added is None:
        return None
    match left:
        case Binary("+", inner, Constant(value)) if type(value) is int and _joins(value + added, inner):
            return binary("+", inner, Constant(value + added))
        case Binary("-", inner, Constant(value)) if type(value) is int and _joins(added - value, inner):
            return binary("+", inner, Constant(added - value))
    return Binary("-", left, Constant(-added)) if added < 0 else None


def _joins(value: int, inner: Expression) -> bool:
    """Return True when constants may be combined with `inner`; regrouping floats would change the rounding."""
    return abs(value) < MAX_MAGNITUDE and _is_integral(inner)


def _subtract(left: Expression, right: Expression) -> Expression | None:
    subtracted = integer_of(right)
    if subtracted == 0:
        return left
    if not (_is_integral(left) and _is_integral(right)):
        return None
    if left == right:
        return Constant(0)
    if subtracted is not None:
        ends_in_constant = isinstance(left, Binary) and left.operator in "+-" and integer_of(left.right) is not None
        return binary("+", left, Constant(-subtracted)) if subtracted < 0 or ends_in_constant else None
    match left:
        case Binary("+", first, second) if second == right:
            return first
        case Binary("+", first, second) if first == right:
            return second
    return None


def _multiply(left: Expression, right: Expression) -> Expression | None:
    if integer_of(left) == 0 or integer_of(right) == 0:
        return Constant(0)
    if integer_of(left) == 1:
        return right
    if integer_of(right) == 1:
        return left
    if integer_of(left) is not None:
        return binary("*", right, left)
    factor = integer_of(right)
    if factor is not None:
        match left:
            case Binary("*", inner, Constant(value)) if type(value) is int and _joins(value * factor, inner):
                return binary("*", inner, Constant(value * factor))
    return None


def _floor_divide(left: Expression, right: Expression) -> Expression | None:
    if not (_is_integral(left) and _is_integral(right)):
        return None
    if integer_of(right) == 1:
        return left
    quotient = _divide_exactly(left, right)
    if quotient is not None:
        return quotient
    split = _split_sum(left, right)
    if split is not None:  # (a * d + b) // d == a + b // d for any integers, d != 0
        quotients, rest = split
        return _sum(quotients if rest == Constant(0) else [*quotients, _Term(False, binary("//", rest, right))])
    match left:
        case Binary("//", inner, divisor) if _positive(divisor) and _positive(right):
            return binary("//", inner, binary("*", divisor, right))
    return None


def _modulo(left: Expression, right: Expression) -> Expression | None:
    if not (_is_integral(left) and _is_integral(right)):
        return None
    if integer_of(right) == 1 or _divide_exactly(left, right) is not None:
        return Constant(0)
    split = _split_sum(left, right)
    if split is not None:  # (a * d + b) % d == b % d
        rest = split[1]
        return Constant(0) if rest == Constant(0) else binary("%", rest, right)
    match left:
        case Binary("%", _, divisor) if divisor == right:
            return left
    return None


def _split_sum(left: Expression, right: Expression) -> tuple[list[_Term], Expression] | None:
    """Return ``(a, b)`` with ``left == sum(a) * right + b``, where `a` has every term divisible by `right`; None when
    there is no such term."""
    terms = [term for term in _terms(left) if term.value != Constant(0)]  # `0 - x` cannot be split
    if len(terms) <= 1:
        return None
    quotients: list[_Term] = []
    rest: list[_Term] = []
    for term in terms:
        quotient = _divide_exactly(term.value, right)
        if quotient is None:
            rest.append(term)
        else:
            quotients.append(_Term(term.is_negative, quotient))
    return (quotients, _sum(rest)) if quotients else None


@dataclass(frozen=True, slots=True)
class _Term:
    """One summand."""

    is_negative: bool
    value: Expression


def _terms(expression: Expression) -> list[_Term]:
    """Return the summands of nested sums and differences, in order."""
    match expression:
        case Binary("+", left, right):
            return _terms(left) + _terms(right)
        case Binary("-", left, right):
            return _terms(left) + [_Term(not term.is_negative, term.value) for term in _terms(right)]
        case Unary("-", operand):
            return [_Term(not term.is_negative, term.value) for term in _terms(operand)]
    return [_Term(False, expression)]


def _sum(terms: list[_Term]) -> Expression:
    """Sum the terms, a non-negative one first if there is one."""
    first = next((position for position, term in enumerate(terms) if not term.is_negative), 0)
    total: Expression = Constant(0)
    for term in [*terms[first : first + 1], *terms[:first], *terms[first + 1 :]]:
        total = binary("-" if term.is_negative else "+", total, term.value)
    return total


def _positive(expression: Expression) -> bool:
    value = integer_of(expression)
    return value is not None and value > 0


def _divide_exactly(left: Expression, right: Expression) -> Expression | None:
    """Return q with left == q * right, when the factors of the product show it."""
    if left == right:
        return Constant(1)
    dividend, divisor = integer_of(left), integer_of(right)
    if dividend is not None:
        return Constant(dividend // divisor) if divisor and dividend % divisor == 0 else None
    factors, denominators = _factors(left), _factors(right)
    for denominator in denominators:
        for position, factor in enumerate(factors):
            if factor == denominator:
                factors[position] = Constant(1)
                break
            upper, lower = integer_of(factor), integer_of(denominator)
            if upper is not None and lower and upper % lower == 0:
                factors[position] = Constant(upper // lower)
                break
        else:
            return None
    return _product(factors)


def _product(factors: list[Expression]) -> Expression:
    result: Expression = Constant(1)
    for factor in factors:
        result = binary("*", result, factor)
    return result


def _factors(expression: Expression) -> list[Expression]:
    if isinstance(expression, Binary) and expression.operator == "*":
        return _factors(expression.left) + _factors(expression.right)
    return [expression]


_IDENTITIES = {"+": _add, "-": _subtract, "*": _multiply, "//": _floor_divide, "%": _modulo}
