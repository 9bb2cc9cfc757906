"""Elementwise operators: arithmetic, activations, comparisons, casts, and tensors made of nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.index import Index, as_index
from kernel_lsp.generate.lowering.builder import Call, read
from kernel_lsp.generate.lowering.table import RULES, lowers
from kernel_lsp.generate.scalar import (
    Constant,
    Scalar,
    both,
    cast,
    compare,
    index_value,
    operation,
    select,
)
from kernel_lsp.generate.tensor import Tensor

UNARY = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc erfinv exp exp2 expm1 floor log log10 log1p log2 neg "
    "reciprocal relu round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc bitwise_not lgamma digamma"
)
"""Operators of one operand whose name is the scalar operator's."""
BINARY = (
    "mul maximum minimum fmod remainder atan2 bitwise_and bitwise_or bitwise_xor fmax fmin hypot copysign "
    "bitwise_left_shift bitwise_right_shift"
)
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
FLOATING_WIDTH = {DType.F16: 1, DType.BF16: 1, DType.F32: 2, DType.F64: 3}
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
"""Self-Normalizing Neural Networks, Klambauer et al. 2017; the digits of ATen."""


def elementwise(call: Call, body: Callable[..., Scalar], *operands: Tensor | Scalar) -> Tensor:
    """``body(elements)`` with broadcasting; operands are converted to the result's type first."""
    dtype = call.dtype()

    def element(index: tuple[Index, ...]) -> Scalar:
        return body(*(cast(_element(operand, index), dtype) for operand in operands))

    return call.builder.pointwise(dtype, call.shape(), element)


def op(name: str, *operands: Scalar, dtype: DType | None = None) -> Scalar:
    """A scalar operator on operands of one type."""
    return operation(name, dtype or operands[0].dtype, *operands)


def number(value: float, like: Scalar) -> Scalar:
    """A constant of another scalar's type."""
    return cast(Constant(float(value), DType.F64), like.dtype)


def _element(operand: Tensor | Scalar, index: tuple[Index, ...]) -> Scalar:
    return read(operand, index) if isinstance(operand, Tensor) else operand


def _operand(call: Call, position: int, name: str, dtype: DType | None = None) -> Tensor | Scalar:
    if call.is_tensor(position, name):
        return call.tensor(position, name)
    return call.scalar(position, name, dtype or call.dtype())


def _unary(name: str) -> Callable[[Call], Tensor]:
    return lambda call: elementwise(call, lambda x: op(name, x), call.tensor(0))


def _binary(name: str) -> Callable[[Call], Tensor]:
    return lambda call: elementwise(
        call, lambda x, y: op(name, x, y), _operand(call, 0, "self"), _operand(call, 1, "other")
    )


for _name in UNARY.split():
    lowers(_name)(_unary(_name))
for _name in BINARY.split():
    lowers(_name)(_binary(_name))
lowers("bitwise_and.Tensor", "bitwise_and.Scalar")(_binary("bitwise_and"))


@lowers("add", "sub", "rsub")
def _add(call: Call) -> Tensor:
    """``self + alpha * other`` and its likes."""
    name = call.node.op.split(".")[1]
    left, right = _operand(call, 0, "self"), _operand(call, 1, "other")
    if name == "rsub":
        left, right = right, left
    alpha = call.scalar(2, "alpha", call.dtype(), 1) if call.node.op.endswith("Scalar") else _alpha(call)
    scalar_name = "add" if name == "add" else "sub"

    def body(x: Scalar, y: Scalar) -> Scalar:
        if name == "rsub":
            return op(scalar_name, x, op("mul", y, alpha))
        return op(scalar_name, x, op("mul", y, alpha))

    return elementwise(call, body, left, right)


def _alpha(call: Call) -> Scalar:
    return cast(
        Constant(call.node.keywords.get("alpha", 1), DType.I64 if not call.dtype().is_floating else DType.F64),
        call.dtype(),
    )


@lowers("div")
def _divide(call: Call) -> Tensor:
    mode = call.node.keywords.get("rounding_mode")
    if mode is None and not call.dtype().is_floating:
        call.fail("it divides without a floating result")
    name = {None: "div", "floor": "div_floor", "trunc": "div_trunc"}[mode]
    return elementwise(call, lambda x, y: op(name, x, y), _operand(call, 0, "self"), _operand(call, 1, "other"))


