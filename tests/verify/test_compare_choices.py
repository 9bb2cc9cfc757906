"""Places of elements that were chosen: of equal ones any is right, and no other place is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.process.case_files import CaseTensor, ChosenFrom, Rounding
from kernel_lsp.verify.oracle.compare import Choice, Expectation, choice_total, compare, is_within_budget

VALUES = np.array([[0.0, 9.0, 9.0, 1.0, 9.0], [4.0, 3.0, 2.0, 1.0, 0.0]])


TIES = np.array([[True, True], [False, False]])


def choice_of(
    values: np.ndarray, dim: int = 1, unit: float = 1e-9, *, each_once: bool = True, ties: np.ndarray = TIES
) -> Choice:
    file = CaseTensor("i", Path("nowhere"), DType.F64, values.shape)
    return Choice(values, ties, ChosenFrom(file, file, dim, unit, least=1.0, each_once=each_once))


CHOICE = choice_of(VALUES)
REFERENCE = np.array([[1, 2], [0, 1]])
NATIVE = np.array([[1, 4], [0, 1]])


def n_wrong(found: list[list[int]], choice: Choice = CHOICE, written: np.ndarray | None = None) -> int:
    return choice_total(choice, np.array(found), REFERENCE, written).n_wrong


@pytest.mark.parametrize("row", [[1, 2], [2, 1], [4, 1], [2, 4]])
def test_any_of_equal_elements_is_right(row: list[int]) -> None:
    assert n_wrong([row, [0, 1]]) == 0


@pytest.mark.parametrize(("row", "n"), [([1, 3], 1), ([0, 1], 1), ([-7, 5], 2), ([1, 123456], 1), ([-1, -1], 2)])
def test_another_element_is_wrong_and_what_is_no_place(row: list[int], n: int) -> None:
    assert n_wrong([row, [0, 1]]) == n


def test_a_place_is_given_once_unless_each_row_is_a_choice_of_its_own() -> None:
    assert n_wrong([[2, 2], [0, 1]]) == 2
    assert n_wrong([[2, 2], [0, 1]], choice_of(VALUES, each_once=False)) == 0


def test_what_was_not_written_is_not_looked_at() -> None:
    written = np.array([[True, False], [True, True]])
    assert n_wrong([[2, 2], [0, 1]], written=written) == 0
    assert n_wrong([[3, 2], [0, 1]], written=written) == 1
    assert n_wrong([[3, 2], [0, 1]], written=written.reshape(-1)) == 1


def test_places_that_are_decided_are_left_to_others() -> None:
    assert n_wrong([[1, 2], [7, 7]]) == 0


def test_nearly_equal_is_equal_as_far_as_the_values_are_rounded() -> None:
    near = np.where(np.arange(5) == 2, VALUES + 1e-6, VALUES)
    assert n_wrong([[2, 4], [0, 1]], choice_of(near, unit=1e-6)) == 0
    assert n_wrong([[2, 4], [0, 1]], choice_of(near)) == 2


@pytest.mark.parametrize("dim", [0, 1])
def test_an_output_may_be_without_the_dimension_or_go_along_another(dim: int) -> None:
    values = VALUES if dim == 1 else VALUES.T
    one = choice_of(values, dim, each_once=False, ties=np.array([True, True]))
    reference = np.array([1, 0])
    assert choice_total(one, np.array([4, 0]), reference, None).n_wrong == 0
    assert choice_total(one, np.array([0, 0]), reference, None).worst == 0
    assert choice_total(one, np.array([4, 1]), reference, None).worst == 1


def test_of_a_single_place_none_is_there_twice() -> None:
    choice = choice_of(VALUES, ties=np.array([[True], [True]]))
    assert choice_total(choice, np.array([[4], [0]]), np.array([[1], [0]]), None).n_wrong == 0


@pytest.mark.parametrize(("found", "is_right"), [([[4, 2], [0, 1]], True), ([[4, 3], [0, 1]], False)])
def test_a_choice_is_a_part_of_what_is_right(found: list[list[int]], is_right: bool) -> None:
    expected = Expectation("i", DType.I64, REFERENCE, NATIVE, Rounding(4, 1.0, 0.0, 0.0, 0.0, 0.0), chosen=CHOICE)
    error = compare(np.array(found), expected, factor=2.0)
    assert is_within_budget(error) is is_right
    assert (error.worst_index, error.expected, error.found) == ((None,) * 3 if is_right else ((0, 1), 2.0, 3.0))
    assert error.n_elements == 4


def test_the_order_of_equal_elements_is_wrong_at_decided_places_beside_open_ones() -> None:
    expected = Expectation("i", DType.I64, REFERENCE, NATIVE, Rounding(4, 1.0, 0.0, 0.0, 0.0, 0.0), chosen=CHOICE)
    assert compare(np.array([[1, 2], [1, 0]]), expected, factor=2.0).n_wrong == 2
