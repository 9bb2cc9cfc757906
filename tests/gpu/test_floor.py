"""Check what a graph must read and write, whatever kernel computes it."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import TensorType
from kernel_lsp.gpu.floor import EMPTY_KERNEL_US, added_bases, graph_bytes, graph_floor, shown_floor
from kernel_lsp.gpu.specs import find_gpu
from tests.gpu.graphs import graph, node, tensor_type

H200 = find_gpu("H200")
ROWS, COLUMNS = 512, 4096
MATRIX, COLUMN, ONE = tensor_type(ROWS, COLUMNS), tensor_type(ROWS, 1), tensor_type()
INDICES = tensor_type(ROWS, 1, dtype=DType.I64)
MATRIX_BYTES, COLUMN_BYTES, INDEX_BYTES = 4 * ROWS * COLUMNS, 4 * ROWS, 8 * ROWS


def traffic(inputs: dict[str, TensorType], *nodes: Any) -> int:
    return graph_bytes(graph(inputs, *nodes), {})


def test_a_pointwise_graph_reads_its_inputs_and_writes_its_output() -> None:
    nodes = (node("y", "exp", ("x",), MATRIX), node("z", "mul", ("y", "c"), MATRIX))
    assert traffic({"x": MATRIX, "c": COLUMN}, *nodes) == 2 * MATRIX_BYTES + COLUMN_BYTES


def test_a_choice_by_a_mask_reads_all_it_may_choose() -> None:
    mask = tensor_type(ROWS, COLUMNS, dtype=DType.BOOL)
    found = traffic({"m": mask, "x": MATRIX}, node("y", "where", ("m", "x", 0.0), MATRIX))
    assert found == 2 * MATRIX_BYTES + ROWS * COLUMNS


def test_an_input_that_nothing_reads_costs_nothing() -> None:
    assert traffic({"x": COLUMN, "bias": MATRIX}, node("y", "relu", ("x",), COLUMN)) == 2 * COLUMN_BYTES


def test_of_a_table_only_the_rows_that_are_looked_up_are_read() -> None:
    table, few = tensor_type(1 << 20, 64), tensor_type(8, 64)
    found = traffic({"t": table, "i": tensor_type(8, dtype=DType.I64)}, node("y", "embedding", ("t", "i"), few))
    assert found == 2 * 4 * 8 * 64 + 8 * 8


def test_rows_that_are_looked_up_often_are_read_once() -> None:
    many = tensor_type(1 << 20, 64)
    inputs = {"t": tensor_type(8, 64), "i": tensor_type(1 << 20, dtype=DType.I64)}
    assert traffic(inputs, node("y", "embedding", ("t", "i"), many)) == 4 * 8 * 64 + 8 * (1 << 20) + 4 * 64 * (1 << 20)


@pytest.mark.parametrize("op", ["_log_softmax", "cumsum"])
def test_one_element_of_each_row_needs_the_row(op: str) -> None:
    nodes = (node("y", op, ("x", 1), MATRIX), node("z", "gather", ("y", 1, "i"), COLUMN))
    assert traffic({"x": MATRIX, "i": INDICES}, *nodes) == MATRIX_BYTES + COLUMN_BYTES + INDEX_BYTES


def test_one_element_of_each_row_of_a_pointwise_result_needs_no_more() -> None:
    nodes = (node("y", "exp", ("x",), MATRIX), node("z", "gather", ("y", 1, "i"), COLUMN))
    assert traffic({"x": MATRIX, "i": INDICES}, *nodes) == 2 * COLUMN_BYTES + INDEX_BYTES


def test_what_is_cut_away_is_not_read() -> None:
    nodes = (node("y", "exp", ("x",), MATRIX), node("z", "slice", ("y", 0, 0, 8), tensor_type(8, COLUMNS)))
    assert traffic({"x": MATRIX}, *nodes) == 2 * 4 * 8 * COLUMNS


def test_halves_make_a_whole_and_no_more() -> None:
    half = tensor_type(ROWS, COLUMNS // 2)
    halves = [node(name, "slice", ("x", 1, 0, COLUMNS // 2), half) for name in ("a", "b", "c")]
    product = (node("ab", "mul", ("a", "b"), half), node("abc", "mul", ("ab", "c"), half))
    assert traffic({"x": MATRIX}, *halves, *product) == MATRIX_BYTES + MATRIX_BYTES // 2


def test_what_only_lends_its_shape_is_not_read() -> None:
    assert traffic({"x": MATRIX}, node("y", "zeros_like", ("x",), MATRIX)) == MATRIX_BYTES


def test_small_work_is_shown_a_launch_as_its_floor() -> None:
    small = graph({"x": ONE}, node("y", "exp", ("x",), ONE))
    assert graph_floor(small, {}, H200, 1).time_us < 0.001
    assert shown_floor(small, {}, H200, 1).time_us == EMPTY_KERNEL_US


@pytest.mark.parametrize(("gpu", "rate"), [("H200", 494.7e12 / 3), ("V100", find_gpu("V100").f32_rate)])
def test_products_of_f32_may_be_three_of_tf32(gpu: str, rate: float) -> None:
    square = tensor_type(4096, 4096)
    product = graph({"a": square, "b": square}, node("c", "mm", ("a", "b"), square))
    n_operations = 2 * 4096**3
    assert graph_floor(product, {}, find_gpu(gpu), n_operations).time_us == pytest.approx(
        n_operations / rate * 1e6, rel=0.01
    )


def test_a_limit_of_forward_and_backward_is_named_once() -> None:
    assert added_bases(["8 MB", "8 MB", "16 MB"]) == "2 x (8 MB) + 16 MB"
    assert added_bases(["8 MB"]) == "8 MB"
