"""Comparisons, logic, and selection: clamping, masks, triangles."""

from __future__ import annotations

from collections.abc import Callable

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.index import Index
from kernel_lsp.generate.ir.scalar import Constant, Scalar, cast, compare, operation, select
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.lowering.arithmetic import clamped, element_of, elementwise, op, operand_of
from kernel_lsp.generate.lowering.builder import Call, lowers, read

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
FLOATING_WIDTH = {DType.F16: 1, DType.BF16: 1, DType.F32: 2, DType.F64: 3}


def _comparison(name: str) -> Callable[[Call], Tensor]:
    def rule(call: Call) -> Tensor:
        left = call.tensor(0)
        common = _common_dtype(call, left)
        right = operand_of(call, 1, "other", common)

        def element(index: tuple[Index, ...]) -> Scalar:
            return compare(name, cast(read(left, index), common), cast(element_of(right, index), common))

        return call.builder.pointwise(DType.BOOL, call.shape(), element)

    return rule


def _common_dtype(call: Call, left: Tensor) -> DType:
    """Return the type of a comparison: the widest floating one, else 64-bit integers."""
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
        operands = [call.tensor(position, parameter) for position, parameter in _logical_operands(call)]

        def element(index: tuple[Index, ...]) -> Scalar:
            return operation(name, DType.BOOL, *(_as_bool(read(operand, index)) for operand in operands))

        return call.builder.pointwise(DType.BOOL, call.shape(), element)

    return rule


def _logical_operands(call: Call) -> list[tuple[int, str]]:
    return [(0, "self"), (1, "other")][: max(1, sum(call.is_tensor(i, n) for i, n in ((0, "self"), (1, "other"))))]


def _as_bool(scalar: Scalar) -> Scalar:
    """Return the condition that the scalar is nonzero."""
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


@lowers("clamp", "clip")
def _clamp(call: Call) -> Tensor:
    dtype = call.dtype()
    bounds = [
        call.scalar(position, name, dtype) if call.is_given(position, name) else None
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

    return elementwise(call, lambda x: clamped(x, limit, None) if is_min else clamped(x, None, limit), call.tensor(0))


@lowers("clamp.Tensor")
def _clamp_tensor(call: Call) -> Tensor:
    """Clamp by tensors. A NaN in a bound is a NaN in the result."""
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
    left, right = operand_of(call, 1, "self"), operand_of(call, 2, "other")
    dtype = call.dtype()

    def element(index: tuple[Index, ...]) -> Scalar:
        chosen = cast(read(condition, index), DType.BOOL)
        return select(chosen, cast(element_of(left, index), dtype), cast(element_of(right, index), dtype))

    return call.builder.pointwise(dtype, call.shape(), element)
