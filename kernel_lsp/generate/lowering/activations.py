"""Activations and their gradients."""

from __future__ import annotations

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.scalar import Scalar, both, compare, operation, select
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.lowering.arithmetic import clamped, elementwise, number, op, parameter
from kernel_lsp.generate.lowering.builder import Call
from kernel_lsp.generate.lowering.registry import lowers

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
"""Constants of SELU: Self-Normalizing Neural Networks, Klambauer et al. 2017; with ATen's digits."""


@lowers("gelu")
def _gelu(call: Call) -> Tensor:
    approximate = call.node.keywords.get("approximate", call.raw(1, "approximate", "none"))
    return elementwise(call, lambda x: op("gelu_tanh" if approximate == "tanh" else "gelu", x), call.tensor(0))


@lowers("gelu_backward")
def _gelu_backward(call: Call) -> Tensor:
    approximate = call.node.keywords.get("approximate", call.raw(2, "approximate", "none"))
    name = "gelu_tanh_derivative" if approximate == "tanh" else "gelu_derivative"
    return elementwise(call, lambda grad, x: op("mul", grad, op(name, x)), call.tensor(0), call.tensor(1))


@lowers("silu")
def _silu(call: Call) -> Tensor:
    return elementwise(call, lambda x: op("silu", x), call.tensor(0))


@lowers("silu_backward")
def _silu_backward(call: Call) -> Tensor:
    def body(grad: Scalar, x: Scalar) -> Scalar:
        s = op("sigmoid", x)
        one = number(1, x)
        return op("mul", op("mul", grad, s), op("add", one, op("mul", x, op("sub", one, s))))

    return elementwise(call, body, call.tensor(0), call.tensor(1))


@lowers("hardtanh", "relu6")
def _hardtanh(call: Call) -> Tensor:
    low, high = (0.0, 6.0) if "relu6" in call.node.op else _limits(call, 1)
    return elementwise(call, lambda x: clamped(x, number(low, x), number(high, x)), call.tensor(0))


@lowers("hardtanh_backward")
def _hardtanh_backward(call: Call) -> Tensor:
    low, high = _limits(call, 2)

    def body(grad: Scalar, x: Scalar) -> Scalar:
        is_flat = operation(
            "logical_or", DType.BOOL, compare("le", x, number(low, x)), compare("ge", x, number(high, x))
        )
        return select(is_flat, number(0, x), grad)

    return elementwise(call, body, call.tensor(0), call.tensor(1))


def _limits(call: Call, position: int) -> tuple[Scalar, Scalar]:
    return parameter(call, position, "min_val", -1), parameter(call, position + 1, "max_val", 1)


@lowers("hardsigmoid")
def _hardsigmoid(call: Call) -> Tensor:
    return elementwise(call, lambda x: _hard_sigmoid(x), call.tensor(0))


@lowers("hardswish")
def _hardswish(call: Call) -> Tensor:
    return elementwise(call, lambda x: op("mul", x, _hard_sigmoid(x)), call.tensor(0))


def _hard_sigmoid(x: Scalar) -> Scalar:
    shifted = clamped(op("add", x, number(3, x)), number(0, x), number(6, x))
    return op("div", shifted, number(6, x))


@lowers("hardsigmoid_backward")
def _hardsigmoid_backward(call: Call) -> Tensor:
    def body(grad: Scalar, x: Scalar) -> Scalar:
        inside = both(compare("gt", x, number(-3, x)), compare("lt", x, number(3, x)))
        return select(inside, op("div", grad, number(6, x)), number(0, x))

    return elementwise(call, body, call.tensor(0), call.tensor(1))


@lowers("hardswish_backward")
def _hardswish_backward(call: Call) -> Tensor:
    def body(grad: Scalar, x: Scalar) -> Scalar:
        middle = op("mul", grad, op("add", op("div", x, number(3, x)), number(0.5, x)))
        above = select(compare("le", x, number(3, x)), middle, grad)
        return select(compare("lt", x, number(-3, x)), number(0, x), above)

    return elementwise(call, body, call.tensor(0), call.tensor(1))


@lowers("leaky_relu")
def _leaky_relu(call: Call) -> Tensor:
    slope = parameter(call, 1, "negative_slope", 0.01)

    def body(x: Scalar) -> Scalar:
        return select(compare("gt", x, number(0, x)), x, op("mul", x, number(slope, x)))

    return elementwise(call, body, call.tensor(0))


@lowers("leaky_relu_backward")
def _leaky_relu_backward(call: Call) -> Tensor:
    slope = parameter(call, 2, "negative_slope")

    def body(grad: Scalar, x: Scalar) -> Scalar:
        return select(compare("gt", x, number(0, x)), grad, op("mul", grad, number(slope, x)))

    return elementwise(call, body, call.tensor(0), call.tensor(1))


@lowers("prelu", "_prelu_kernel")
def _prelu(call: Call) -> Tensor:
    def body(x: Scalar, weight: Scalar) -> Scalar:
        return select(compare("gt", x, number(0, x)), x, op("mul", weight, x))

    return elementwise(call, body, call.tensor(0), call.tensor(1))


@lowers("elu")
def _elu(call: Call) -> Tensor:
    alpha, scale, input_scale = call.number(1, "alpha", 1), call.number(2, "scale", 1), call.number(3, "input_scale", 1)

    def body(x: Scalar) -> Scalar:
        negative = op("mul", op("expm1", op("mul", x, number(input_scale, x))), number(alpha * scale, x))
        return select(compare("gt", x, number(0, x)), op("mul", x, number(scale, x)), negative)

    return elementwise(call, body, call.tensor(0))


