"""Vector norms and distances."""

from __future__ import annotations

from kernel_lsp.generate.ir.index import Index
from kernel_lsp.generate.ir.scalar import Access, Scalar, cast, compare, select
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.lowering.builder import Call, accumulation_dtype, read
from kernel_lsp.generate.lowering.elements import number, op
from kernel_lsp.generate.lowering.reduction import reduce_over, shaped
from kernel_lsp.generate.lowering.registry import lowers


@lowers("linalg_vector_norm", "norm")
def _vector_norm(call: Call) -> Tensor:
    source = call.tensor(0)
    order = call.optional_number(1, "ord", 2)
    axes = call.axes(2, "dim", len(source.shape))
    dtype = accumulation_dtype(call.dtype())
    order = 2 if order is None else order

    def magnitude(index: tuple[Index, ...]) -> Scalar:
        return op("abs", cast(Access(source, index), dtype))

    if order in (float("inf"), float("-inf")):
        return shaped(call, reduce_over(call, "max" if order > 0 else "min", source, axes, magnitude, dtype))
    total = reduce_over(call, "sum", source, axes, lambda index: _powered(magnitude(index), order), dtype)
    root = call.builder.pointwise(dtype, total.shape, lambda index: _rooted(Access(total, index), order))
    return shaped(call, root)


def _powered(value: Scalar, order: float) -> Scalar:
    if order == 0:
        zero = number(0, value)
        return select(compare("ne", value, zero), number(1, value), zero)
    if order == 1:
        return value
    return op("mul", value, value) if order == 2 else op("pow", value, number(order, value))


def _rooted(value: Scalar, order: float) -> Scalar:
    if order in (0, 1):
        return value
    return op("sqrt", value) if order == 2 else op("pow", value, number(1 / order, value))


@lowers("dist")
def _distance(call: Call) -> Tensor:
    left, right = call.tensor(0), call.tensor(1, "other")
    order = float(call.number(2, "p", 2))
    dtype = accumulation_dtype(call.dtype())
    axes = tuple(range(len(left.shape)))

    def body(index: tuple[Index, ...]) -> Scalar:
        difference = op("sub", cast(read(left, index), dtype), cast(read(right, index), dtype))
        return _powered(op("abs", difference), order)

    total = reduce_over(call, "sum", left, axes, body, dtype)
    return shaped(call, call.builder.pointwise(dtype, (), lambda index: _rooted(Access(total, index), order)))


@lowers("_cdist_forward")
def _pairwise_distance(call: Call) -> Tensor:
    """Return the distances between all rows of (..., P, M) and (..., R, M)."""
    left, right, order = call.tensor(0, "x1"), call.tensor(1, "x2"), float(call.number(2, "p"))
    dtype = accumulation_dtype(call.dtype())
    shape = (*call.shape(), left.shape[-1])
    axis = len(shape) - 1

    def magnitude(index: tuple[Index, ...]) -> Scalar:
        lhs = read(left, (*index[:-2], index[-1]))
        rhs = read(right, (*index[:-3], *index[-2:]))
        return op("abs", op("sub", cast(lhs, dtype), cast(rhs, dtype)))

    if order == float("inf"):
        return shaped(call, call.builder.reduction("max", dtype, shape, (axis,), magnitude))
    total = call.builder.reduction(
        "sum", dtype, shape, (axis,), lambda index: _powered(magnitude(index), order), name="sum"
    )
    return shaped(call, call.builder.pointwise(dtype, total.shape, lambda index: _rooted(Access(total, index), order)))
