"""Contractions: matrix products and what sums of products have in common."""

from __future__ import annotations

from collections.abc import Callable

from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.scalar import Access, Scalar, cast
from kernel_lsp.generate.ir.tensor import CopiedFactor, LibraryCall, Phases, Pointwise, Tensor
from kernel_lsp.generate.lowering.arithmetic import op
from kernel_lsp.generate.lowering.builder import Call, Shape, accumulation_dtype, lowers, positions, read

Factors = Callable[[tuple[Index, ...], tuple[Index, ...]], tuple[Scalar, Scalar]]


def contract(
    call: Call,
    shape: Shape,
    reduced_shape: Shape,
    factors: Factors,
    axes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    *,
    name: str = "",
    library: LibraryCall | None = None,
    phases: Callable[[tuple[Variable, ...]], Phases] | None = None,
    copied: Callable[[tuple[Index, ...], tuple[Index, ...]], CopiedFactor] | None = None,
    item: int = 0,
) -> Tensor:
    """Return a contraction in the accumulation type of a result of the call."""
    return call.builder.contraction(
        accumulation_dtype(call.dtype(item)),
        shape,
        reduced_shape,
        factors,
        axes,
        name=name,
        library=library,
        phases=phases,
        copied=copied,
    )


def converted(call: Call, tensor: Tensor, item: int = 0) -> Tensor:
    """Return the tensor converted to the dtype of a result."""
    dtype = call.dtype(item)
    if tensor.dtype == dtype:
        return tensor
    return call.builder.pointwise(dtype, tensor.shape, lambda index: Access(tensor, index), name=tensor.name)


def matrix_product(call: Call, left: Tensor, right: Tensor) -> Tensor:
    """Return (..., M, K) x (..., K, N) with equal leading dims. Those of one matrix that is repeated, such as a weight
    that PyTorch expands for a projection of (queries, 2, channels), are further rows: a batch of two rows each has no
    tiles."""
    n_batch = len(left.shape) - 2
    batch = tuple(range(n_batch))
    shape = (*left.shape[:-1], right.shape[-1])

    def factors(index: tuple[Index, ...], k: tuple[Index, ...]) -> tuple[Scalar, Scalar]:
        return (
            Access(left, (*index[:n_batch], index[n_batch], k[0])),
            Access(right, (*index[:n_batch], k[0], index[n_batch + 1])),
        )

    library = LibraryCall("aten::bmm" if n_batch else "aten::mm", (left, right), shape) if n_batch <= 1 else None
    is_repeated = n_batch > 0 and _repeats(right, n_batch)
    axes = ((), (*batch, n_batch), (n_batch + 1,)) if is_repeated else (batch, (n_batch,), (n_batch + 1,))
    return contract(call, shape, (left.shape[-1],), factors, axes, library=library)


def _repeats(tensor: Tensor, n_batch: int) -> bool:
    """Return True for a view of one matrix, the same at each index of the leading dims."""
    definition = tensor.definition
    if not isinstance(definition, Pointwise) or not isinstance(definition.body, Access):
        return False
    read, leading = definition.body, definition.variables[:n_batch]
    if not any(index.variables & set(leading) for index in read.index):
        return True
    is_same = tuple(read.index[:n_batch]) == positions(leading) and len(read.index) == len(tensor.shape)
    return is_same and _repeats(read.tensor, n_batch)


@lowers("mm", "bmm", "_int_mm")
def _matmul(call: Call) -> Tensor:
    return converted(call, matrix_product(call, call.tensor(0), call.tensor(1, "mat2")))


@lowers("addmm", "baddbmm")
def _addmm(call: Call) -> Tensor:
    """Lower beta * self + alpha * (mat1 @ mat2)."""
    bias, left, right = call.tensor(0), call.tensor(1, "mat1"), call.tensor(2, "mat2")
    return _scaled_sum(call, bias, matrix_product(call, left, right))


def _scaled_sum(call: Call, bias: Tensor, total: Tensor) -> Tensor:
    beta = call.scalar(len(call.node.arguments), "beta", total.dtype, 1)
    alpha = call.scalar(len(call.node.arguments), "alpha", total.dtype, 1)

    def body(index: tuple[Index, ...]) -> Scalar:
        scaled = op("mul", Access(total, index), alpha)
        return op("add", scaled, op("mul", cast(read(bias, index), total.dtype), beta))

    return call.builder.pointwise(call.dtype(), call.shape(), body)


@lowers("addbmm")
def _addbmm(call: Call) -> Tensor:
    """Lower beta * self + alpha * (the sum of the products of a batch)."""
    left, right = call.tensor(1, "batch1"), call.tensor(2, "batch2")

    def factors(index: tuple[Index, ...], k: tuple[Index, ...]) -> tuple[Scalar, Scalar]:
        return Access(left, (k[0], index[0], k[1])), Access(right, (k[0], k[1], index[1]))

    shape, reduced = (left.shape[1], right.shape[2]), (left.shape[0], left.shape[2])
    return _scaled_sum(call, call.tensor(0), contract(call, shape, reduced, factors, ((), (0,), (1,))))


@lowers("_trilinear")
def _trilinear(call: Call) -> Tensor:
    """Lower a sum of products of three factors, each broadcast along dims of its own."""
    parts = [
        call.builder.unsqueezed(call.tensor(place), call.integers(place + 3, f"expand{place + 1}"))
        for place in range(3)
    ]
    dtype = accumulation_dtype(call.dtype())
    rank = len(parts[0].shape)
    shape = tuple(
        next((part.shape[axis] for part in parts if part.shape[axis].constant != 1), as_index(1))
        for axis in range(rank)
    )

    def term(index: tuple[Index, ...]) -> Scalar:
        first, second, third = (cast(read(part, index), dtype) for part in parts)
        return op("mul", op("mul", first, second), third)

    total = call.builder.reduction("sum", dtype, shape, call.integers(6, "sumdim"), term)
    return converted(call, total)


@lowers("addmv")
def _addmv(call: Call) -> Tensor:
    return _scaled_sum(call, call.tensor(0), _matrix_vector(call, call.tensor(1, "mat"), call.tensor(2, "vec")))


def _matrix_vector(call: Call, matrix: Tensor, vector: Tensor) -> Tensor:
    dtype = accumulation_dtype(call.dtype())

    def body(index: tuple[Index, ...]) -> Scalar:
        return op("mul", cast(Access(matrix, index), dtype), cast(Access(vector, index[1:]), dtype))

    return call.builder.reduction("sum", dtype, matrix.shape, (1,), body)