@lowers("elu_backward")
def _elu_backward(call: Call) -> Tensor:
    alpha, scale, input_scale = call.number(1, "alpha"), call.number(2, "scale"), call.number(3, "input_scale")
    is_result = bool(call.raw(4, "is_result"))

    def body(grad: Scalar, x: Scalar) -> Scalar:
        if is_result:
            slope = op("mul", op("add", x, number(alpha * scale, x)), number(input_scale, x))
        else:
            slope = op("mul", op("exp", op("mul", x, number(input_scale, x))), number(alpha * scale * input_scale, x))
        positive = op("mul", grad, number(scale, x))
        return select(compare("le", x, number(0, x)), op("mul", grad, slope), positive)

    return elementwise(call, body, call.tensor(0), call.tensor(1))


@lowers("selu")
def _selu(call: Call) -> Tensor:
    def body(x: Scalar) -> Scalar:
        negative = op("mul", op("expm1", x), number(SELU_ALPHA * SELU_SCALE, x))
        return select(compare("gt", x, number(0, x)), op("mul", x, number(SELU_SCALE, x)), negative)

    return elementwise(call, body, call.tensor(0))


@lowers("celu")
def _celu(call: Call) -> Tensor:
    alpha = parameter(call, 1, "alpha", 1)

    def body(x: Scalar) -> Scalar:
        negative = op("mul", op("expm1", op("div", x, number(alpha, x))), number(alpha, x))
        return select(compare("gt", x, number(0, x)), x, negative)

    return elementwise(call, body, call.tensor(0))


@lowers("softplus")
def _softplus(call: Call) -> Tensor:
    beta, threshold = parameter(call, 1, "beta", 1), parameter(call, 2, "threshold", 20)

    def body(x: Scalar) -> Scalar:
        scaled = op("mul", x, number(beta, x))
        soft = op("div", op("log1p", op("exp", scaled)), number(beta, x))
        return select(compare("gt", scaled, number(threshold, x)), x, soft)

    return elementwise(call, body, call.tensor(0))


@lowers("softplus_backward")
def _softplus_backward(call: Call) -> Tensor:
    beta, threshold = parameter(call, 2, "beta"), parameter(call, 3, "threshold")

    def body(grad: Scalar, x: Scalar) -> Scalar:
        scaled = op("mul", x, number(beta, x))
        soft = op("mul", grad, op("sigmoid", scaled))
        return select(compare("gt", scaled, number(threshold, x)), grad, soft)

    return elementwise(call, body, call.tensor(0), call.tensor(1))


@lowers("mish")
def _mish(call: Call) -> Tensor:
    def body(x: Scalar) -> Scalar:
        return op("mul", x, op("tanh", _softplus_of(x)))

    return elementwise(call, body, call.tensor(0))


def _softplus_of(x: Scalar) -> Scalar:
    """Return log(1 + exp(x)); x itself where that is exact in f32."""
    return select(compare("gt", x, number(20, x)), x, op("log1p", op("exp", x)))


@lowers("mish_backward")
def _mish_backward(call: Call) -> Tensor:
    def body(grad: Scalar, x: Scalar) -> Scalar:
        tanh = op("tanh", _softplus_of(x))
        slope = op("mul", op("mul", x, op("sigmoid", x)), op("sub", number(1, x), op("mul", tanh, tanh)))
        return op("mul", grad, op("add", tanh, slope))

    return elementwise(call, body, call.tensor(0), call.tensor(1))


@lowers("log_sigmoid_forward")
def _log_sigmoid_forward(call: Call) -> tuple[Tensor | None, ...]:
    return (elementwise(call, _log_sigmoid_of, call.tensor(0)), None)


@lowers("log_sigmoid")
def _log_sigmoid(call: Call) -> Tensor:
    return elementwise(call, _log_sigmoid_of, call.tensor(0))


def _log_sigmoid_of(x: Scalar) -> Scalar:
    low = select(compare("lt", x, number(0, x)), x, number(0, x))
    return op("sub", low, op("log1p", op("exp", op("neg", op("abs", x)))))


@lowers("sigmoid_backward")
def _sigmoid_backward(call: Call) -> Tensor:
    def body(grad: Scalar, y: Scalar) -> Scalar:
        return op("mul", grad, op("mul", op("sub", number(1, y), y), y))

    return elementwise(call, body, call.tensor(0), call.tensor(1))


@lowers("tanh_backward")
def _tanh_backward(call: Call) -> Tensor:
    def body(grad: Scalar, y: Scalar) -> Scalar:
        return op("mul", grad, op("sub", number(1, y), op("mul", y, y)))

    return elementwise(call, body, call.tensor(0), call.tensor(1))


@lowers("threshold_backward")
def _threshold_backward(call: Call) -> Tensor:
    threshold = parameter(call, 2, "threshold")

    def body(grad: Scalar, x: Scalar) -> Scalar:
        return select(compare("le", x, number(threshold, x)), number(0, x), grad)

    return elementwise(call, body, call.tensor(0), call.tensor(1))


@lowers("threshold")
def _threshold(call: Call) -> Tensor:
    threshold, value = parameter(call, 1, "threshold"), parameter(call, 2, "value")

    def body(x: Scalar) -> Scalar:
        return select(compare("le", x, number(threshold, x)), number(value, x), x)

    return elementwise(call, body, call.tensor(0))
