"""Tensors whose shapes are partly known. Dims that must be equal are joined, so a size found for one holds for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

DEFAULT_RANK = 2
"""Rank of most tensors whose code leaves it open."""


@dataclass(eq=False)
class Dim:
    """One dim of a tensor; `size` is None while unknown, `hint` an example of it, `least` what indices need."""

    _size: int | None = None
    hint: int | None = None
    least: int = 0
    _joined: Dim | None = None
    _wholes: list[tuple[Dim, int]] = field(default_factory=list)
    """Dims that this one is a part of, with the number of elements that the part leaves out."""

    @property
    def root(self) -> Dim:
        dim = self
        while dim._joined is not None:
            dim = dim._joined
        return dim

    @property
    def size(self) -> int | None:
        root = self.root
        if root._size is None:
            wholes = ((whole.size, left_out) for whole, left_out in root._wholes)
            root._size = next((size - left_out for size, left_out in wholes if size is not None), None)
        return root._size

    def give(self, size: int | None) -> None:
        """Set the size, unless it has one, and that of what it is a part of."""
        root = self.root
        if root.size is None and size is not None:
            root._size = size
            for whole, left_out in root._wholes:
                whole.give(size + left_out)

    def without(self, n: int) -> Dim:
        """Return the dim that leaves out `n` elements of this one."""
        part = Dim()
        part._wholes.append((self, n))
        return part

    def limit(self, size: int) -> None:
        """Bound the example that stands for the dim while its size is unknown."""
        self.root.hint = min(self.root.hint or size, size)


def join(first: Dim, second: Dim) -> None:
    """Make two dims equal. Dims of different sizes stay apart: one of them is broadcast, or the code is wrong."""
    first, second = first.root, second.root
    if first is not second and (first.size is None or second.size is None or first.size == second.size):
        first.give(second.size)
        second.give(first.size)
        first.hint, first.least = first.hint or second.hint, max(first.least, second.least)
        first._wholes += second._wholes
        second._joined = first


@dataclass(eq=False)
class Elements:
    """Facts about the elements of a tensor, which its views share. `dtype` is empty while unknown; `below` bounds an
    index: its values are in [0, below). `is_operand`: computed with another tensor, element by element."""

    dtype: str = ""
    below: Dim | None = None
    is_operand: bool = False


@dataclass(eq=False)
class Array:
    """A tensor. `dims` are its trailing dims while `rank` is unknown, else all. `is_state`: a parameter or buffer."""

    dims: list[Dim] = field(default_factory=list)
    rank: int | None = None
    elements: Elements = field(default_factory=Elements)
    is_state: bool = False
    counts: Dim | None = None
    """The dim whose indices are its elements, as those of ``torch.arange(x.shape[1])`` are."""
    likely_rank: int = 0
    """Rank to assume where the code leaves it open; 0 assumes none."""
    least_rank: int = 0
    """Rank that the parameters of its module suggest: one of shape [C, 1, 1] is for images of batches."""
    columns: int = 0
    """Largest constant index in the last place of ``x[:, 2]``."""
    ranked_as: Array | None = None
    """A tensor of the same rank, which this one was computed from."""
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
            if root.ranked_as is not None:
                root.ranked_as.set_rank(rank)

    def assume_rank(self, least: int, exact: bool = False) -> int | None:
        """Return the rank. One that the code leaves open becomes the likely one, at least `least`."""
        root = self.root
        if root.rank is None and self.likely_rank:
            is_exact = exact and self.likely_rank <= DEFAULT_RANK
            self.set_rank(least if is_exact else max(least, self.likely_rank, root.least_rank, len(root.dims)))
        return root.rank

    def view(self, dims: Sequence[Dim], rank: int | None) -> Array:
        """Return a tensor of other dims with elements of this one."""
        return Array([*dims], rank, self.elements, self.is_state, likely_rank=self.likely_rank)

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
        return Array([*root.dims[:-1], last], root.rank, likely_rank=self.likely_rank, ranked_as=root)


def array_of(sizes: Sequence[int | None]) -> Array:
    """Return a tensor of known rank; None is an unknown size."""
    return Array([Dim(size) for size in sizes], len(sizes))


def match(first: Array, second: Array) -> Array:
    """Join the dims of two operands of an elementwise operation; return the one with the result's shape."""
    a, b = (second, first) if _is_broadcast(first, second) else (first, second)
    if a.root is b.root:
        return a
    has_ones = any(dim.size == 1 for dim in (*a.all_dims(), *b.all_dims()))
    if not has_ones and (b.known_rank is None or (a.known_rank is None and b.known_rank > 1 and not b.is_state)):
        same_shape(a, b)
        return a
    if has_ones and not b.is_state:
        for array, other in ((a, b), (b, a)):
            if other.known_rank is not None:
                array.set_rank(other.known_rank)
    if b.is_state and b.all_dims()[-1:] and b.all_dims()[-1].size == 1 != b.all_dims()[0].size:
        a.root.least_rank = len(b.all_dims()) + 1
    for axis in range(-len(b.all_dims()), 0):
        left, right = a.at(axis), b.at(axis)
        if left is not None and right is not None and 1 not in (left.size, right.size):
            join(left, right)
    return _broadcast(a, b)


def _broadcast(a: Array, b: Array) -> Array:
    """Return `a`, or where a dim of it is 1 and that of `b` is not, a tensor with the result's dims."""
    dims, others = a.all_dims(), b.all_dims()
    n = min(len(dims), len(others))
    pairs = [*zip(dims[len(dims) - n :], others[len(others) - n :], strict=True)]
    if not any(left.size == 1 != right.size for left, right in pairs):
        return a
    grown = [right if left.size == 1 else left for left, right in pairs]
    return Array([*dims[: len(dims) - n], *grown], a.known_rank, is_state=a.is_state, likely_rank=a.likely_rank)


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
