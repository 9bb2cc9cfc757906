"""Expressions over dims and scalars, used in launch plans and symbolic shapes: their text, their parser and their
values.

Text is parsed, never passed to `eval`; every error says the column.

Expressions are frozen, hashable and compare by structure. `expression_rules` builds simplified ones.

Grammar, loosest binding first::

    or     := and ("or" and)*
    and    := not ("and" not)*
    not    := "not" not | compare
    compare:= sum (("<" | "<=" | ">" | ">=" | "==" | "!=") sum)?
    sum    := term (("+" | "-") term)*
    term   := unary (("*" | "/" | "//" | "%") unary)*
    unary  := "-" unary | atom
    atom   := INT | FLOAT | NAME | FUNCTION "(" or ("," or)* ")" | "(" or ")"

`//` and `%` floor, as in Python; `/` divides floats. FUNCTION is one of `ceil_div`, `min`, `max`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

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


PRECEDENCE = {"or": 1, "and": 2, **dict.fromkeys(COMPARISONS, 4), "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6}
NOT_PRECEDENCE = 3
NEGATION_PRECEDENCE = 7


def _print(expression: Expression, outer: int) -> str:
    match expression:
        case Constant(value):
            return _print_number(value, outer)
        case Name(id):
            return id
        case Call(function, arguments):
            return f"{function}({', '.join(_print(argument, 0) for argument in arguments)})"
        case Unary(operator, operand):
            precedence = NOT_PRECEDENCE if operator == "not" else NEGATION_PRECEDENCE
            sign = "not " if operator == "not" else "-"
            return parenthesized(sign + _print(operand, precedence), precedence, outer)
        case Binary(operator, left, right):
            precedence = PRECEDENCE[operator]
            left_outer = precedence + 1 if operator in COMPARISONS else precedence
            text = f"{_print(left, left_outer)} {operator} {_print(right, precedence + 1)}"
            return parenthesized(text, precedence, outer)
    raise TypeError(f"not an expression: {expression!r}")


def _print_number(value: Number, outer: int) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return {True: "inf", False: "-inf"}[value > 0] if not math.isnan(value) else "nan"
    text = repr(value)
    return parenthesized(text, NEGATION_PRECEDENCE, outer) if text.startswith("-") else text


def parenthesized(text: str, precedence: int, outer: int) -> str:
    """Return the text as an operand of an operator that binds as tightly as `outer`."""
    return f"({text})" if precedence < outer else text


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


MAX_TEXT_CHARACTERS = 4096
MAX_NESTING = 60
MAX_OPERATORS = 200
"""Maximum operators per text. Trees are walked recursively, and a chain of additions is as deep as it is long."""


@lru_cache(maxsize=16384)
def parse(text: str) -> Expression:
    """Parse `text` without simplification. Raises ExpressionError with the column."""
    if len(text) > MAX_TEXT_CHARACTERS:
        raise ExpressionError(f"the expression is longer than {MAX_TEXT_CHARACTERS} characters")
    parser = _Parser(text)
    expression = parser.parse_or(0)
    parser.expect_end()
    return expression


_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<operator>//|<=|>=|==|!=|[-+*/%<>(),]))",
    re.ASCII,
)
_LITERALS: dict[str, Number] = {"true": True, "false": False, "inf": math.inf, "nan": math.nan}
_KEYWORDS = ("and", "or", "not")


class _Parser:
    """Recursive-descent parser of one text; every error carries its column."""

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
