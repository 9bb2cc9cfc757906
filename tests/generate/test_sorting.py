"""Sorted rows, top-k, k-th values, medians, modes, and places in a sorted row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

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


@pytest.mark.parametrize(("call", "dtype"), [("topk(4, 1)", "f64"), ("topk(300, 1, largest=False)", "f16")])
def test_the_first_of_long_rows_are_collected(call: str, dtype: str) -> None:
    inputs = [tensor("x", 2, 5000, dtype=dtype)]
    checked = check(f"def f(x): return x.{call}", inputs=inputs, sizes=({}, {"B": 3, "D": 301}))
    assert "A block keeps the elements" in checked.text


def special_rows(length: int) -> dict[str, np.ndarray]:
    """Return rows in which ties, NaN, infinities or the places of the first elements are special."""
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(length)
    in_few_lists = np.arange(length) // 4 % 256 < 64
    return {
        "ascending": np.arange(length, dtype=float),
        "descending": -np.arange(length, dtype=float),
        "equal": np.ones(length),
        "three values": rng.integers(0, 3, length),
        "NaN": np.where(rng.random(length) < 0.3, np.nan, normal),
        "only NaN": np.full(length, np.nan),
        "infinite": np.where(np.arange(length) == length // 2, 1.0, -np.inf),
        "zeros of both signs": np.where(rng.random(length) < 0.5, 0.0, -0.0),
        "largest in few lists": np.where(in_few_lists, 9 + normal, -9 + normal),
        "smallest in few lists": np.where(in_few_lists, -9 + normal, 9 + normal),
    }


SELECTIONS = [
    (128, 4, True, {}),
    (999, 5, False, {}),
    (96, 64, True, {}),
    (5000, 8, True, {}),
    (5001, 64, False, {}),
    (9000, 64, True, {"threads": 64}),
    (9000, 64, False, {"threads": 64, "lists": 1}),
    (500, 40, True, {}),
]


@pytest.mark.parametrize(("length", "k", "largest", "schedule"), SELECTIONS)
def test_selected_elements_are_those_of_a_stable_sort(length: int, k: int, largest: bool, schedule: dict) -> None:
    text = f"def f(x): return x.topk({k}, 1, largest={largest})"
    knobs = {f"f.{name}": value for name, value in schedule.items()}
    checked = check(text, inputs=[tensor("x", 2, length)], schedule=knobs, sizes=({}, {"B": 3, "D": length // 2 + k}))
    assert "where: D" not in checked.text, "a selection serves rows of any length"
    rows = np.stack([*special_rows(length).values()]).astype(np.float32)
    found = run(checked, {"x": rows})
    expected = torch.sort(torch.from_numpy(rows), dim=1, descending=largest, stable=True).indices[:, :k].numpy()
    assert found["out_1"].tolist() == expected.tolist()
    np.testing.assert_array_equal(found["out_0"], np.take_along_axis(rows, expected, 1))


@pytest.mark.parametrize("dtype", ["bf16", "f16", "i32", "u8"])
def test_elements_of_every_small_type_are_selected(dtype: str) -> None:
    checked = check(
        "def f(x): return x.topk(3, 1)[0], x.topk(3, 1, largest=False)[0]", inputs=[tensor("x", 5, 3000, dtype=dtype)]
    )
    assert "A block deals the packs" in checked.text


def test_a_small_rank_in_long_rows_is_selected() -> None:
    checked = check("def f(x): return x.kthvalue(3, 0)", inputs=[tensor("x", 3000, 4)])
    assert "A block deals the packs" in checked.text


def test_the_first_of_equal_elements_in_long_rows_are_the_first_places() -> None:
    checked = check("def f(x): return x.topk(4, 1)", inputs=[tensor("x", 2, 5000)])
    assert run(checked, {"x": np.zeros((2, 5000), np.float32)})["out_1"].tolist() == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("shape", [(1000,), (1, 100), (2, 3, 100)])
def test_the_first_element_and_its_place_take_one_launch(shape: tuple[int, ...]) -> None:
    checked = check("def f(x): return x.topk(1, -1)", inputs=[tensor("x", *shape)])
    assert "topk_places" not in checked.text


@pytest.mark.parametrize("call", ["topk(8, 1)", "topk(80, 1)", "sort(1)"])
def test_places_in_tensors_beyond_int_indices_are_ints(call: str) -> None:
    checked = check(f"def f(x): return x.{call}", inputs=[tensor("x", 90000, 32768)], sizes=({"B": 3, "D": 5000},))
    assert "where: D <= 1073741824" in checked.text


def test_a_thread_that_keeps_no_short_row_has_at_most_eight_lists() -> None:
    way = {"f.vector": 4, "f.lists": 16}
    checked = check("def f(x): return x.topk(4, 1)", inputs=[tensor("x", 3, 128)], schedule=way)
    assert "to 8 lists per thread" in checked.text


def test_no_elements_of_long_rows_are_wanted() -> None:
    check("def f(x): return x.topk(0, -1)", inputs=[tensor("x", 3, 5000)])


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


def test_what_the_order_of_equal_elements_decides_is_unspecified() -> None:
    """The load of an expert where gates are equal, and the gradients of equal elements of which one is selected."""
    text = """
    def f(x):
        top, places = x.topk(2, -1)
        return F.one_hot(places, 8).to(x.dtype).sum(1).mean(0) * top.sum()
    """
    check(text, inputs=[tensor("x", 6, 8)], families=("normal", "small_integers", "constant_rows"))
    for call in ("x.topk(3, -1).values", "x.sort(-1).values * 2", "x.median(-1).values"):
        check(
            f"def f(x): return {call}",
            inputs=[tensor("x", 6, 33, dtype="bf16")],
            backward=True,
            families=("normal", "small_integers"),
        )


def test_gates_that_are_nan_are_equal_too() -> None:
    """The order of a row of NaN decides the load, which is in the gradients of all rows."""
    text = """
    def f(x):
        gates = x.softmax(-1)
        load = F.one_hot(gates.topk(2, -1).indices, 4).to(x.dtype).mean((0, 1))
        return (load * gates.mean(0)).sum()
    """
    check(text, inputs=[tensor("x", 12, 4)], backward=True, families=("normal", "special_nan"))
