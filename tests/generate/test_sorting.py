"""Sorted rows, top-k, k-th values, medians, modes, and places in a sorted row."""

from __future__ import annotations

import numpy as np
import pytest

from tests.generate.harness import check, run, tensor

SIZES = ({}, {"B": 1, "D": 33}, {"B": 4, "D": 63})


@pytest.mark.parametrize(
    "call", ["sort(-1)", "sort(0, descending=True)", "argsort(1)", "topk(5, 1)", "topk(3, 0, largest=False)"]
)
def test_rows_and_columns_are_sorted(call: str) -> None:
    check(f"def f(x): return x.{call}", inputs=[tensor("x", 7, 40)])


@pytest.mark.parametrize(
    "call", ["kthvalue(3, 1)", "median(0)", "nanmedian(1)", "median()", "nanmedian()", "quantile(0.3, 1)"]
)
def test_the_element_of_one_rank_is_found(call: str) -> None:
    check(f"def f(x): return x.{call}", inputs=[tensor("x", 7, 40)])


def test_rows_of_any_length_up_to_the_capacity_are_sorted() -> None:
    checked = check("def f(x): return x.sort(1)", inputs=[tensor("x", 5, 40)], sizes=SIZES)
    assert "where: D <= 64" in checked.text


def test_rows_beyond_shared_memory_are_ranked() -> None:
    checked = check("def f(x): return x.sort(1)[1]", inputs=[tensor("x", 1, 5000)], sizes=({}, {"B": 3, "D": 300}))
    assert "elements that come before it" in checked.text


@pytest.mark.parametrize(("call", "dtype"), [("topk(4, 1)", "f32"), ("topk(300, 1, largest=False)", "f16")])
def test_the_first_of_long_rows_are_collected(call: str, dtype: str) -> None:
    inputs = [tensor("x", 2, 5000, dtype=dtype)]
    checked = check(f"def f(x): return x.{call}", inputs=inputs, sizes=({}, {"B": 3, "D": 301}))
    assert "A block keeps the elements" in checked.text


def test_the_first_of_equal_elements_in_long_rows_are_the_first_places() -> None:
    checked = check("def f(x): return x.topk(4, 1)", inputs=[tensor("x", 2, 5000)])
    assert run(checked, {"x": np.zeros((2, 5000), np.float32)})["out_1"].tolist() == [[0, 1, 2, 3]] * 2


def test_nan_is_the_largest_value_and_the_median_of_its_row() -> None:
    text = "def f(x): return x.log().sort(1)[0], x.log().topk(5, 1)[0], x.log().median(1)[0], x.log().nanmedian(1)[0]"
    check(text, inputs=[tensor("x", 6, 20)])


def test_equal_elements_keep_their_order_where_asked_for() -> None:
    inputs = [tensor("n", 5, 40, dtype="i64", within=(0, 4))]
    check(
        "def f(n): return n.sort(stable=True, dim=1), torch.sort(n, stable=True, dim=1, descending=True)", inputs=inputs
    )


def test_half_precision_and_permuted_rows_are_sorted() -> None:
    check("def f(x): return x.transpose(0, 1).sort(1)[0]", inputs=[tensor("x", 9, 3, 20, dtype="f16")])


def test_the_most_frequent_value_is_the_smallest_of_equals() -> None:
    check("def f(n): return n.mode(1)[0]", inputs=[tensor("n", 6, 30, dtype="i64", within=(0, 6))])


def test_places_in_sorted_boundaries() -> None:
    text = "def f(x, y, z): return torch.searchsorted(x.sort(1)[0], y), torch.bucketize(x, z.sort()[0], right=True)"
    check(text, inputs=[tensor("x", 5, 20), tensor("y", 5, 7), tensor("z", 12)])


@pytest.mark.parametrize("call", ["topk(5, 1)[0]", "sort(0)[0]", "median(1)[0]", "kthvalue(2, 1)[0]"])
def test_gradients_go_to_the_selected_elements(call: str) -> None:
    check(f"def f(x): return x.{call}", inputs=[tensor("x", 6, 20)], backward=True)