@lowers("floor_divide")
def _floor_divide(call: Call) -> Tensor:
    return elementwise(call, lambda x, y: op("div_floor", x, y), _operand(call, 0, "self"), _operand(call, 1, "other"))


@lowers("pow")
def _power(call: Call) -> Tensor:
    if not call.is_tensor(1, "exponent"):
        exponent = call.number(1, "exponent")
        return elementwise(call, lambda x: _constant_power(x, exponent), call.tensor(0))
    return elementwise(call, lambda x, y: op("pow", x, y), _operand(call, 0, "self"), call.tensor(1))


def _constant_power(x: Scalar, exponent: float) -> Scalar:
    """As ATen does: squares, cubes, roots and their reciprocals without pow."""
    if exponent == 0:
        return cast(Constant(1, DType.I64), x.dtype)
    if exponent == 1:
        return x
    if exponent == 2:
        return op("mul", x, x)
    if exponent == 3:
        return op("mul", op("mul", x, x), x)
    if x.dtype.is_floating and exponent in (0.5, -0.5, -1, -2):
        return {
            0.5: lambda: op("sqrt", x),
            -0.5: lambda: op("rsqrt", x),
            -1: lambda: op("reciprocal", x),
            -2: lambda: op("reciprocal", op("mul", x, x)),
        }[exponent]()
    return op("pow", x, cast(Constant(exponent, DType.F64 if x.dtype.is_floating else DType.I64), x.dtype))


@lowers("square")
def _square(call: Call) -> Tensor:
    return elementwise(call, lambda x: op("mul", x, x), call.tensor(0))


@lowers("addcmul")
def _addcmul(call: Call) -> Tensor:
    value = call.scalar(3, "value", call.dtype(), 1)
    body = lambda x, y, z: op("add", x, op("mul", op("mul", value, y), z))  # noqa: E731
    return elementwise(call, body, call.tensor(0), call.tensor(1), call.tensor(2))


@lowers("addcdiv")
def _addcdiv(call: Call) -> Tensor:
    value = call.scalar(3, "value", call.dtype(), 1)
    body = lambda x, y, z: op("add", x, op("mul", value, op("div", y, z)))  # noqa: E731
    return elementwise(call, body, call.tensor(0), call.tensor(1), call.tensor(2))


@lowers("lerp")
def _lerp(call: Call) -> Tensor:
    """The form that ATen uses, which is exact at both ends."""

    def body(x: Scalar, y: Scalar, weight: Scalar) -> Scalar:
        difference = op("sub", y, x)
        near = op("add", x, op("mul", weight, difference))
        far = op("sub", y, op("mul", difference, op("sub", number(1, x), weight)))
        return select(compare("lt", op("abs", weight), number(0.5, x)), near, far)

    return elementwise(call, body, call.tensor(0), call.tensor(1), _operand(call, 2, "weight"))


# --- activations


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
    low, high = (0.0, 6.0) if "relu6" in call.node.op else (call.number(1, "min_val", -1), call.number(2, "max_val", 1))
    return elementwise(call, lambda x: clamped(x, number(low, x), number(high, x)), call.tensor(0))


@lowers("hardtanh_backward")
def _hardtanh_backward(call: Call) -> Tensor:
    low, high = call.number(2, "min_val"), call.number(3, "max_val")

    def body(grad: Scalar, x: Scalar) -> Scalar:
        is_flat = operation(
            "logical_or", DType.BOOL, compare("le", x, number(low, x)), compare("ge", x, number(high, x))
        )
        return select(is_flat, number(0, x), grad)

    return elementwise(call, body, call.tensor(0), call.tensor(1))


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
    slope = call.number(1, "negative_slope", 0.01)
    body = lambda x: select(compare("gt", x, number(0, x)), x, op("mul", x, number(slope, x)))  # noqa: E731
    return elementwise(call, body, call.tensor(0))


@lowers("leaky_relu_backward")
def _leaky_relu_backward(call: Call) -> Tensor:
    slope = call.number(2, "negative_slope")
    body = lambda grad, x: select(compare("gt", x, number(0, x)), grad, op("mul", grad, number(slope, x)))  # noqa: E731
    return elementwise(call, body, call.tensor(0), call.tensor(1))


