"""Softmax, its logarithm and gradients, and log-sum-exp, all relative to the maximum of a row."""

from __future__ import annotations

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.index import Index
from kernel_lsp.generate.ir.scalar import Access, Constant, Scalar, cast, compare, select
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.lowering.arithmetic import number, op
from kernel_lsp.generate.lowering.builder import Builder, Call, accumulation_dtype, lowers
from kernel_lsp.generate.lowering.reduction import elements, without


@lowers("_softmax", "_safe_softmax", "softmax", "_log_softmax", "log_softmax")
def _softmax(call: Call) -> Tensor:
    source = call.tensor(0)
    if not source.shape:
        value = 0.0 if "log" in call.node.op else 1.0
        return call.builder.pointwise(call.dtype(), (), lambda index: cast(Constant(value, DType.F64), call.dtype()))
    axis = call.axis(1, "dim", len(source.shape))
    if "log" in call.node.op:
        return log_softmax_over(call.builder, source, axis, call.dtype())
    return softmax_over(call.builder, source, axis, call.dtype(), is_safe="safe" in call.node.op)


def softmax_over(builder: Builder, source: Tensor, axis: int, dtype: DType, *, is_safe: bool) -> Tensor:
    """Return exp(x - max) over its sum. With `is_safe`, a row of all -inf gives 0, where the quotient is NaN."""
    peak, total, computed = _softmax_parts(builder, source, axis)

    def body(index: tuple[Index, ...]) -> Scalar:
        kept = without(index, (axis,))
        high = Access(peak, kept)
        value = op("exp", op("sub", cast(Access(source, index), computed), high))
        quotient = op("div", value, Access(total, kept))
        is_empty = compare("eq", high, number(float("-inf"), high))
        return select(is_empty, number(0, value), quotient) if is_safe else quotient

    return builder.pointwise(dtype, source.shape, body)


def log_softmax_over(builder: Builder, source: Tensor, axis: int, dtype: DType) -> Tensor:
    """Return x - max - log(sum(exp(x - max)))."""
    peak, total, computed = _softmax_parts(builder, source, axis)
    log_sum = builder.pointwise(computed, total.shape, lambda index: op("log", Access(total, index)), name="log_sum")

    def body(index: tuple[Index, ...]) -> Scalar:
        kept = without(index, (axis,))
        shifted = op("sub", cast(Access(source, index), computed), Access(peak, kept))
        return op("sub", shifted, Access(log_sum, kept))

    return builder.pointwise(dtype, source.shape, body)


def _softmax_parts(builder: Builder, source: Tensor, axis: int) -> tuple[Tensor, Tensor, DType]:
    dtype = accumulation_dtype(source.dtype)
    value = elements(source, dtype)
    peak = builder.reduction("max", dtype, source.shape, (axis,), value, name="peak")

    def shifted_exp(index: tuple[Index, ...]) -> Scalar:
        return op("exp", op("sub", value(index), Access(peak, without(index, (axis,)))))

    return peak, builder.reduction("sum", dtype, source.shape, (axis,), shifted_exp, name="sum_exp"), dtype
