"""Eager PyTorch: which kernels it launches for a graph, and what they take."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import ExpressionError
from kernel_lsp.core.task import Graph
from kernel_lsp.gpu.eager import convolution_shape, eager_run
from kernel_lsp.gpu.estimate import estimate_eager
from kernel_lsp.gpu.specs import find_gpu
from tests.gpu.graphs import graph, node, tensor_type

H200 = find_gpu("H200")
T = tensor_type


def check(checked: Graph, *ops: str, sizes: dict[str, int] | None = None) -> None:
    """Eager launches these kernels."""
    assert [kernel.op for kernel in eager_run(checked, sizes or {}, H200).kernels] == list(ops)


def within(measured_us: float, low: float, high: float, checked: Graph) -> None:
    """The estimate over the measured time is between these."""
    assert low <= estimate_eager(checked, {}, H200).time_us / measured_us <= high


def layer_norm_of_one_row() -> Graph:
    row = T(1, 64, 256, 256)
    return graph(
        {"x": row, "w": T(64, 256, 256), "b": T(64, 256, 256)},
        node("y", "native_layer_norm", ("x", [64, 256, 256], "w", "b", 1e-5), row),
    )


def rms_norm() -> Graph:
    x, row = T(16, 1024, 4096), T(16, 1024, 1)
    return graph(
        {"x": x, "w": T(4096)},
        node("p", "pow", ("x", 2), x, line="m = torch.mean(x ** 2, dim=-1, keepdim=True)"),
        node("m", "mean", ("p", [-1]), row, line="m = torch.mean(x ** 2, dim=-1, keepdim=True)"),
        node("a", "add", ("m", 1e-6), row, line="rms = torch.sqrt(m + 1e-6)"),
        node("s", "sqrt", ("a",), row, line="rms = torch.sqrt(m + 1e-6)"),
        node("d", "div", ("x", "s"), x, line="return x / rms * weight"),
        node("y", "mul", ("d", "w"), x, line="return x / rms * weight"),
    )


def test_a_pointwise_chain_is_one_kernel_per_operator() -> None:
    check(rms_norm(), "pow", "mean", "add", "sqrt", "div", "mul")


def test_views_are_free() -> None:
    x = T(8, 16)
    views = node("v", "permute", ("x", [1, 0]), T(16, 8)), node("e", "expand", ("v", [2, 16, 8]), T(2, 16, 8))
    check(graph({"x": x}, *views, node("y", "relu", ("e",), T(2, 16, 8))), "relu")


def test_an_expanded_operand_moves_only_what_it_stores() -> None:
    wide = T(1024, 1024)
    expanded = graph(
        {"x": wide, "w": T(1024)}, node("e", "expand", ("w", [1024, 1024]), wide), node("y", "mul", ("x", "e"), wide)
    )
    assert eager_run(expanded, {}, H200).kernels[0].n_bytes == 4 * (2 * 1024 * 1024 + 1024)


def test_what_decomposition_made_of_one_call_is_one_kernel() -> None:
    x, line = T(64, 64), "return F.silu(x)"
    silu = graph({"x": x}, node("s", "sigmoid", ("x",), x, line=line), node("y", "mul", ("x", "s"), x, line=line))
    check(silu, "sigmoid + mul")
    assert eager_run(silu, {}, H200).kernels[0].n_bytes == 2 * 4 * 64 * 64


def test_the_same_nodes_written_out_are_two_kernels() -> None:
    x, line = T(64, 64), "return x * torch.sigmoid(x)"
    check(
        graph({"x": x}, node("s", "sigmoid", ("x",), x, line=line), node("y", "mul", ("x", "s"), x, line=line)),
        "sigmoid",
        "mul",
    )


def test_a_loop_on_one_line_counts_every_time() -> None:
    x, line = T(64, 64), "for _ in range(3): x = torch.tanh(x)"
    check(
        graph({"x": x}, *(node(f"t{i}", "tanh", ("x" if i == 0 else f"t{i - 1}",), x, line=line) for i in range(4))),
        *["tanh"] * 4,
    )


def test_cross_entropy_is_two_kernels() -> None:
    x, row, line = T(64, 10), T(64), "return F.cross_entropy(x, targets)"
    rest = ["ne", "where", "gather", "neg", "sum", "div"]
    nodes = [node("l", "_log_softmax", ("x", 1, False), x, line=line)]
    nodes += [node(op, op, (before,), row, line=line) for before, op in pairwise(["l", *rest])]
    kernels = eager_run(graph({"x": x}, *nodes), {}, H200).kernels
    assert [kernel.op for kernel in kernels] == ["_log_softmax", " + ".join(rest)]


def test_without_lines_the_interval_reaches_down_to_one_kernel() -> None:
    x = T(4096, 4096)
    chain = graph({"x": x}, *(node(f"n{i}", "mul", (f"n{i - 1}" if i else "x", 2), x) for i in range(6)))
    estimate = estimate_eager(chain, {}, H200)
    one = estimate_eager(graph({"x": x}, node("y", "mul", ("x", 2), x)), {}, H200)
    assert estimate.n_launches == 6
    assert estimate.low_us <= one.time_us <= estimate.high_us


def test_what_a_backward_computes_again_is_not_launched() -> None:
    x, line = T(64, 64), "return torch.exp(x)"
    again = node("e", "exp", ("x",), x, line=line)
    backward = graph({"grad_out": x, "x": x}, again, node("grad_x", "mul", ("grad_out", "e"), x, line=line))
    output = backward.outputs[0].model_copy(update={"name": "grad_x"})
    check(backward.model_copy(update={"outputs": (output,)}), "mul")


def test_attention_is_one_kernel_whatever_it_was_decomposed_into() -> None:
    q, scores, line = T(8, 64, 32), T(8, 64, 64), "return F.scaled_dot_product_attention(q, q, q)"
    nodes = (
        node("s", "bmm", ("q", "k"), scores, line=line),
        node("p", "_softmax", ("s", -1, False), scores, line=line),
        node("y", "bmm", ("p", "v"), q, line=line),
    )
    check(graph({"q": q, "k": T(8, 32, 64), "v": q}, *nodes), "scaled_dot_product_attention")


def test_a_transposed_convolution_multiplies_each_input_by_its_window() -> None:
    shape = convolution_shape((2, 8, 5, 5), (8, 3, 4, 4), (2, 6, 10, 10), is_transposed=True)  # 2 groups
    assert shape.n_operations == 2 * (2 * 5 * 5) * 8 * 3 * 16


def test_a_convolution_with_bias_is_two_kernels() -> None:
    x, w, y = T(64, 1, 28, 28), T(32, 1, 3, 3), T(64, 32, 26, 26)
    check(
        graph({"x": x, "w": w, "b": T(32)}, node("y", "convolution", ("x", "w", "b"), y)),
        "convolution",
        "convolution bias",
    )


def test_operations_of_a_product_count_multiply_and_add() -> None:
    product = graph({"a": T(128, 256), "b": T(256, 64)}, node("y", "mm", ("a", "b"), T(128, 64)))
    assert estimate_eager(product, {}, H200).n_operations == 2 * 128 * 256 * 64


def test_half_precision_products_are_faster() -> None:
    def time_us(dtype: DType) -> float:
        a = T(4096, 4096, dtype=dtype)
        return estimate_eager(graph({"a": a, "b": a}, node("y", "mm", ("a", "b"), a)), {}, H200).time_us

    assert time_us(DType.BF16) < time_us(DType.F32) / 5


def test_symbolic_sizes_are_bound() -> None:
    x = T("B", "2 * D")
    relu = graph({"x": x}, node("y", "relu", ("x",), x))
    assert estimate_eager(relu, {"B": 3, "D": 5}, H200).bytes_moved == 2 * 4 * 30
    with pytest.raises(ExpressionError):
        estimate_eager(relu, {"B": 3}, H200)


def test_an_empty_tensor_takes_a_launch() -> None:
    x = T(0, 5)
    assert estimate_eager(graph({"x": x}, node("y", "_softmax", ("x", 1, False), x)), {}, H200).time_us < 5


def test_the_estimate_names_gpu_shapes_dtypes_and_date() -> None:
    estimate = estimate_eager(rms_norm(), {}, H200)
    assert (estimate.gpu, estimate.kind, estimate.bound) == ("H200", "estimated", "memory")
    assert estimate.shapes["x"] == (16, 1024, 4096)
    assert estimate.dtypes["w"] == "f32"
    assert len(estimate.date) == 10
    assert estimate.low_us < estimate.time_us < estimate.high_us


# The measured rows that are bound by memory; docs/estimates.md says which constants were fitted to them.


def test_layer_norm_of_one_long_row_takes_what_was_measured() -> None:
    within(8290, 0.9, 1.15, layer_norm_of_one_row())


def test_rms_norm_takes_what_was_measured() -> None:
    within(591, 0.9, 1.1, rms_norm())


def test_rms_norm_on_half_the_bandwidth_takes_longer() -> None:
    a100 = find_gpu("A100 80GB")
    assert estimate_eager(rms_norm(), {}, a100).time_us > 1.9 * estimate_eager(rms_norm(), {}, H200).time_us
