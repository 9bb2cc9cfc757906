"""Text to expressions. Text is parsed, never passed to `eval`; every error says the column.

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
from functools import lru_cache

from kernel_lsp.core.expression import (
    COMPARISONS,
    FUNCTIONS,
    MAX_MAGNITUDE,
    Binary,
    Call,
    Constant,
    Expression,
    ExpressionError,
    Name,
    Number,
    Unary,
)

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


# --- below: tokens, and recursive descent over them

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
