"""Tensors whose shapes are partly known. Dims that must be equal are joined, so a size found for one holds for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class Dim:
    """One dim of a tensor; `size` is None while unknown, `hint` an example of it."""

    _size: int | None = None
    hint: int | None = None
    _joined: Dim | None = None

    @property
    def root(self) -> Dim:
        dim = self
        while dim._joined is not None:
            dim = dim._joined
        return dim

    @property
    def size(self) -> int | None:
        return self.root._size

    def give(self, size: int | None) -> None:
        """Set the size, unless it has one."""
        if self.root._size is None:
            self.root._size = size

    def limit(self, size: int) -> None:
        """Bound the example that stands for the dim while its size is unknown."""
        self.root.hint = min(self.root.hint or size, size)


def join(first: Dim, second: Dim) -> None:
    """Make two dims equal. Dims of different sizes stay apart: one of them is broadcast, or the code is wrong."""
    first, second = first.root, second.root
    if first is not second and (first._size is None or second._size is None or first._size == second._size):
        first.give(second._size)
        first.hint = first.hint or second.hint
        second._joined = first


@dataclass(eq=False)
class Array:
    """A tensor. `dims` are its trailing dims while `rank` is unknown, else all. `is_state`: a parameter or buffer."""

    dims: list[Dim] = field(default_factory=list)
    rank: int | None = None
    dtype: str = ""
    """Name of the dtype, empty while unknown."""
    below: Dim | None = None
    """Bound of an index: its values are in [0, below)."""
    is_state: bool = False
    is_operand: bool = False
    """It is computed with another tensor, element by element."""
    counts: Dim | None = None
    """The dim whose indices are its elements, as those of ``torch.arange(x.shape[1])`` are."""
    _same: Array | None = None

    @property
    def root(self) -> Array:
        array = self
        while array._same is not None:
            array = array._same
        return array

    @property
    def known_rank(self) -> int | None:
        return self.root.rank

    def all_dims(self) -> list[Dim]:
        """Return the known dims, aligned at the last."""
        return self.root.dims

    def set_rank(self, rank: int) -> None:
        """Fix the number of dims, unless it is known or more dims are."""
        root = self.root
        if root.rank is None and len(root.dims) <= rank:
            root.rank = rank
            root.dims[:0] = [Dim() for _ in range(rank - len(root.dims))]

    def at(self, axis: int) -> Dim | None:
        """Return a dim; None where the rank is unknown and the axis counts from the front, or there is none."""
        root = self.root
        if axis < 0 and root.rank is None:
            root.dims[:0] = [Dim() for _ in range(-axis - len(root.dims))]
        is_inside = -len(root.dims) <= axis < len(root.dims) if root.rank is not None else axis < 0
        return root.dims[axis] if is_inside else None

    def fix(self, axis: int, size: object) -> None:
        """Give a dim its size."""
        dim = self.at(axis)
        if dim is not None and isinstance(size, int) and not isinstance(size, bool):
            dim.give(size)

    def suggest(self, hints: Sequence[int]) -> None:
        """Give each dim an example size, unless it has one."""
        for dim, hint in zip(self.root.dims, hints, strict=False):
            dim.root.hint = dim.root.hint or hint

    def with_last(self, last: Dim) -> Array:
        """Return a tensor that differs in its last dim alone."""
        self.at(-1)
        root = self.root
        return Array([*root.dims[:-1], last], root.rank)


def array_of(sizes: Sequence[int | None]) -> Array:
    """Return a tensor of known rank; None is an unknown size."""
    return Array([Dim(size) for size in sizes], len(sizes))


def match(first: Array, second: Array) -> Array:
    """Join the dims of two operands of an elementwise operation; return the one with the result's shape."""
    a, b = (second, first) if _is_broadcast(first, second) else (first, second)
    if a.root is b.root:
        return a
    if b.known_rank is None or (a.known_rank is None and b.known_rank > 1 and not b.is_state):
        same_shape(a, b)
        return a
    for axis in range(-len(b.all_dims()), 0):
        left, right = a.at(axis), b.at(axis)
        if left is not None and right is not None and 1 not in (left.size, right.size):
            join(left, right)
    return a


def same_shape(first: Array, second: Array) -> None:
    """Give two tensors one shape, unless their ranks differ."""
    a, b = first.root, second.root
    if a is b:
        return
    if a.rank is None:
        a, b = b, a
    if a.rank is not None and (len(b.dims) > a.rank or b.rank not in (None, a.rank)):
        return
    for left, right in zip(reversed(a.dims), reversed(b.dims), strict=False):
        join(left, right)
    a.dims[:] = a.dims if len(a.dims) >= len(b.dims) else b.dims
    b._same = a


def _is_broadcast(first: Array, second: Array) -> bool:
    """Return True when the first operand is the smaller one: a module's state, a vector, or of lower rank."""
    if first.is_state != second.is_state:
        return first.is_state
    if first.known_rank is None or second.known_rank is None:
        return first.known_rank is not None and first.known_rank <= 1
    return first.known_rank < second.known_rank
