"""Activations that PyTorch does not decompose."""

from __future__ import annotations

from kernel_lsp.generate.ir.scalar import Scalar, compare, select
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.lowering.arithmetic import clamped, elementwise, number, op, parameter
from kernel_lsp.generate.lowering.builder import Call, lowers


@lowers("gelu")
def _gelu(call: Call) -> Tensor:
    approximate = call.node.keywords.get("approximate", call.raw(1, "approximate", "none"))
    return elementwise(call, lambda x: op("gelu_tanh" if approximate == "tanh" else "gelu", x), call.tensor(0))


@lowers("hardtanh")
def _hardtanh(call: Call) -> Tensor:
    low, high = parameter(call, 1, "min_val", -1), parameter(call, 2, "max_val", 1)
    return elementwise(call, lambda x: clamped(x, number(low, x), number(high, x)), call.tensor(0))


@lowers("leaky_relu")
def _leaky_relu(call: Call) -> Tensor:
    slope = parameter(call, 1, "negative_slope", 0.01)

    def body(x: Scalar) -> Scalar:
        return select(compare("gt", x, number(0, x)), x, op("mul", x, number(slope, x)))

    return elementwise(call, body, call.tensor(0))


@lowers("elu")
def _elu(call: Call) -> Tensor:
    alpha, scale, input_scale = call.number(1, "alpha", 1), call.number(2, "scale", 1), call.number(3, "input_scale", 1)

    def body(x: Scalar) -> Scalar:
        negative = op("mul", op("expm1", op("mul", x, number(input_scale, x))), number(alpha * scale, x))
        return select(compare("gt", x, number(0, x)), op("mul", x, number(scale, x)), negative)

    return elementwise(call, body, call.tensor(0))