@lowers("prelu", "_prelu_kernel")
def _prelu(call: Call) -> Tensor:
    body = lambda x, weight: select(compare("gt", x, number(0, x)), x, op("mul", weight, x))  # noqa: E731
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
    alpha = call.number(1, "alpha", 1)

    def body(x: Scalar) -> Scalar:
        negative = op("mul", op("expm1", op("div", x, number(alpha, x))), number(alpha, x))
        return select(compare("gt", x, number(0, x)), x, negative)

    return elementwise(call, body, call.tensor(0))


@lowers("softplus")
def _softplus(call: Call) -> Tensor:
    beta, threshold = call.number(1, "beta", 1), call.number(2, "threshold", 20)

    def body(x: Scalar) -> Scalar:
        scaled = op("mul", x, number(beta, x))
        soft = op("div", op("log1p", op("exp", scaled)), number(beta, x))
        return select(compare("gt", scaled, number(threshold, x)), x, soft)

    return elementwise(call, body, call.tensor(0))


@lowers("softplus_backward")
def _softplus_backward(call: Call) -> Tensor:
    beta, threshold = call.number(2, "beta"), call.number(3, "threshold")

    def body(grad: Scalar, x: Scalar) -> Scalar:
        scaled = op("mul", x, number(beta, x))
        soft = op("mul", grad, op("sigmoid", scaled))
        return select(compare("gt", scaled, number(threshold, x)), grad, soft)

    return elementwise(call, body, call.tensor(0), call.tensor(1))


@lowers("mish")
def _mish(call: Call) -> Tensor:
    body = lambda x: op("mul", x, op("tanh", _softplus_of(x)))  # noqa: E731
    return elementwise(call, body, call.tensor(0))


def _softplus_of(x: Scalar) -> Scalar:
    """log(1 + exp(x)); x itself where that is exact in f32."""
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
    body = lambda grad, y: op("mul", grad, op("mul", op("sub", number(1, y), y), y))  # noqa: E731
    return elementwise(call, body, call.tensor(0), call.tensor(1))


@lowers("tanh_backward")
def _tanh_backward(call: Call) -> Tensor:
    body = lambda grad, y: op("mul", grad, op("sub", number(1, y), op("mul", y, y)))  # noqa: E731
    return elementwise(call, body, call.tensor(0), call.tensor(1))


@lowers("threshold_backward")
def _threshold_backward(call: Call) -> Tensor:
    threshold = call.number(2, "threshold")
    body = lambda grad, x: select(compare("le", x, number(threshold, x)), number(0, x), grad)  # noqa: E731
    return elementwise(call, body, call.tensor(0), call.tensor(1))


@lowers("threshold")
def _threshold(call: Call) -> Tensor:
    threshold, value = call.number(1, "threshold"), call.number(2, "value")
    body = lambda x: select(compare("le", x, number(threshold, x)), number(value, x), x)  # noqa: E731
    return elementwise(call, body, call.tensor(0))


# --- clamping and choosing


def clamped(x: Scalar, low: Scalar | None, high: Scalar | None) -> Scalar:
    """Within constant bounds. A NaN compares false and so stays."""
    if low is not None:
        x = select(compare("lt", x, low), low, x)
    if high is not None:
        x = select(compare("gt", x, high), high, x)
    return x


@lowers("clamp", "clip")
def _clamp(call: Call) -> Tensor:
    dtype = call.dtype()
    bounds = [
        None if call.raw(position, name) is None else call.scalar(position, name, dtype)
        for position, name in ((1, "min"), (2, "max"))
    ]
    return elementwise(call, lambda x: clamped(x, bounds[0], bounds[1]), call.tensor(0))


@lowers("clamp_min", "clamp_max")
def _clamp_one_side(call: Call) -> Tensor:
    is_min = "clamp_min" in call.node.op
    if call.is_tensor(1, "min" if is_min else "max"):
        name = "maximum" if is_min else "minimum"
        return elementwise(call, lambda x, y: op(name, x, y), call.tensor(0), call.tensor(1))
    limit = call.scalar(1, "min" if is_min else "max", call.dtype())

    def body(x: Scalar) -> Scalar:
        return clamped(x, limit, None) if is_min else clamped(x, None, limit)

    return elementwise(call, body, call.tensor(0))


