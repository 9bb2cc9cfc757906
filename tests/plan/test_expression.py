"""The arithmetic of plans: what parses, what it evaluates to, and that simplifying never changes a value."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kernel_lsp.core.expression import (
    MAX_MAGNITUDE,
    MAX_OPERATORS,
    Binary,
    Call,
    Constant,
    Expression,
    ExpressionError,
    Name,
    Unary,
    evaluate,
    free_names,
    parse,
)
from kernel_lsp.core.expression_rules import binary, substitute

NAMES = ("a", "b", "c", "T")
ARITHMETIC = ("+", "-", "*", "//", "%")
LOGIC = ("<", "<=", ">", ">=", "==", "!=", "and", "or")

leaves = st.one_of(
    st.sampled_from(NAMES).map(Name),
    st.integers(-8, 80).map(Constant),
    st.sampled_from((1, 2, 32, 64)).map(Constant),
)


def trees(operators: tuple[str, ...], leaf: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    def grow(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
        return st.one_of(
            st.builds(Binary, st.sampled_from(operators), inner, inner),
            st.builds(Call, st.just("ceil_div"), st.tuples(inner, inner)),
            st.builds(Call, st.sampled_from(("min", "max")), st.lists(inner, min_size=1, max_size=3).map(tuple)),
            inner.filter(lambda tree: not isinstance(tree, Constant)).map(lambda tree: Unary("-", tree)),
        )

    return st.recursive(leaf, grow, max_leaves=12)


integer_trees = trees(ARITHMETIC, leaves)
any_trees = trees((*ARITHMETIC, "/", *LOGIC), leaves | st.floats().map(Constant) | st.booleans().map(Constant))


def check(text: str, expected: object, **values: float) -> None:
    found = evaluate(parse(text), values)
    assert found == expected
    assert type(found) is type(expected)


def check_simplified(text: str, expected: str) -> None:
    assert str(substitute(parse(text), {})) == expected


def check_error(text: str, column: int, words: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert caught.value.column == column
    assert words in caught.value.message


def test_precedence_is_that_of_python() -> None:
    check("1 + 2 * 3 - 4 // 3 % 2", 6)


def test_floor_division_rounds_down_for_negative_numbers() -> None:
    check("-7 // 2", -4)


def test_ceil_div_rounds_up() -> None:
    check("ceil_div(n, 4)", 3, n=9)


def test_a_comparison_is_a_bool() -> None:
    check("n % 4 == 0 and not n > 8", True, n=8)


def test_slash_divides_floats() -> None:
    check("1 / 4", 0.25)


def test_min_and_max_take_any_number_of_values() -> None:
    check("min(3, max(1, 2, n))", 3, n=7)


def test_one_and_true_are_different_literals() -> None:
    assert parse("1") != parse("true")
    assert parse("1") != parse("1.0")


def test_nan_is_the_same_literal_as_nan() -> None:
    assert parse("-nan") == parse("nan")
    assert hash(parse("-nan")) == hash(parse("nan"))


def test_an_unknown_character_is_located() -> None:
    check_error("a + $", 4, "'$'")


def test_an_unknown_function_is_located() -> None:
    check_error("1 + sqrt(2)", 4, "no function 'sqrt'")


def test_an_open_parenthesis_is_located() -> None:
    check_error("(a + 1", 6, "not closed")


def test_a_chain_longer_than_the_limit_is_refused() -> None:
    check_error(" + ".join(["a"] * (MAX_OPERATORS + 2)), 4 * MAX_OPERATORS + 2, f"more than {MAX_OPERATORS}")


def test_the_longest_chain_can_be_walked_compared_and_simplified() -> None:
    text = " + ".join(["a"] * (MAX_OPERATORS + 1))
    assert parse(text) == parse(f"{text} ")
    assert str(substitute(parse(text), {})) == text
    assert evaluate(parse(text), {"a": 1}) == MAX_OPERATORS + 1


def test_an_integer_past_64_bits_is_refused() -> None:
    check_error("9223372036854775808", 0, "64 bits")
    with pytest.raises(ExpressionError, match="64 bits"):
        evaluate(parse("a * a"), {"a": 1 << 40})


def test_division_by_zero_is_an_expression_error() -> None:
    with pytest.raises(ExpressionError, match="division by zero"):
        evaluate(parse("4 // n"), {"n": 0})


def test_simplifying_a_division_by_zero_keeps_it() -> None:
    check_simplified("ceil_div(4, 0) + 4 // 0", "ceil_div(4, 0) + 4 // 0")


def test_a_quotient_splits_a_sum_into_divisible_terms_and_the_rest() -> None:
    check_simplified("(i * (T * 64) + j * 64 + k) // 64", "i * T + j + k // 64")


def test_a_remainder_drops_every_divisible_term() -> None:
    check_simplified("(i * (T * 64) + j * 64 + k) % 64", "k % 64")
    check_simplified("(k - j * D + D) % D", "k % D")


def test_a_sum_of_divisible_terms_divides_without_a_rest() -> None:
    check_simplified("(128 * i - 64) // 64", "i * 2 - 1")


def test_a_sum_starts_with_a_term_that_is_not_negative() -> None:
    check_simplified("(k - j * 64) // 64", "k // 64 - j")


def test_floats_are_not_regrouped() -> None:
    check_simplified("(0.5 * n) // n", "0.5 * n // n")
    check_simplified("n / 3 * 2 * 3", "n / 3 * 2 * 3")


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(any_trees)
def test_printing_and_parsing_again_gives_the_same_tree(tree: Expression) -> None:
    once = parse(str(tree))
    assert parse(str(once)) == once
    assert free_names(once) == free_names(tree)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(integer_trees)
def test_a_tree_of_integers_is_printed_exactly(tree: Expression) -> None:
    assert parse(str(tree)) == tree


@pytest.mark.parametrize("text", ["(38 - T) // 2", "(4 - T) % 2"])
def test_what_is_left_of_a_difference_is_split_no_further(text: str) -> None:
    given = parse(text)
    assert all(evaluate(substitute(given, {}), {"T": t}) == evaluate(given, {"T": t}) for t in range(-5, 50))


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(integer_trees, st.tuples(*[st.integers(-40, 200)] * len(NAMES)))
def test_simplifying_keeps_the_value_for_all_integers(tree: Expression, sizes: tuple[int, ...]) -> None:
    values = dict(zip(NAMES, sizes, strict=True))
    try:
        expected = evaluate(tree, values)
    except ExpressionError:
        assume(False)
    assert evaluate(substitute(tree, {}), values) == expected


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from("+-"), leaves, leaves), min_size=1, max_size=5),
    st.one_of(st.sampled_from((2, 32, 64)).map(Constant), st.just(Name("T"))),
    st.tuples(*[st.integers(-40, 200)] * len(NAMES)),
)
def test_splitting_index_sums_keeps_quotient_and_remainder(
    terms: list[tuple[str, Expression, Expression]], divisor: Expression, sizes: tuple[int, ...]
) -> None:
    values = dict(zip(NAMES, sizes, strict=True))
    assume(values["T"] != 0)
    total: Expression = Constant(3)
    for sign, left, right in terms:
        total = Binary(sign, total, Binary("*", left, Binary("*", right, divisor)))
    total = Binary("+", total, Name("a"))
    for operator in ("//", "%"):
        assert evaluate(binary(operator, substitute(total, {}), divisor), values) == evaluate(
            Binary(operator, total, divisor), values
        )


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(alphabet="ab01.e+-*/%<>=!(), andornotminceil_div\t", max_size=80) | st.text(max_size=200))
def test_any_text_gives_an_expression_or_a_located_error(text: str) -> None:
    assert 0 <= fault_column(text) <= len(text)


def fault_column(text: str) -> int:
    """Return where the text stops being an expression that has a value with every name at 3; 0 for none."""
    try:
        expression = parse(text)
        value = evaluate(expression, dict.fromkeys(free_names(expression), 3))
    except ExpressionError as error:
        return error.column
    assert isinstance(value, float) or abs(value) < MAX_MAGNITUDE
    return 0
