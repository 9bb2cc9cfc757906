"""Check which values stand in for a number, and which numbers are left alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from kernel_lsp.core.task import ScalarInput, TargetSource
from kernel_lsp.verify.session.scalar_mutation import (
    DYADIC,
    FRACTIONS,
    NEGATIVE,
    VAST,
    ZERO,
    Change,
    Value,
    changed,
    changed_numbers,
)

ALL = (*DYADIC, *FRACTIONS, *NEGATIVE, *VAST, *ZERO)


def source_of(*given: ScalarInput) -> TargetSource:
    return TargetSource(
        target="task.py::f",
        file="task.py",
        symbol="f",
        kind="function",
        line=1,
        parameters=(),
        inputs=given,
        has_get_inputs=False,
        example_pragma="",
    )


def other(
    change: Change, *values: Value, is_taken: Callable[[str, Value], bool] = lambda *_: True
) -> list[float | int | bool]:
    """Return a task of numbers n0, n1, ..., and of one more that the plan does not take."""
    given = [ScalarInput(name=f"n{i}", value=value) for i, value in enumerate(values)]
    left = ScalarInput(name="left", value=0.5)
    after = changed(source_of(*given, left), [number.name for number in given], change, is_taken).inputs or ()
    assert after[-1] == left
    found = [number.value for number in after[:-1] if isinstance(number, ScalarInput)]
    assert [type(value) for value in found] == [type(value) for value in values]
    return found


@pytest.mark.parametrize(("value", "expected"), [(0.5, 0.15), (-0.5, -0.15), (0.0, 0.3), (2.0, 0.3), (-1e9, -0.3)])
def test_a_fraction_is_below_one_and_of_the_same_sign(value: float, expected: float) -> None:
    assert other(FRACTIONS[0], value) == [pytest.approx(expected)]


def test_a_fraction_is_none_that_narrow_types_hold() -> None:
    [found] = other(FRACTIONS[0], 3.0)
    assert isinstance(found, float)
    n_halves = found * 2.0**20
    assert not n_halves.is_integer()


@pytest.mark.parametrize(("value", "expected"), [(0.5, -0.15), (-0.5, 0.15), (0.0, -1.3), (20.0, -1.3)])
def test_the_other_sign_is_of_no_large_numbers(value: float, expected: float) -> None:
    assert other(NEGATIVE[0], value) == [pytest.approx(expected)]


def test_large_numbers_are_far_beyond_one_and_keep_their_sign() -> None:
    first, second = other(VAST[0], 0.5, -3.0)
    assert first > 10_000
    assert second < -10_000


@pytest.mark.parametrize("change", [*FRACTIONS, *NEGATIVE, *VAST])
@pytest.mark.parametrize("values", [(1.0, 1.0), (-1.0, 1.0), (0.0, 0.0, 0.0), (0.5, 1.0, 0.5, -0.5)])
def test_floats_that_are_equal_or_opposite_become_neither(change: Change, values: tuple[float, ...]) -> None:
    found = [abs(value) for value in other(change, *values)]
    assert len(set(found)) == len(values)


@pytest.mark.parametrize("change", [FRACTIONS[0], NEGATIVE[0], VAST[0]])
@pytest.mark.parametrize("values", [(8, 8), (0, 0), (-3, 3), (4, 20), (2, 1, 2)])
def test_whole_numbers_that_are_equal_or_opposite_become_neither(change: Change, values: tuple[int, ...]) -> None:
    found = [abs(value) for value in other(change, *values)]
    assert len(set(found)) == len(values)


def test_whole_numbers_are_one_more_or_far_away_or_change_their_sign() -> None:
    assert other(FRACTIONS[0], 3, 7) == [4, 8]
    assert other(VAST[0], 3) == [1004]
    assert other(NEGATIVE[0], 0, 3, -1) == [-1, -4, 0]
    assert other(ZERO[0], 8, 8, 0) == [1, 2, 0]


def test_limits_change_places_or_stay_in_order() -> None:
    reverse, in_order = other(NEGATIVE[0], -0.5, 0.75), other(NEGATIVE[1], -0.5, 0.75)
    assert reverse[0] > reverse[1]
    assert in_order == reverse[::-1]


def test_two_truth_values_change_together_and_then_apart() -> None:
    assert other(NEGATIVE[0], True, False, True) == [False, True, False]
    assert other(ZERO[0], True, False, True) == [True, True, True]
    assert other(FRACTIONS[0], True, False) == [True, False]


@pytest.mark.parametrize("change", ALL)
def test_a_guard_against_division_by_zero_stays_small_and_is_not_zero(change: Change) -> None:
    [found] = other(change, 1e-6)
    assert 0.0 < abs(found) < 2.0
    assert found > -1e-6


def test_a_guard_becomes_far_smaller_and_small_inputs_show_it() -> None:
    [found] = other(FRACTIONS[0], 1e-5)
    assert isinstance(found, float)
    assert 1e-9 < found < 1e-8
    assert FRACTIONS[0].guard_families == ("tiny",)


def test_a_step_becomes_a_power_of_two_nearby() -> None:
    for value in (0.05, 3.0, -0.7, 255.0):
        [found] = other(DYADIC[0], value)
        mantissa, _ = math.frexp(abs(found))
        assert mantissa == 0.5
        assert value / 128 < found < value or value < found < value / 128
    assert other(DYADIC[0], 0.0, 3, True) == [0.0, 3, True]
    assert DYADIC[0].families == ("halves",)


def test_an_ordinary_number_becomes_zero() -> None:
    assert other(ZERO[0], 2.0, 0.5, 1e-6)[:2] == [0.0, 0.0]


def test_a_probability_stays_one_where_others_go_far() -> None:
    beyond, share = other(NEGATIVE[2], 2.0, 0.5)
    assert beyond < 0.0
    assert 0.4 < share < 0.5


@pytest.mark.parametrize("change", ALL)
def test_an_infinity_stays(change: Change) -> None:
    assert other(change, math.inf) == [math.inf]


def test_what_is_not_taken_stays_nearby_or_what_it_is() -> None:
    assert other(NEGATIVE[0], 2.0, 2.0, is_taken=lambda name, value: name == "n1" or value > 1.0)[0] == pytest.approx(
        1.94
    )
    assert other(NEGATIVE[0], 2.0, 5, True, is_taken=lambda *_: False) == [2.0, 5, True]


def test_what_changed_is_told_before_and_after() -> None:
    before = ScalarInput(name="a", value=0.5)
    source = source_of(before, ScalarInput(name="b", value=True))
    after = changed(source, ["a", "b"], FRACTIONS[0], lambda *_: True)
    assert changed_numbers(source, after) == [(before, ScalarInput(name="a", value=0.15))]