@lowers("clamp.Tensor")
def _clamp_tensor(call: Call) -> Tensor:
    """A NaN in a bound is a NaN in the result."""
    low, high = call.optional_tensor(1, "min"), call.optional_tensor(2, "max")
    bounds = [(name, tensor) for name, tensor in (("maximum", low), ("minimum", high)) if tensor is not None]

    def body(x: Scalar, *limits: Scalar) -> Scalar:
        for (name, _), limit in zip(bounds, limits, strict=True):
            x = op(name, x, limit)
        return x

    return elementwise(call, body, call.tensor(0), *(tensor for _, tensor in bounds))


@lowers("where")
def _where(call: Call) -> Tensor:
    condition = call.tensor(0, "condition")
    left, right = _operand(call, 1, "self"), _operand(call, 2, "other")
    dtype = call.dtype()

    def element(index: tuple[Index, ...]) -> Scalar:
        chosen = cast(read(condition, index), DType.BOOL)
        return select(chosen, cast(_element(left, index), dtype), cast(_element(right, index), dtype))

    return call.builder.pointwise(dtype, call.shape(), element)


@lowers("masked_fill")
def _masked_fill(call: Call) -> Tensor:
    source, mask, value = call.tensor(0), call.tensor(1, "mask"), _operand(call, 2, "value")
    dtype = call.dtype()

    def element(index: tuple[Index, ...]) -> Scalar:
        return select(read(mask, index), cast(_element(value, index), dtype), cast(read(source, index), dtype))

    return call.builder.pointwise(dtype, call.shape(), element)


# --- comparisons and logic


def _comparison(name: str) -> Callable[[Call], Tensor]:
    def rule(call: Call) -> Tensor:
        left = call.tensor(0)
        common = _common_dtype(call, left)
        right = _operand(call, 1, "other", common)

        def element(index: tuple[Index, ...]) -> Scalar:
            return compare(name, cast(read(left, index), common), cast(_element(right, index), common))

        return call.builder.pointwise(DType.BOOL, call.shape(), element)

    return rule


def _common_dtype(call: Call, left: Tensor) -> DType:
    """The type to compare in: the widest floating one, else 64-bit integers."""
    raw = call.raw(1, "other")
    dtypes = [left.dtype, call.tensor(1, "other").dtype] if call.is_tensor(1, "other") else [left.dtype]
    floating = [dtype for dtype in dtypes if dtype.is_floating]
    if floating:
        return max(floating, key=lambda dtype: FLOATING_WIDTH[dtype])
    is_float_number = isinstance(raw, float) or (isinstance(raw, dict) and "float" in raw)
    return DType.F32 if is_float_number else DType.I64


for _name in COMPARISONS:
    lowers(_name)(_comparison(_name))


def _logical(name: str) -> Callable[[Call], Tensor]:
    def rule(call: Call) -> Tensor:
        operands = [call.tensor(position, name) for position, name in _logical_operands(call)]

        def element(index: tuple[Index, ...]) -> Scalar:
            return operation(name, DType.BOOL, *(as_bool(read(operand, index)) for operand in operands))

        return call.builder.pointwise(DType.BOOL, call.shape(), element)

    return rule


def _logical_operands(call: Call) -> list[tuple[int, str]]:
    return [(0, "self"), (1, "other")][: max(1, sum(call.is_tensor(i, n) for i, n in ((0, "self"), (1, "other"))))]


def as_bool(scalar: Scalar) -> Scalar:
    """Whether it is not zero."""
    return cast(scalar, DType.BOOL)


for _name in ("logical_and", "logical_or", "logical_xor", "logical_not"):
    lowers(_name)(_logical(_name))


def _float_test(name: str) -> Callable[[Call], Tensor]:
    def rule(call: Call) -> Tensor:
        source = call.tensor(0)

        def element(index: tuple[Index, ...]) -> Scalar:
            if not source.dtype.is_floating:
                return Constant(name == "isfinite", DType.BOOL)
            return operation(name, DType.BOOL, read(source, index))

        return call.builder.pointwise(DType.BOOL, call.shape(), element)

    return rule


