"""Find what indexing, reductions and joins of tensors require of shapes, and the dims of their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.source.inference.arrays import Array, Dim, join
from kernel_lsp.source.inference.operations import DEFAULT_CHUNK, FUNCTIONS, REDUCTIONS, WITH_INDICES, elementwise
from kernel_lsp.source.inference.values import UNKNOWN

MAX_INDEX = 64
"""Maximum constant index that says how long a dim is: four columns are a box, a thousand are a table."""


@dataclass(frozen=True)
class Unbound:
    """The slices of a tensor along one of its dims. Unpacking them fixes its size."""

    array: Array
    axis: int

    def parts(self, n: int) -> list[object]:
        """Return `n` slices."""
        if self.axis >= 0:
            self.array.assume_rank(self.axis + 2)
        dim = self.array.at(self.axis)
        if dim is None:
            return [UNKNOWN] * n
        dim.give(n)
        part = _without(self.array, [self.axis], False)
        return [self.array.view(part.all_dims(), part.known_rank) for _ in range(n)]


def indexed(array: Array, index: object) -> object:
    """Return ``array[index]`` for integers, slices, None and an ellipsis; UNKNOWN for other indices."""
    items = list(index) if isinstance(index, list) else [index]
    if any(isinstance(item, Array | list) or item is UNKNOWN for item in items) or items.count(...) > 1:
        return UNKNOWN
    n_read = sum(item is not None and item is not ... for item in items)
    rank = _rank_for(array, items, n_read)
    if ... not in items:
        if rank is None or rank < n_read:
            return UNKNOWN
        items.append(...)
    at = items.index(...)
    for axis in range(sum(item is not None for item in items[at + 1 :])):
        array.at(-axis - 1)
    known = array.all_dims()
    n_behind = sum(item is not None for item in items[at + 1 :])
    n_before = n_read - n_behind
    if array.known_rank is None and n_before:
        return UNKNOWN
    kept = known[n_before : len(known) - n_behind]
    front = _selected(items[:at], known[:n_before], array.likely_rank > 0)
    back = _selected(items[at + 1 :], known[len(known) - n_behind :], array.likely_rank > 0)
    if array.known_rank is None:
        return array.view([*kept, *back], None)
    return array.view([*front, *kept, *back], len(front) + len(kept) + len(back))


def _rank_for(array: Array, items: Sequence[object], n_read: int) -> int | None:
    """Return the rank of an indexed tensor. A slice in the last place ends it; an integer there ends it where other
    integers stand there, too, which are columns: the others are places of a sequence."""
    last = items[-1] if len(items) > 1 else None
    if type(last) is int:
        array.root.columns = max(array.root.columns, last)
        is_column = ... in items or array.root.columns > 0
        return array.assume_rank(max(n_read + (not is_column), 1), exact=is_column and ... not in items)
    return array.assume_rank(max(n_read, 1), exact=isinstance(last, slice) and ... not in items)


def _selected(items: Sequence[object], dims: Sequence[Dim], is_decided: bool) -> list[Dim]:
    """Return the dims that some items leave of the dims that they read."""
    left, found = list(dims), []
    for item in items:
        if item is None:
            found.append(Dim(1))
            continue
        dim = left.pop(0)
        if isinstance(item, slice):
            found.append(_sliced(dim, item, is_decided))
        elif isinstance(item, int):
            _needs(dim, item + 1 if item >= 0 else -item)
    return found


def _needs(dim: Dim, n: int) -> None:
    if n <= MAX_INDEX:
        dim.root.least = max(dim.root.least, n)


def _sliced(dim: Dim, item: slice, is_decided: bool) -> Dim:
    """Return the dim of a slice. One by steps gives an open dim a size: no name says that another is a part of it."""
    start, stop, step = item.start, item.stop, item.step
    if step not in (None, 1):
        if not isinstance(step, int) or step <= 0 or not all(isinstance(each, int | None) for each in (start, stop)):
            return Dim()
        if is_decided:
            dim.give(step * DEFAULT_CHUNK)
        return Dim(None if dim.size is None else len(range(dim.size)[item]))
    match start, stop:
        case ((None | 0), None):
            return dim
        case int(), None if start > 0:
            return dim.without(start)
        case int(), None:
            _needs(dim, -start)
            return Dim(-start)
        case ((None | 0), int()) if stop < 0:
            return dim.without(-stop)
        case ((None | int()), int()) if (start or 0) >= 0 and stop > (start or 0):
            _needs(dim, stop)
            return Dim(stop - (start or 0) if dim.size is None else len(range(dim.size)[item]))
    return Dim()


def _axes(array: Array, value: object) -> list[int] | None:
    """Return the axes that a reduction names; None where they are unknown, or the rank that they need is."""
    given = value if isinstance(value, list) else [value]
    axes = [axis for axis in given if isinstance(axis, int) and not isinstance(axis, bool)]
    if not axes or len(axes) < len(given):
        return None
    if min(axes) >= 0 or (min(axes) < 0 <= max(axes)):
        rank = array.assume_rank(max(axes) + 1)
        if rank is None or not all(-rank <= axis < rank for axis in axes):
            return None
    for axis in axes:
        if axis < 0 and array.at(axis) is None:
            return None
    return axes


def _without(array: Array, axes: Sequence[int], keeps: bool) -> Array:
    """Return the tensor without some dims, or with 1 in their places."""
    dims = array.all_dims()
    dropped = {axis % len(dims) for axis in axes}
    pairs = [(i in dropped, dim) for i, dim in enumerate(dims)]
    left = [Dim(1) if is_dropped else dim for is_dropped, dim in pairs if keeps or not is_dropped]
    rank = array.known_rank
    return Array(left, None if rank is None else len(left), is_state=array.is_state, likely_rank=array.likely_rank)


def _reduced(x: object = None, axis: object = None, keeps: object = False, *_: object) -> object:
    if not isinstance(x, Array):
        return None
    axes = _axes(x, axis)
    return None if axes is None else _without(x, axes, keeps is True)


def _extremum(x: object = None, axis: object = None, keeps: object = False, *_: object) -> object:
    """Return the larger or smaller of two tensors, or values and indices along a dim."""
    if isinstance(axis, Array):
        return elementwise(x, axis)
    found = _reduced(x, axis, keeps)
    return None if found is None else [found, found]


def _unsqueezed(x: object = None, axis: object = None, *_: object) -> object:
    if not isinstance(x, Array) or type(axis) is not int:
        return None
    rank = x.assume_rank(max(axis, 1))
    if rank is None or not -rank - 1 <= axis <= rank:
        return None
    dims = x.all_dims()
    at = axis if axis >= 0 else rank + 1 + axis
    return x.view([*dims[:at], Dim(1), *dims[at:]], rank + 1)


def _squeezed(x: object = None, axis: object = None, *_: object) -> object:
    if not isinstance(x, Array) or type(axis) is not int:
        return None
    dim = x.at(axis)
    return _without(x, [axis], False) if dim is not None and dim.size == 1 else None


def _unbound(x: object = None, axis: object = 0, *_: object) -> object:
    if not isinstance(x, Array) or type(axis) is not int:
        return None
    return Unbound(x, axis) if axis < 0 or x.assume_rank(axis + 2) is not None else None


def _stacked(parts: object = None, axis: object = 0, *_: object) -> object:
    arrays = [part for part in parts if isinstance(part, Array)] if isinstance(parts, list) else []
    if not arrays or type(axis) is not int:
        return None
    whole = elementwise(*arrays)
    rank = whole.known_rank if whole is not None else None
    if whole is None or rank is None or not -rank - 1 <= axis <= rank:
        return None
    dims = whole.all_dims()
    at = axis if axis >= 0 else rank + 1 + axis
    return Array([*dims[:at], Dim(len(arrays)), *dims[at:]], rank + 1)


def _concatenated(parts: object = None, axis: object = 0, *_: object) -> object:
    """Join the dims of the parts but the one along which they are joined."""
    arrays = [part for part in parts if isinstance(part, Array)] if isinstance(parts, list) else []
    if not isinstance(parts, list) or len(arrays) < max(len(parts), 1) or type(axis) is not int:
        return None
    known = next((array.known_rank for array in arrays if array.known_rank is not None), None)
    for array in arrays:
        if known is not None:
            array.set_rank(known)
    if known is None or any(array.known_rank != known for array in arrays) or not -known <= axis < known:
        return None
    at = axis % known
    for other in arrays[1:]:
        for i, (left, right) in enumerate(zip(arrays[0].all_dims(), other.all_dims(), strict=True)):
            if i != at:
                join(left, right)
    sizes = [array.all_dims()[at].size for array in arrays]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    return Array([Dim(total) if i == at else dim for i, dim in enumerate(arrays[0].all_dims())], known)


def _flattened(x: object = None, start: object = 0, end: object = -1, *_: object) -> object:
    if not isinstance(x, Array) or type(start) is not int or end != -1 or start < 0:
        return None
    rank = x.assume_rank(start + 1)
    return None if rank is None or rank <= start else x.view([*x.all_dims()[:start], Dim()], start + 1)


def _viewed(x: object = None, *sizes: object) -> object:
    """Return the tensor of a `view` with the sizes that are known; of -1 and what is computed they are not. One of 1 in
    all other places has the elements of a vector."""
    given = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], list) else sizes
    if not isinstance(x, Array) or not given:
        return None
    known = [each if isinstance(each, Dim) or (isinstance(each, int) and each > 0) else None for each in given]
    dims = [each if isinstance(each, Dim) else Dim(each) for each in known]
    if [*given].count(-1) == 1 and [*given].count(1) == len(given) - 1:
        x.assume_rank(1, exact=True)
        dims[given.index(-1)] = x.at(-1) or Dim()
    return x.view(dims, len(dims))


def _sorted(x: object = None, *_: object) -> object:
    """Return values and indices."""
    return [x, x.view(x.all_dims(), x.known_rank)] if isinstance(x, Array) else None


FUNCTIONS |= (
    dict.fromkeys(REDUCTIONS, _reduced)
    | dict.fromkeys(WITH_INDICES, _extremum)
    | dict.fromkeys(("cat", "concat", "concatenate"), _concatenated)
    | dict.fromkeys(("view", "reshape"), _viewed)
    | {"flatten": _flattened, "unsqueeze": _unsqueezed, "squeeze": _squeezed, "unbind": _unbound}
    | {"stack": _stacked, "sort": _sorted}
)
