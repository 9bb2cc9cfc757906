"""Which values stand in for a number, and which numbers are left alone."""

from __future__ import annotations

import math

import pytest

from kernel_lsp.core.target import ScalarInput, TargetSource
from kernel_lsp.evaluate.number_changes import Change, beyond_one, changed_numbers, far, nearby, turned


def changed(change: Change, *values: float | int | bool) -> list[float | int | bool]:
    """Of numbers n0, n1, ..., and of one more that the plan does not take."""
    given = [ScalarInput(name=f"n{i}", value=value) for i, value in enumerate(values)]
    names = [number.name for number in given]
    source = TargetSource(
        target="task.py::f",
        file="task.py",
        symbol="f",
        kind="function",
        line=1,
        parameters=(),
        inputs=(*given, ScalarInput(name="other", value=0.5)),
        has_get_inputs=False,
        example_pragma="",
    )
    after = change(source, names).inputs or ()
    assert after[-1] == ScalarInput(name="other", value=0.5)
    return [number.value for number in after[:-1] if isinstance(number, ScalarInput)]


@pytest.mark.parametrize(("value", "other"), [(0.5, 1.5), (-0.5, -1.5), (0.0, 1.0), (2.0, 1.5), (-1e9, -7.5e8), (3, 4)])
def test_a_fraction_becomes_larger_than_one_and_a_whole_number_one_more(value: float, other: float) -> None:
    assert changed(beyond_one, value) == [other]
    assert type(changed(beyond_one, value)[0]) is type(value)


def test_a_nearby_number_is_of_the_same_kind() -> None:
    assert changed(nearby, 0.5, 0.0, 3, True) == [0.375, 0.25, 3, True]


def test_limits_change_places_and_a_single_number_is_zero() -> None:
    assert changed(turned, -0.5, 0.75) == [0.75, -0.5]
    assert changed(turned, 2.0) == [0.0]


def test_a_guard_against_division_by_zero_does_not_become_zero() -> None:
    assert changed(turned, 1e-6) == [0.75e-6]


def test_whole_numbers_change_their_sign_and_truth_values_are_the_other() -> None:
    assert changed(turned, 0, 3, -1, True, False) == [-1, -4, 0, False, True]


def test_far_numbers_are_larger_than_small_sizes() -> None:
    assert changed(far, 3, 0.5, True) == [1004, 1.5, True]


def test_an_infinity_that_stays_is_no_change() -> None:
    assert changed(beyond_one, math.inf) == [math.inf]


def test_what_changed_is_told_before_and_after() -> None:
    before = ScalarInput(name="a", value=0.5)
    source = TargetSource(
        target="t.py::f",
        file="t.py",
        symbol="f",
        kind="function",
        line=1,
        parameters=(),
        inputs=(before, ScalarInput(name="b", value=True)),
        has_get_inputs=False,
        example_pragma="",
    )
    assert changed_numbers(source, beyond_one(source, ["a", "b"])) == [(before, ScalarInput(name="a", value=1.5))]
