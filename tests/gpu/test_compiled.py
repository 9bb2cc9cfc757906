"""torch.compile: which kernels it launches for a graph, and what they take."""

from __future__ import annotations

from kernel_lsp.core.task import Graph
from kernel_lsp.gpu.compiled import compiled_run
from kernel_lsp.gpu.estimate import estimate_compiled, estimate_eager
from kernel_lsp.gpu.specs import find_gpu
from tests.gpu.graphs import graph, node, tensor_type
from tests.gpu.test_eager import rms_norm

H200 = find_gpu("H200")
T = tensor_type
X = T(4096, 4096)


def check(checked: Graph, *ops: str) -> None:
    """torch.compile launches these kernels."""
    assert [kernel.op for kernel in compiled_run(checked, {}, H200).kernels] == list(ops)


def test_a_chain_is_one_kernel_that_moves_inputs_and_outputs_once() -> None:
    run = compiled_run(rms_norm(), {}, H200).kernels
    assert [kernel.n_bytes for kernel in run] == [2 * 4 * 16 * 1024 * 4096 + 4 * 4096]


def test_rms_norm_takes_what_was_measured() -> None:
    assert 0.9 <= estimate_compiled(rms_norm(), {}, H200).time_us / 127.2 <= 1.1


def test_a_library_call_splits_what_is_fused() -> None:
    square = [node("a", "relu", ("x",), X), node("p", "mm", ("a", "x"), X), node("e", "exp", ("p",), X)]
    check(graph({"x": X}, *square, node("y", "neg", ("e",), X)), "relu", "mm", "exp + neg")


def test_a_reduction_to_one_number_ends_a_kernel() -> None:
    total = node("s", "sum", ("x", [0, 1]), T(1, 1))
    check(graph({"x": X}, total, node("y", "div", ("x", "s"), X)), "sum", "div")


def test_rows_are_reduced_and_used_in_one_kernel() -> None:
    total = node("s", "sum", ("x", [1], True), T(4096, 1))
    check(graph({"x": X}, total, node("y", "div", ("x", "s"), X)), "sum + div")


def test_values_that_share_nothing_have_kernels_of_their_own() -> None:
    two = graph({"x": X, "y": X}, node("a", "relu", ("x",), X), node("b", "exp", ("y",), X))
    check(two, "relu", "exp")


def test_a_view_between_fused_nodes_moves_nothing() -> None:
    view = node("v", "permute", ("a", [1, 0]), X)
    seen = graph({"x": X}, node("a", "relu", ("x",), X), view, node("y", "exp", ("v",), X))
    assert [kernel.n_bytes for kernel in compiled_run(seen, {}, H200).kernels] == [2 * 4 * 4096 * 4096]


def test_a_fused_graph_is_no_slower_than_eager() -> None:
    assert estimate_compiled(rms_norm(), {}, H200).time_us < 0.5 * estimate_eager(rms_norm(), {}, H200).time_us
