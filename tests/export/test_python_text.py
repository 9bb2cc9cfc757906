"""Expressions as Python, and brackets as the formatter lays them out."""

from __future__ import annotations

import ast
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp.core.expression import (
    COMPARISONS,
    Binary,
    Call,
    Constant,
    Expression,
    ExpressionError,
    Name,
    Unary,
    evaluate,
    parse,
)
from kernel_lsp.export.python.python_text import (
    LINE_LENGTH,
    bracketed,
    literal,
    may_divide_by_zero,
    python_expression,
    python_identifier,
    returned,
    string_literal,
    unpacked,
)
from kernel_lsp.worker.shipped.operator_support import ceil_div

LEAVES = st.one_of(st.integers(-40, 40).map(Constant), st.booleans().map(Constant), st.sampled_from("BDN").map(Name))


def grow(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    operators = ("+", "-", "*", "/", "//", "%", "and", "or", *COMPARISONS)
    return st.one_of(
        st.builds(Binary, st.sampled_from(operators), inner, inner),
        st.builds(Unary, st.sampled_from(("-", "not")), inner),
        st.builds(lambda f, a, b: Call(f, (a, b)), st.sampled_from(("min", "max", "ceil_div")), inner, inner),
    )


EXPRESSIONS = st.recursive(LEAVES, grow, max_leaves=12)
VALUES = st.fixed_dictionaries({name: st.integers(0, 50) for name in "BDN"})


@given(EXPRESSIONS, VALUES)
def test_python_gives_the_value_of_the_expression(expression: Expression, values: dict[str, int]) -> None:
    try:
        expected = evaluate(expression, values)
    except (ExpressionError, OverflowError):
        return
    found = eval(python_expression(expression), {"ceil_div": ceil_div}, dict(values))
    assert _equal(found, expected)


@given(EXPRESSIONS, VALUES)
def test_what_cannot_divide_by_zero_does_not(expression: Expression, values: dict[str, int]) -> None:
    if not may_divide_by_zero(expression):
        try:
            eval(python_expression(expression), {"ceil_div": ceil_div}, dict(values))
        except OverflowError:
            return


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("ceil_div(N, 256)", "ceil_div(N, 256)"),
        ("ceil_div(N + 1, B * 4)", "ceil_div(N + 1, B * 4)"),
        ("min(B, 264) * 2", "min(B, 264) * 2"),
        ("D % 4 == 0 and not B > 2", "D % 4 == 0 and not B > 2"),
        ("-inf", "-math.inf"),
        ("true", "True"),
    ],
)
def test_it_reads_like_python(text: str, python: str) -> None:
    assert python_expression(parse(text)) == python


def test_names_with_another_use_get_an_underscore() -> None:
    assert python_identifier("lambda", frozenset()) == "lambda_"
    assert python_identifier("torch", frozenset({"torch"})) == "torch_"
    assert python_identifier("key", frozenset({"torch"})) == "key"


@given(st.text(max_size=30))
def test_a_string_literal_is_the_string(text: str) -> None:
    if "\r" in text or "\0" in text:
        return
    assert ast.literal_eval(string_literal(text)) == text


ITEMS = st.lists(st.from_regex(r"[a-z]{1,18}", fullmatch=True), min_size=1, max_size=14)


@given(ITEMS)
def test_no_line_is_too_long(items: list[str]) -> None:
    lines = [*bracketed("call(", items, ")"), *literal("x = (", items, ")"), *unpacked(items, "found")]
    assert all(len(line) <= LINE_LENGTH for line in lines)


@pytest.mark.parametrize("n_items", [1, 2, 7, 9, 14, 40])
def test_brackets_stand_as_the_formatter_puts_them(n_items: int) -> None:
    items = [f"argument_{number}" for number in range(n_items)]
    lines = [
        *bracketed("function_with_a_name(", items, ")"),
        *literal("some_tuple = (", items, ")"),
        *literal("some_list = [", items, "]"),
        *unpacked(items, "some_tuple"),
        "",
        "",
        "def function():",
        *(f"    {line}" for line in returned(items, depth=1)),
    ]
    check_formatted("\n".join(lines) + "\n")


def check_formatted(text: str) -> None:
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", str(LINE_LENGTH), "--diff", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def _equal(found: object, expected: object) -> bool:
    return found == expected or (_has_nan(found) and _has_nan(expected))


def _has_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
