"""Elementwise arithmetic: unary and binary operators, and their compositions.

Building blocks of elementwise lowering rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.index import Index
from kernel_lsp.generate.ir.scalar import Constant, Scalar, cast, compare, operation, select
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.lowering.builder import Call, lowers, read


def elementwise(call: Call, body: Callable[..., Scalar], *operands: Tensor | Scalar) -> Tensor:
    """Return ``body(elements)`` with broadcasting. Operands are converted to the result's type first."""
    dtype = call.dtype()

    def element(index: tuple[Index, ...]) -> Scalar:
        return body(*(cast(element_of(operand, index), dtype) for operand in operands))

    return call.builder.pointwise(dtype, call.shape(), element)


def op(name: str, *operands: Scalar, dtype: DType | None = None) -> Scalar:
    """Return a scalar operator on operands of one type."""
    return operation(name, dtype or operands[0].dtype, *operands)


def number(value: float | Scalar, like: Scalar) -> Scalar:
    """Return a number in another scalar's type."""
    return cast(value if isinstance(value, Scalar) else Constant(float(value), DType.F64), like.dtype)


def parameter(call: Call, position: int, name: str, default: float | None = None) -> Scalar:
    """Return a number argument for `number`, which converts it to the type of its operand."""
    return call.scalar(position, name, DType.F64, default)


def element_of(operand: Tensor | Scalar, index: tuple[Index, ...]) -> Scalar:
    """Return the operand's value for element `index` of a result that it broadcasts to."""
    return read(operand, index) if isinstance(operand, Tensor) else operand


def operand_of(call: Call, position: int, name: str, dtype: DType | None = None) -> Tensor | Scalar:
    """Return an argument that may be a tensor or a number. A number gets `dtype`, else the result's type."""
    if call.is_tensor(position, name):
        return call.tensor(position, name)
    return call.scalar(position, name, dtype or call.dtype())


def clamped(x: Scalar, low: Scalar | None, high: Scalar | None) -> Scalar:
    """Clamp to constant bounds. A NaN compares false and so stays."""
    if low is not None:
        x = select(compare("lt", x, low), low, x)
    if high is not None:
        x = select(compare("gt", x, high), high, x)
    return x


UNARY = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc erfinv exp exp2 expm1 floor log log10 log1p log2 neg "
    "reciprocal relu round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc bitwise_not lgamma "
    "i0 digamma"
)
"""Unary operators with the scalar operator's name."""
BINARY = (
    "mul maximum minimum fmod remainder atan2 bitwise_and bitwise_or bitwise_xor fmax fmin hypot copysign "
    "bitwise_left_shift bitwise_right_shift nextafter"
)


def _unary(name: str) -> Callable[[Call], Tensor]:
    return lambda call: elementwise(call, lambda x: op(name, x), call.tensor(0))


def _binary(name: str) -> Callable[[Call], Tensor]:
    return lambda call: elementwise(
        call, lambda x, y: op(name, x, y), operand_of(call, 0, "self"), operand_of(call, 1, "other")
    )


for _name in UNARY.split():
    lowers(_name)(_unary(_name))
for _name in BINARY.split():
    lowers(_name)(_binary(_name))
lowers("bitwise_and.Tensor", "bitwise_and.Scalar")(_binary("bitwise_and"))
lowers("__lshift__")(_binary("bitwise_left_shift"))
lowers("__rshift__")(_binary("bitwise_right_shift"))
lowers("special_erfcx")(_unary("erfcx"))


@lowers("angle")
def _angle(call: Call) -> Tensor:
    """Lower the angle of a real number: pi where it is negative, else 0; a NaN stays."""

    def body(x: Scalar) -> Scalar:
        x = cast(x, call.dtype())
        angle = select(compare("lt", x, number(0.0, x)), number(math.pi, x), number(0.0, x))
        return select(compare("ne", x, x), x, angle)

    return elementwise(call, body, call.tensor(0))


@lowers("add", "sub", "rsub")
def _add(call: Call) -> Tensor:
    """Lower ``self + alpha * other`` and similar operators."""
    name = call.node.op.split(".")[1]
    left, right = operand_of(call, 0, "self"), operand_of(call, 1, "other")
    if name == "rsub":
        left, right = right, left
    alpha = call.scalar(2, "alpha", call.dtype(), 1)
    scalar_name = "add" if name == "add" else "sub"
    return elementwise(call, lambda x, y: op(scalar_name, x, op("mul", y, alpha)), left, right)


@lowers("div")
def _divide(call: Call) -> Tensor:
    mode = call.node.keywords.get("rounding_mode")
    if mode is None and not call.dtype().is_floating:
        call.fail("it divides without a floating result")
    name = {None: "div", "floor": "div_floor", "trunc": "div_trunc"}[mode]
    return elementwise(call, lambda x, y: op(name, x, y), operand_of(call, 0, "self"), operand_of(call, 1, "other"))


@lowers("floor_divide")
def _floor_divide(call: Call) -> Tensor:
    return elementwise(
        call, lambda x, y: op("div_floor", x, y), operand_of(call, 0, "self"), operand_of(call, 1, "other")
    )


@lowers("pow")
def _power(call: Call) -> Tensor:
    if not call.is_tensor(1, "exponent"):
        exponent = call.number(1, "exponent")
        return elementwise(call, lambda x: _constant_power(x, exponent), call.tensor(0))
    return elementwise(call, lambda x, y: op("pow", x, y), operand_of(call, 0, "self"), call.tensor(1))


def _constant_power(x: Scalar, exponent: float) -> Scalar:
    """Expand squares, cubes, roots and their reciprocals without pow, like ATen."""
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


@lowers("ldexp")
def _ldexp(call: Call) -> Tensor:
    return elementwise(call, lambda x, y: op("mul", x, op("exp2", y)), call.tensor(0), call.tensor(1, "other"))


@lowers("addcmul")
def _addcmul(call: Call) -> Tensor:
    value = call.scalar(3, "value", call.dtype(), 1)

    def body(x: Scalar, y: Scalar, z: Scalar) -> Scalar:
        return op("add", x, op("mul", op("mul", value, y), z))

    return elementwise(call, body, call.tensor(0), call.tensor(1), call.tensor(2))


@lowers("addcdiv")
def _addcdiv(call: Call) -> Tensor:
    value = call.scalar(3, "value", call.dtype(), 1)

    def body(x: Scalar, y: Scalar, z: Scalar) -> Scalar:
        return op("add", x, op("mul", value, op("div", y, z)))

    return elementwise(call, body, call.tensor(0), call.tensor(1), call.tensor(2))


@lowers("lerp")
def _lerp(call: Call) -> Tensor:
    """Interpolate by ATen's formula, which is exact at both ends."""

    def body(x: Scalar, y: Scalar, weight: Scalar) -> Scalar:
        difference = op("sub", y, x)
        near = op("add", x, op("mul", weight, difference))
        far = op("sub", y, op("mul", difference, op("sub", number(1, x), weight)))
        return select(compare("lt", op("abs", weight), number(0.5, x)), near, far)

    return elementwise(call, body, call.tensor(0), call.tensor(1), operand_of(call, 2, "weight"))