for _name in ("isnan", "isinf", "isfinite", "signbit"):
    lowers(_name)(_float_test(_name))


@lowers("nan_to_num")
def _nan_to_num(call: Call) -> Tensor:
    largest = {DType.F16: 65504.0, DType.BF16: 3.3895313892515355e38, DType.F32: 3.4028234663852886e38}
    limit = largest.get(call.dtype(), 1.7976931348623157e308)
    nan = call.optional_number(1, "nan") or 0.0
    above, below = call.optional_number(2, "posinf"), call.optional_number(3, "neginf")

    def body(x: Scalar) -> Scalar:
        high = select(compare("gt", x, number(limit, x)), number(limit if above is None else above, x), x)
        both_ends = select(compare("lt", x, number(-limit, x)), number(-limit if below is None else below, x), high)
        return select(operation("isnan", DType.BOOL, x), number(nan, x), both_ends)

    return elementwise(call, body, call.tensor(0))


# --- casts and copies


@lowers("_to_copy", "to", "clone", "alias", "detach", "contiguous", "lift_fresh_copy", "prims.convert_element_type")
def _convert(call: Call) -> Tensor:
    source = call.tensor(0)
    return call.builder.pointwise(call.dtype(), call.shape(), lambda index: read(source, index))


@lowers("copy")
def _copy(call: Call) -> Tensor:
    source = call.tensor(1, "src")
    return call.builder.pointwise(call.dtype(), call.shape(), lambda index: read(source, index))


# --- tensors made of nothing


def _filled(call: Call, value: Scalar) -> Tensor:
    return call.builder.pointwise(call.dtype(), call.shape(), lambda index: value)


@lowers("full", "full_like", "new_full")
def _full(call: Call) -> Tensor:
    position = 2 if "new_full" in call.node.op else 1
    return _filled(call, call.scalar(position, "fill_value", call.dtype()))


@lowers("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")
def _zeros(call: Call) -> Tensor:
    """What `empty` holds is nobody's business; zeros do."""
    return _filled(call, cast(Constant(0, DType.I64), call.dtype()))


@lowers("ones", "ones_like", "new_ones")
def _ones(call: Call) -> Tensor:
    return _filled(call, cast(Constant(1, DType.I64), call.dtype()))


@lowers("scalar_tensor")
def _scalar_tensor(call: Call) -> Tensor:
    return _filled(call, call.scalar(0, "s", call.dtype()))


@lowers("fill")
def _fill(call: Call) -> Tensor:
    value = _operand(call, 1, "value")
    return call.builder.pointwise(call.dtype(), call.shape(), lambda index: _element(value, index))


@lowers("arange")
def _arange(call: Call) -> Tensor:
    overload = call.node.op.rsplit(".", 1)[-1]
    dtype = call.dtype()
    if overload in ("start", "start_step"):
        start = call.scalar(0, "start", dtype)
        step = call.scalar(2, "step", dtype, 1)
    else:
        start, step = cast(Constant(0, DType.I64), dtype), cast(Constant(1, DType.I64), dtype)

    def element(index: tuple[Index, ...]) -> Scalar:
        return op("add", start, op("mul", cast(index_value(index[0]), dtype), step))

    return call.builder.pointwise(dtype, call.shape(), element)


@lowers("eye")
def _eye(call: Call) -> Tensor:
    def element(index: tuple[Index, ...]) -> Scalar:
        return compare("eq", index_value(index[0]), index_value(index[1]))

    return call.builder.pointwise(call.dtype(), call.shape(), element)


@lowers("tril", "triu")
def _triangle(call: Call) -> Tensor:
    source, diagonal = call.tensor(0), call.integer(1, "diagonal", 0)
    name = "le" if "tril" in call.node.op else "ge"

    def element(index: tuple[Index, ...]) -> Scalar:
        kept = compare(name, index_value(index[-1]), index_value(index[-2] + as_index(diagonal)))
        return select(kept, read(source, index), cast(Constant(0, DType.I64), source.dtype))

    return call.builder.pointwise(call.dtype(), call.shape(), element)


RULES["prims.convert_element_type.default"] = _convert
_ = math
