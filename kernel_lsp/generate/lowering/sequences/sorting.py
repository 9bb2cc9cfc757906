"""Sorted rows and what is read off them: top-k, k-th values, medians, modes, and places in a sorted row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.index import ONE, ZERO, Index, as_index, product
from kernel_lsp.generate.ir.scalar import Access, Loop, Scalar, compare, index_value, integer, select
from kernel_lsp.generate.ir.tensor import Routine, Tensor
from kernel_lsp.generate.lowering.arithmetic import op
from kernel_lsp.generate.lowering.builder import Call, lowers
from kernel_lsp.generate.lowering.indexing import extreme, position_of
from kernel_lsp.generate.lowering.reduction import shaped

Results = tuple[Tensor, ...]
RankOf = Callable[[tuple[Index, ...]], Index]
"""Map from a row's index to the rank of an element in it."""


@lowers("sort")
def _sort(call: Call) -> Results:
    axis = _axis(call, call.raw(1, "dim", -1))
    return _selected(call, axis, None, bool(call.raw(2, "descending", False)))


@lowers("topk")
def _topk(call: Call) -> Results:
    axis = _axis(call, call.raw(2, "dim", -1))
    return _selected(call, axis, call.size(1, "k"), bool(call.raw(3, "largest", True)))


@lowers("kthvalue")
def _kthvalue(call: Call) -> Results:
    axis = _axis(call, call.raw(2, "dim", -1))
    count = call.size(1, "k")
    return _of_rank(call, axis, lambda rest: count - 1, count)


@lowers("median.dim", "nanmedian.dim")
def _median_of_rows(call: Call) -> Results:
    axis = _axis(call, call.raw(1, "dim", -1))
    return _of_rank(call, axis, _median_rank(call, axis))


@lowers("median.default", "nanmedian.default")
def _median(call: Call) -> Tensor:
    source = call.tensor(0)
    flat = call.builder.reshaped(source, (product(source.shape),))
    places = _sorted_places(call, flat, None, is_descending=False)
    rank = _median_rank(call, 0, flat)(())
    return call.builder.pointwise(call.dtype(), (), lambda index: Access(flat, (position_of(Access(places, (rank,))),)))


@lowers("mode")
def _mode(call: Call) -> Results:
    """Lower the most frequent value of each row, the smallest of equally frequent ones, and its last place."""
    source, axis = call.tensor(0), _axis(call, call.raw(1, "dim", -1))
    rows = _rows(call, source, axis)
    last = len(rows.shape) - 1

    def count(index: tuple[Index, ...]) -> Scalar:
        (other,) = call.builder.variables((rows.shape[last],), names=("other",))
        is_same = compare("eq", Access(rows, (*index[:last], as_index(other))), Access(rows, index))
        return Loop("sum", (other,), DType.I64, select(is_same, integer(1), integer(0)))

    counts = call.builder.pointwise(DType.I64, rows.shape, count, name="counts")
    most = call.builder.reduction("max", DType.I64, rows.shape, (last,), lambda index: Access(counts, index))

    def candidate(index: tuple[Index, ...]) -> Scalar:
        is_most = compare("eq", Access(counts, index), Access(most, index[:last]))
        return select(is_most, Access(rows, index), extreme(rows.dtype, is_largest=True))

    value = call.builder.reduction("min", rows.dtype, rows.shape, (last,), candidate, name="mode")

    def place(index: tuple[Index, ...]) -> Scalar:
        is_here = compare("eq", Access(rows, index), Access(value, index[:last]))
        return select(is_here, index_value(index[last]), integer(0))

    at = call.builder.reduction("max", DType.I64, rows.shape, (last,), place, name="mode_place")
    return shaped(call, value, 0), shaped(call, at, 1)


@lowers("searchsorted", "bucketize")
def _searchsorted(call: Call) -> Tensor:
    """Lower the place of each value in a sorted row: the number of its elements that are smaller (or equal)."""
    is_bucketize = call.node.op.startswith("aten.bucketize")
    boundaries = call.tensor(1, "boundaries") if is_bucketize else call.tensor(0, "sorted_sequence")
    is_right = bool(call.node.keywords.get("right", False)) or call.node.keywords.get("side") == "right"
    if call.node.keywords.get("sorter") is not None:
        call.fail("a sorter is not implemented")
    values = 0 if is_bucketize else 1
    is_tensor = call.is_tensor(values)

    def element(index: tuple[Index, ...]) -> Scalar:
        own = Access(call.tensor(values), index) if is_tensor else call.scalar(values, "self", boundaries.dtype)
        (place,) = call.builder.variables((boundaries.shape[-1],), names=("place",))
        rest = index[: len(boundaries.shape) - 1]
        is_before = compare("le" if is_right else "lt", Access(boundaries, (*rest, as_index(place))), own)
        return Loop("sum", (place,), DType.I64, select(is_before, integer(1), integer(0)))

    return call.builder.pointwise(call.dtype(), call.shape(), element)


