"""Expressions over dims and scalars: the arithmetic of launch plans and of symbolic shapes.

Grammar, loosest binding first::

    or     := and ("or" and)*
    and    := not ("and" not)*
    not    := "not" not | compare
    compare:= sum (("<" | "<=" | ">" | ">=" | "==" | "!=") sum)?
    sum    := term (("+" | "-") term)*
    term   := unary (("*" | "/" | "//" | "%") unary)*
    unary  := "-" unary | atom
    atom   := INT | FLOAT | NAME | FUNCTION "(" or ("," or)* ")" | "(" or ")"

`//` and `%` floor, as in Python; `/` divides floats. FUNCTION is one of `ceil_div`, `min`, `max`. Text is parsed,
never passed to `eval`. Expressions are frozen, hashable and compare by structure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

Number = int | float | bool

FUNCTIONS = ("ceil_div", "min", "max")
MAX_TEXT_CHARACTERS = 4096
MAX_NESTING = 60
MAX_OPERATORS = 200
"""Per text. Trees are walked by recursion, and a chain of additions is as deep as it is long."""
MAX_MAGNITUDE = 1 << 63
"""Integers from here on are refused: no tensor, grid or scalar of a kernel can hold them."""


class ExpressionError(ValueError):
    """The text is not an expression, or it cannot be evaluated. `column` is 0-based within the text."""

    def __init__(self, message: str, column: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.column = column


class Expression:
    """Base of all nodes. Arithmetic operators build simplified expressions: ``n * 4 + 1``."""

    __slots__ = ()

    def __add__(self, other: Expression | int) -> Expression:
        return binary("+", self, as_expression(other))

    def __radd__(self, other: int) -> Expression:
        return binary("+", as_expression(other), self)

    def __sub__(self, other: Expression | int) -> Expression:
        return binary("-", self, as_expression(other))

    def __rsub__(self, other: int) -> Expression:
        return binary("-", as_expression(other), self)

    def __mul__(self, other: Expression | int) -> Expression:
        return binary("*", self, as_expression(other))

    def __rmul__(self, other: int) -> Expression:
        return binary("*", as_expression(other), self)

    def __floordiv__(self, other: Expression | int) -> Expression:
        return binary("//", self, as_expression(other))

    def __mod__(self, other: Expression | int) -> Expression:
        return binary("%", self, as_expression(other))

    def __str__(self) -> str:
        return _print(self, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Expression):
    """A literal. `value` is an int, a float or a bool, and 1, 1.0 and true are three different literals."""

    value: Number

    __str__ = Expression.__str__

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

    __str__ = Expression.__str__


@dataclass(frozen=True, slots=True)
class Unary(Expression):
    """``-operand`` or ``not operand``."""

    operator: str
    operand: Expression

    __str__ = Expression.__str__


@dataclass(frozen=True, slots=True)
class Binary(Expression):
    """``left operator right``."""

    operator: str
    left: Expression
    right: Expression

    __str__ = Expression.__str__


@dataclass(frozen=True, slots=True)
class Call(Expression):
    """``function(arguments)`` with one of `FUNCTIONS`."""

    function: str
    arguments: tuple[Expression, ...]

    __str__ = Expression.__str__


def as_expression(value: Expression | Number | str) -> Expression:
    """`value` itself, a constant for a number, or the parse of a text."""
    if isinstance(value, Expression):
        return value
    return parse(value) if isinstance(value, str) else Constant(value)


@lru_cache(maxsize=16384)
def parse(text: str) -> Expression:
    """The expression that `text` spells, exactly as written. Raises ExpressionError with the column."""
    if len(text) > MAX_TEXT_CHARACTERS:
        raise ExpressionError(f"the expression is longer than {MAX_TEXT_CHARACTERS} characters")
    parser = _Parser(text)
    expression = parser.parse_or(0)
    parser.expect_end()
    return expression


def free_names(expression: Expression) -> frozenset[str]:
    """Every name that the expression mentions."""
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
    """The expression and everything inside it."""
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


def evaluate(expression: Expression, values: Mapping[str, Number]) -> Number:
    """The value of the expression. Raises ExpressionError for an unbound name or division by zero."""
    match expression:
        case Constant(value):
            return value
        case Name(id):
            if id not in values:
                raise ExpressionError(f"'{id}' has no value here")
            return values[id]
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
    """The value of an integer expression. Raises ExpressionError when it is not an integer."""
    value = evaluate(expression, values)
    if isinstance(value, float):
        raise ExpressionError(f"'{expression}' is {value}, and must be an integer")
    return int(value)


def substitute(expression: Expression, replacements: Mapping[str, Expression]) -> Expression:
    """The expression with names replaced, simplified on the way."""
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


def simplify(expression: Expression) -> Expression:
    """The expression rebuilt with the local rules of `binary`, `unary` and `call`."""
    return substitute(expression, {})


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
    """``left operator right`` with constants folded and identities removed.

    The rules hold for all integers, negative ones included, and names are taken for integers: no rule relies on a dim
    being non-negative. Whatever holds a float constant or a `/` is regrouped by none of them.
    """
    if isinstance(left, Constant) and isinstance(right, Constant):
        return _folded(Binary(operator, left, right))
    simpler = _IDENTITIES.get(operator, _no_identity)(left, right)
    return simpler if simpler is not None else Binary(operator, left, right)


def product(factors: tuple[Expression, ...] | list[Expression]) -> Expression:
    """The product of the factors; 1 for none."""
    result: Expression = Constant(1)
    for factor in factors:
        result = result * factor
    return result


# --- below: the parser, the printer and the simplifier's rules


def _no_identity(left: Expression, right: Expression) -> Expression | None:
    return None


def _folded(expression: Expression) -> Expression:
    """Its value as a constant; the expression itself when it has none, e.g. a division by zero."""
    try:
        return Constant(evaluate(expression, {}))
    except ExpressionError:
        return expression


def _is_integral(expression: Expression) -> bool:
    """Whether the value is an integer when every name is one."""
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


def _constant(expression: Expression) -> int | None:
    """The integer an expression is, or None."""
    if isinstance(expression, Constant) and type(expression.value) is int:
        return expression.value
    return None


def _add(left: Expression, right: Expression) -> Expression | None:
    if _constant(left) == 0:
        return right
    if _constant(right) == 0:
        return left
    if _constant(left) is not None:
        return binary("+", right, left)
    added = _constant(right)
    if added is None:
        return None
    match left:
        case Binary("+", inner, Constant(value)) if type(value) is int and _joins(value + added, inner):
            return binary("+", inner, Constant(value + added))
        case Binary("-", inner, Constant(value)) if type(value) is int and _joins(added - value, inner):
            return binary("+", inner, Constant(added - value))
    return Binary("-", left, Constant(-added)) if added < 0 else None


def _joins(value: int, inner: Expression) -> bool:
    """Whether a joined constant may stand beside `inner`: regrouping a float sum or product would round otherwise."""
    return abs(value) < MAX_MAGNITUDE and _is_integral(inner)


def _subtract(left: Expression, right: Expression) -> Expression | None:
    if _constant(right) == 0:
        return left
    if not (_is_integral(left) and _is_integral(right)):
        return None
    if left == right:
        return Constant(0)
    subtracted = _constant(right)
    if subtracted is not None:
        ends_in_constant = isinstance(left, Binary) and left.operator in "+-" and _constant(left.right) is not None
        return binary("+", left, Constant(-subtracted)) if subtracted < 0 or ends_in_constant else None
    match left:
        case Binary("+", first, second) if second == right:
            return first
        case Binary("+", first, second) if first == right:
            return second
    return None


def _multiply(left: Expression, right: Expression) -> Expression | None:
    if _constant(left) == 0 or _constant(right) == 0:
        return Constant(0)
    if _constant(left) == 1:
        return right
    if _constant(right) == 1:
        return left
    if _constant(left) is not None:
        return binary("*", right, left)
    factor = _constant(right)
    if factor is not None:
        match left:
            case Binary("*", inner, Constant(value)) if type(value) is int and _joins(value * factor, inner):
                return binary("*", inner, Constant(value * factor))
    return None


def _floor_divide(left: Expression, right: Expression) -> Expression | None:
    if not (_is_integral(left) and _is_integral(right)):
        return None
    if _constant(right) == 1:
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
    if _constant(right) == 1 or _divide_exactly(left, right) is not None:
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
    """``(a, b)`` with ``left == sum(a) * right + b``, where `a` has every term that `right` divides; None when it
    divides none."""
    terms = _terms(left)
    if len(terms) == 1:
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
    """The summands of nested sums and differences, in order."""
    match expression:
        case Binary("+", left, right):
            return _terms(left) + _terms(right)
        case Binary("-", left, right):
            return _terms(left) + [_Term(not term.is_negative, term.value) for term in _terms(right)]
        case Unary("-", operand):
            return [_Term(not term.is_negative, term.value) for term in _terms(operand)]
    return [_Term(False, expression)]


def _sum(terms: list[_Term]) -> Expression:
    """The terms added up, one that is not negative first where there is one."""
    first = next((position for position, term in enumerate(terms) if not term.is_negative), 0)
    total: Expression = Constant(0)
    for term in [*terms[first : first + 1], *terms[:first], *terms[first + 1 :]]:
        total = binary("-" if term.is_negative else "+", total, term.value)
    return total


def _positive(expression: Expression) -> bool:
    value = _constant(expression)
    return value is not None and value > 0


def _divide_exactly(left: Expression, right: Expression) -> Expression | None:
    """The q with left == q * right, when the shape of the product shows it."""
    if left == right:
        return Constant(1)
    dividend, divisor = _constant(left), _constant(right)
    if dividend is not None:
        return Constant(dividend // divisor) if divisor and dividend % divisor == 0 else None
    factors, denominators = _factors(left), _factors(right)
    for denominator in denominators:
        for position, factor in enumerate(factors):
            if factor == denominator:
                factors[position] = Constant(1)
                break
            upper, lower = _constant(factor), _constant(denominator)
            if upper is not None and lower and upper % lower == 0:
                factors[position] = Constant(upper // lower)
                break
        else:
            return None
    return product(factors)


def _factors(expression: Expression) -> list[Expression]:
    if isinstance(expression, Binary) and expression.operator == "*":
        return _factors(expression.left) + _factors(expression.right)
    return [expression]


_IDENTITIES = {"+": _add, "-": _subtract, "*": _multiply, "//": _floor_divide, "%": _modulo}


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
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
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


_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<operator>//|<=|>=|==|!=|[-+*/%<>(),]))",
    re.ASCII,
)
_LITERALS: dict[str, Number] = {"true": True, "false": False, "inf": math.inf, "nan": math.nan}
_KEYWORDS = ("and", "or", "not")


class _Parser:
    """Recursive descent over one text; every error carries its column."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kind, self.token, self.column, self.end = "", "", 0, 0
        self.n_operators = 0
        self.advance()

    def advance(self) -> None:
        match = _TOKEN.match(self.text, self.end)
        rest = self.text[self.end :]
        if match is None and rest.strip():
            column = self.end + len(rest) - len(rest.lstrip())
            raise ExpressionError(f"unexpected character {self.text[column]!r}", column)
        if match is None:
            self.kind, self.token, self.column = "end", "", len(self.text.rstrip())
            return
        self.kind = match.lastgroup or ""
        self.token = match.group(self.kind)
        self.column, self.end = match.start(self.kind), match.end()

    def expect_end(self) -> None:
        if self.kind != "end":
            raise ExpressionError(f"unexpected '{self.token}' after the expression", self.column)

    def take(self, *tokens: str) -> str | None:
        if self.kind in ("operator", "name") and self.token in tokens:
            taken = self.token
            self.n_operators += taken not in "(),"
            if self.n_operators > MAX_OPERATORS:
                raise ExpressionError(f"more than {MAX_OPERATORS} operators", self.column)
            self.advance()
            return taken
        return None

    def parse_or(self, depth: int) -> Expression:
        if depth > MAX_NESTING:
            raise ExpressionError(f"nested deeper than {MAX_NESTING} levels", self.column)
        left = self.parse_and(depth)
        while self.take("or"):
            left = Binary("or", left, self.parse_and(depth))
        return left

    def parse_and(self, depth: int) -> Expression:
        left = self.parse_not(depth)
        while self.take("and"):
            left = Binary("and", left, self.parse_not(depth))
        return left

    def parse_not(self, depth: int) -> Expression:
        if depth > MAX_NESTING:
            raise ExpressionError(f"nested deeper than {MAX_NESTING} levels", self.column)
        if self.take("not"):
            return Unary("not", self.parse_not(depth + 1))
        left = self.parse_sum(depth)
        operator = self.take(*COMPARISONS)
        return Binary(operator, left, self.parse_sum(depth)) if operator else left

    def parse_sum(self, depth: int) -> Expression:
        left = self.parse_term(depth)
        while operator := self.take("+", "-"):
            left = Binary(operator, left, self.parse_term(depth))
        return left

    def parse_term(self, depth: int) -> Expression:
        left = self.parse_unary(depth)
        while operator := self.take("*", "//", "/", "%"):
            left = Binary(operator, left, self.parse_unary(depth))
        return left

    def parse_unary(self, depth: int) -> Expression:
        if depth > MAX_NESTING:
            raise ExpressionError(f"nested deeper than {MAX_NESTING} levels", self.column)
        if self.take("-"):
            operand = self.parse_unary(depth + 1)
            if isinstance(operand, Constant) and not isinstance(operand.value, bool):
                return Constant(-operand.value)
            return Unary("-", operand)
        return self.parse_atom(depth)

    def parse_atom(self, depth: int) -> Expression:
        token, column = self.token, self.column
        if self.kind == "number":
            self.advance()
            return Constant(_number(token, column))
        if self.kind == "name" and token not in _KEYWORDS:
            self.advance()
            return self.parse_name(token, column, depth)
        if self.take("("):
            inner = self.parse_or(depth + 1)
            self.close(column)
            return inner
        found = f"found '{token}'" if token else "the text ends here"
        raise ExpressionError(f"expected a number, a name or '(': {found}", column)

    def parse_name(self, token: str, column: int, depth: int) -> Expression:
        if token in _LITERALS:
            return Constant(_LITERALS[token])
        if not self.take("("):
            return Name(token)
        if token not in FUNCTIONS:
            raise ExpressionError(f"no function '{token}': there are {', '.join(FUNCTIONS)}", column)
        arguments = [self.parse_or(depth + 1)]
        while self.take(","):
            arguments.append(self.parse_or(depth + 1))
        self.close(column)
        if token == "ceil_div" and len(arguments) != 2:
            raise ExpressionError("ceil_div takes two arguments", column)
        return Call(token, tuple(arguments))

    def close(self, opened_at: int) -> None:
        if not self.take(")"):
            raise ExpressionError(f"the parenthesis opened at column {opened_at + 1} is not closed", self.column)


def _number(token: str, column: int) -> Number:
    if token.isdigit():
        value = int(token) if len(token) <= 19 else MAX_MAGNITUDE
        if value >= MAX_MAGNITUDE:
            raise ExpressionError("the integer does not fit 64 bits", column)
        return value
    value_float = float(token)
    if math.isinf(value_float):
        raise ExpressionError("the number does not fit a double", column)
    return value_float
