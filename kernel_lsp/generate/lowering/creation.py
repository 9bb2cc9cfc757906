"""Casts, copies, and tensors without tensor operands."""

from __future__ import annotations

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.scalar import Constant, Scalar, cast, compare, index_value, select
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.lowering.arithmetic import op
from kernel_lsp.generate.lowering.builder import RULES, Call, constant, lowers, read


@lowers("_to_copy", "to", "clone", "alias", "detach", "contiguous", "lift_fresh_copy", "prims.convert_element_type")
def _convert(call: Call) -> Tensor:
    source = call.tensor(0)
    return call.builder.pointwise(call.dtype(), call.shape(), lambda index: read(source, index))


RULES["prims.convert_element_type.default"] = _convert


@lowers("copy")
def _copy(call: Call) -> Tensor:
    source = call.tensor(1, "src")
    return call.builder.pointwise(call.dtype(), call.shape(), lambda index: read(source, index))


def _filled(call: Call, value: Scalar) -> Tensor:
    return call.builder.pointwise(call.dtype(), call.shape(), lambda index: value)


@lowers("full", "full_like", "new_full")
def _full(call: Call) -> Tensor:
    position = 2 if "new_full" in call.node.op else 1
    return _filled(call, call.scalar(position, "fill_value", call.dtype()))


@lowers("tensor")
def _literal(call: Call) -> Tensor:
    """Select each element of a constant tensor by its position, runs of equal ones at once."""
    dtype, shape = call.dtype(), call.shape()
    given = [float(each["float"]) if isinstance(each, dict) else each for each in call.raw(0, "data")]
    numbers = [cast(constant(number), dtype) for number in given]
    ends = [end for end in range(1, len(numbers)) if numbers[end] != numbers[end - 1]]

    def element(index: tuple[Index, ...]) -> Scalar:
        position: Index = as_index(0)
        for at, size in zip(index, shape, strict=True):
            position = position * size + at
        found = numbers[-1]
        for end in reversed(ends):
            found = select(compare("lt", index_value(position), Constant(end, DType.I64)), numbers[end - 1], found)
        return found

    return call.builder.pointwise(dtype, shape, element)


@lowers("zeros", "zeros_like", "new_zeros")
@lowers("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted")
def _zeros(call: Call) -> Tensor:
    """Fill with zeros. The contents of `empty` are undefined, so zeros are valid."""
    return _filled(call, cast(Constant(0, DType.I64), call.dtype()))


@lowers("ones", "ones_like", "new_ones")
def _ones(call: Call) -> Tensor:
    return _filled(call, cast(Constant(1, DType.I64), call.dtype()))


@lowers("scalar_tensor")
def _scalar_tensor(call: Call) -> Tensor:
    return _filled(call, call.scalar(0, "s", call.dtype()))


RULES["prims.scalar_tensor.default"] = _scalar_tensor


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