def _axis(call: Call, dim: object) -> int:
    rank = max(len(call.tensor(0).shape), 1)
    value = dim if isinstance(dim, int) else -1
    return value % rank


def _rows(call: Call, source: Tensor, axis: int) -> Tensor:
    """Return the tensor with the axis moved to the end; a scalar becomes a row of one."""
    if not source.shape:
        return call.builder.reshaped(source, (ONE,))
    if axis == len(source.shape) - 1:
        return source
    shape = (*source.shape[:axis], *source.shape[axis + 1 :], source.shape[axis])
    return call.builder.view(source, shape, lambda index: (*index[:axis], index[-1], *index[axis:-1]))


def _places(call: Call, axis: int, count: Index | None, is_descending: bool) -> Tensor:
    return _sorted_places(call, _rows(call, call.tensor(0), axis), count, is_descending=is_descending)


def _sorted_places(call: Call, rows: Tensor, count: Index | None, *, is_descending: bool) -> Tensor:
    """Return the places of the first `count` elements of each sorted row; of all for None."""
    shape = (*rows.shape[:-1], rows.shape[-1] if count is None else count)
    routine = Routine("descending" if is_descending else "ascending", (rows,))
    return call.builder.tensor(f"{call.builder.result_name()}_places", DType.I32, shape, routine)


def _at_axis(call: Call, places: Tensor, axis: int, item: int) -> Tensor:
    """Return the places as the call's result, with the sorted axis where it was."""

    def element(index: tuple[Index, ...]) -> Scalar:
        at = (*index[:axis], *index[axis + 1 :], index[axis]) if index else (ZERO,)
        return Access(places, at)

    return call.builder.pointwise(call.dtype(item), call.shape(item), element)


def _selected(call: Call, axis: int, count: Index | None, is_descending: bool) -> Results:
    """Return (values, indices) of the first elements of the sorted rows."""
    source = call.tensor(0)
    places = _at_axis(call, _places(call, axis, count, is_descending), axis, 1)

    def value(index: tuple[Index, ...]) -> Scalar:
        at = (*index[:axis], position_of(Access(places, index)), *index[axis + 1 :]) if index else ()
        return Access(source, at)

    return call.builder.pointwise(call.dtype(), call.shape(), value), places


def _of_rank(call: Call, axis: int, rank_of: RankOf, count: Index | None = None) -> Results:
    """Return (values, indices) of the element of one rank of each row. `rank_of` maps a row's index to the rank, which
    is below `count`."""
    source = call.tensor(0)
    rows = _rows(call, source, axis)
    places = _sorted_places(call, rows, count, is_descending=False)
    shape = rows.shape[:-1]
    at = call.builder.pointwise(
        DType.I64,
        shape,
        lambda index: Access(places, (*index, rank_of(index))),
        name=f"{call.builder.result_name()}_at",
    )
    value = call.builder.pointwise(
        source.dtype, shape, lambda index: Access(rows, (*index, position_of(Access(at, index))))
    )
    return shaped(call, value, 0), shaped(call, at, 1)


def _median_rank(call: Call, axis: int, source: Tensor | None = None) -> RankOf:
    """Return the map from a row to the rank of its median: the lower of two. A NaN is the median of its row, unless
    NaN are to be left out."""
    rows = source or _rows(call, call.tensor(0), axis)
    length = rows.shape[-1]
    if not rows.dtype.is_floating:
        return lambda index: (length - 1) // 2
    leaves_out = call.node.op.startswith("aten.nanmedian")

    def is_number(index: Sequence[Index]) -> Scalar:
        return select(op("isnan", Access(rows, index), dtype=DType.BOOL), integer(0), integer(1))

    last = len(rows.shape) - 1
    counted = call.builder.reduction("sum", DType.I64, rows.shape, (last,), is_number, name="n_numbers")

    def rank(index: tuple[Index, ...]) -> Index:
        n_numbers = Access(counted, index)
        if leaves_out:
            middle = op("div_floor", op("sub", n_numbers, integer(1)), integer(2))
            return position_of(select(compare("gt", n_numbers, integer(0)), middle, integer(0)))
        is_whole = compare("eq", n_numbers, index_value(length))
        return position_of(select(is_whole, index_value((length - 1) // 2), n_numbers))

    return rank
