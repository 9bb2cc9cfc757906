"""Views and rearrangements, all as substitutions of indices without a kernel."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.index import ONE, ZERO, Index, as_index, expanded
from kernel_lsp.generate.ir.scalar import (
    Access,
    Constant,
    Scalar,
    both,
    cast,
    compare,
    guarded,
    in_range,
    index_value,
    select,
)
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.lowering.builder import Call, lowers, read


@lowers(
    "view", "reshape", "_unsafe_view", "_reshape_alias", "view_copy", "flatten", "unflatten", "squeeze", "squeeze_copy"
)
def _reshape(call: Call) -> Tensor:
    return call.builder.reshaped(call.tensor(0), call.shape())


@lowers("permute", "permute_copy")
def _permute(call: Call) -> Tensor:
    source = call.tensor(0)
    rank = len(source.shape)
    order = [axis % rank for axis in call.integers(1, "dims")]

    return call.builder.view(source, call.shape(), lambda index: [index[order.index(axis)] for axis in range(rank)])


@lowers("expand", "expand_copy", "expand_as", "broadcast_to")
def _expand(call: Call) -> Tensor:
    source = call.tensor(0)
    return call.builder.pointwise(source.dtype, call.shape(), lambda index: read(source, index), name=source.name)


@lowers("unsqueeze", "unsqueeze_copy")
def _unsqueeze(call: Call) -> Tensor:
    source = call.tensor(0)
    return call.builder.unsqueezed(source, [call.axis(1, "dim", len(source.shape) + 1)])


@lowers("unfold")
def _unfold(call: Call) -> Tensor:
    """Lower the windows along a dim; the last dim of the result is the position in the window."""
    source = call.tensor(0)
    axis, step = call.axis(1, "dimension", len(source.shape)), call.integer(3, "step")

    def to_source(index: tuple[Index, ...]) -> list[Index]:
        return [*index[:axis], index[axis] * step + index[-1], *index[axis + 1 : -1]]

    return call.builder.view(source, call.shape(), to_source)


@lowers("slice", "slice_copy")
def _slice(call: Call) -> Tensor:
    source = call.tensor(0)
    axis = call.axis(1, "dim", len(source.shape), 0)
    start = _slice_start(call, source.shape[axis], call.raw(2, "start"))
    step = call.integer(4, "step", 1)

    def to_source(index: tuple[Index, ...]) -> list[Index]:
        moved = list(index)
        moved[axis] = start + index[axis] * step
        return moved

    return call.builder.view(source, call.shape(), to_source)


def _slice_start(call: Call, size: Index, raw: object) -> Index:
    """Return the start, counted from the end when negative, and clamped to the dim where both are known."""
    if raw is None:
        return ZERO
    start = call.size(2, "start")
    if start.constant is None:
        return expanded(start)
    begin = start.constant
    if begin >= 0:
        return as_index(begin if size.constant is None else min(begin, size.constant))
    if size.constant is None:
        return expanded(size) + begin
    return as_index(max(size.constant + begin, 0))


@lowers("select", "select_copy")
def _select(call: Call) -> Tensor:
    source = call.tensor(0)
    axis = call.axis(1, "dim", len(source.shape))
    position = call.size(2, "index")
    if position.constant is not None and position.constant < 0:
        position = source.shape[axis] + position

    return call.builder.view(source, call.shape(), lambda index: (*index[:axis], position, *index[axis:]))


@lowers("split_with_sizes", "split_with_sizes_copy", "split", "split_copy", "chunk", "unbind")
def _split(call: Call) -> tuple[Tensor, ...]:
    source = call.tensor(0)
    is_unbind = "unbind" in call.node.op
    axis = call.axis(1 if is_unbind else 2, "dim", len(source.shape), 0)
    parts, start = [], ZERO
    for item in range(len(call.node.types)):
        shape = call.shape(item)
        parts.append(_part(call, source, axis, start, shape, is_unbind))
        start = start + (ONE if is_unbind else shape[axis])
    return tuple(parts)


def _part(call: Call, source: Tensor, axis: int, start: Index, shape: tuple[Index, ...], drops_axis: bool) -> Tensor:
    def to_source(index: tuple[Index, ...]) -> tuple[Index, ...]:
        if drops_axis:
            return (*index[:axis], start, *index[axis:])
        return (*index[:axis], index[axis] + start, *index[axis + 1 :])

    return call.builder.view(source, shape, to_source)


@lowers("cat", "concat")
def _cat(call: Call) -> Tensor:
    shape, dtype = call.shape(), call.dtype()
    axis = call.axis(1, "dim", len(shape), 0)
    parts = [part for part in call.tensors(0) if part is not None and len(part.shape) == len(shape)]

    return call.builder.pointwise(dtype, shape, lambda index: choose_part(parts, axis, index, dtype))


Piece = tuple[Index, Scalar, Scalar]
"""The first position of a part along an axis, whether a position is in it, and its element."""
MAX_CHAINED_PARTS = 16
"""Maximum parts that an element tries one after the other."""


def choose_part(parts: Sequence[Tensor], axis: int, index: tuple[Index, ...], dtype: DType) -> Scalar:
    """Return the element of the part that an index along `axis` falls into."""
    pieces: list[Piece] = []
    start = ZERO
    for part in parts:
        moved = (*index[:axis], index[axis] - start, *index[axis + 1 :])
        is_before_end = compare("lt", index_value(index[axis]), index_value(start + part.shape[axis]))
        is_after_start = compare("ge", index_value(index[axis]), index_value(start)) if start != ZERO else None
        inside = is_before_end if is_after_start is None else both(is_after_start, is_before_end)
        pieces.append((start, inside, cast(Access(part, moved), dtype)))
        start = start + part.shape[axis]
    return _chosen(pieces, index[axis])


def _chosen(pieces: list[Piece], position: Index) -> Scalar:
    """Return the element of the piece that `position` falls into: a chain of selects, or for many pieces a tree, which
    compares less often and nests less deeply."""
    if len(pieces) > MAX_CHAINED_PARTS:
        middle = len(pieces) // 2
        is_left = compare("lt", index_value(position), index_value(pieces[middle][0]))
        return select(is_left, _chosen(pieces[:middle], position), _chosen(pieces[middle:], position))
    result: Scalar = cast(Constant(0, DType.I64), pieces[0][2].dtype)
    for _, inside, value in reversed(pieces):
        result = guarded(inside, value, result)
    return result


@lowers("constant_pad_nd")
def _constant_pad(call: Call) -> Tensor:
    source = call.tensor(0)
    fill = call.scalar(2, "value", source.dtype, 0)
    before = _pad_amounts(call, len(source.shape))

    def element(index: tuple[Index, ...]) -> Scalar:
        moved = [position - amount for position, amount in zip(index, before, strict=True)]
        inside: Scalar = Constant(True, DType.BOOL)
        for position, size in zip(moved, source.shape, strict=True):
            inside = both(inside, in_range(position, size))
        return guarded(inside, Access(source, moved), fill)

    return call.builder.pointwise(source.dtype, call.shape(), element)


def _pad_amounts(call: Call, rank: int) -> list[Index]:
    """Return the padding before each dim. ATen lists pairs from the last dim."""
    amounts = call.sizes(1, "pad")
    before = [ZERO] * rank
    for pair in range(len(amounts) // 2):
        before[rank - 1 - pair] = amounts[2 * pair]
    return before


@lowers("flip")
def _flip(call: Call) -> Tensor:
    source = call.tensor(0)
    rank = len(source.shape)
    axes = {axis % rank for axis in call.integers(1, "dims")}

    def to_source(index: tuple[Index, ...]) -> list[Index]:
        return [source.shape[axis] - 1 - index[axis] if axis in axes else index[axis] for axis in range(rank)]

    return call.builder.view(source, call.shape(), to_source)


@lowers("repeat")
def _repeat(call: Call) -> Tensor:
    source, shape = call.tensor(0), call.shape()
    n_new = len(shape) - len(source.shape)

    def to_source(index: tuple[Index, ...]) -> list[Index]:
        return [position % size for position, size in zip(index[n_new:], source.shape, strict=True)]

    return call.builder.view(source, shape, to_source)


@lowers("diagonal", "diagonal_copy")
def _diagonal(call: Call) -> Tensor:
    source = call.tensor(0)
    rank = len(source.shape)
    offset = call.integer(1, "offset", 0)
    first, second = call.axis(2, "dim1", rank, 0), call.axis(3, "dim2", rank, 1)

    def to_source(index: tuple[Index, ...]) -> list[Index]:
        rest = iter(index[:-1])
        along = {first: index[-1] + max(-offset, 0), second: index[-1] + max(offset, 0)}
        return [along[axis] if axis in along else next(rest) for axis in range(rank)]

    return call.builder.view(source, call.shape(), to_source)


@lowers("diagonal_scatter")
def _diagonal_scatter(call: Call) -> Tensor:
    base, source = call.tensor(0), call.tensor(1, "src")
    rank = len(base.shape)
    offset = call.integer(2, "offset", 0)
    first, second = call.axis(3, "dim1", rank, 0), call.axis(4, "dim2", rank, 1)

    def element(index: tuple[Index, ...]) -> Scalar:
        place = index[first] - max(-offset, 0)
        is_on = compare("eq", index_value(index[second]), index_value(place + max(offset, 0)))
        others = (position for axis, position in enumerate(index) if axis not in (first, second))
        inside = both(in_range(place, source.shape[-1]), is_on)
        return guarded(inside, cast(Access(source, (*others, place)), base.dtype), Access(base, index))

    return call.builder.pointwise(base.dtype, call.shape(), element)


@lowers("slice_scatter")
def _slice_scatter(call: Call) -> Tensor:
    base, source = call.tensor(0), call.tensor(1, "src")
    axis = call.axis(2, "dim", len(base.shape), 0)
    start = call.size(3, "start", 0) if call.raw(3, "start") is not None else ZERO
    start = start + base.shape[axis] if start.constant is not None and start.constant < 0 else start
    step = call.integer(5, "step", 1)

    def element(index: tuple[Index, ...]) -> Scalar:
        offset = index[axis] - start
        inside = in_range(offset, source.shape[axis] * step)
        if step != 1:
            inside = both(inside, compare("eq", index_value(offset % step), index_value(ZERO)))
        moved = (*index[:axis], offset // step, *index[axis + 1 :])
        return guarded(inside, cast(Access(source, moved), base.dtype), Access(base, index))

    return call.builder.pointwise(base.dtype, call.shape(), element)
