"""Find patterns of rows: reductions of lines, which are parts of the rows of another, and pairs of dependent reductions
whose combination over parts of a row is accurate enough.

A variance needs the mean of the row, and a softmax's sum its maximum. A part of the row can use its own mean or maximum
instead: Chan's formula, or a factor, then corrects its result to that of the whole row. One pass over memory and one
exchange between blocks then compute both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.fusion.fusion_state import Progress
from kernel_lsp.generate.fusion.groups import RowGroup, RowReduction
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index, divide_exactly
from kernel_lsp.generate.ir.scalar import Access, Constant, IndexValue, Scalar, operands_of
from kernel_lsp.generate.ir.sizes import ravel, reshape
from kernel_lsp.generate.ir.tensor import Reduction, Tensor, pattern_of

PairKind = Literal["moments", "exponentials"]


@dataclass(frozen=True)
class Pair:
    """`second` depends on `first` through `pivot` alone: the mean of the row, or its maximum.

    For ``moments``, `offset` is what `first` is relative to: the mean is ``offset + first / n``; None stands for 0.
    """

    kind: PairKind
    first: RowReduction
    second: RowReduction
    pivot: Scalar
    offset: Scalar | None = None


@dataclass(frozen=True)
class Follower:
    """A sum of distances from the maxima of pairs, weighted by the exponentials of `base` if there is one. When the
    maxima of what was read so far change, each term changes by the same: `shifts` are the signs of the distances."""

    entry: RowReduction
    base: Pair | None
    shifts: tuple[tuple[int, Pair], ...]


def find_pairs(group: RowGroup) -> tuple[Pair, ...]:
    """Return the disjoint pairs of a group."""
    pairs: list[Pair] = []
    for second in group.reductions:
        pair = _pair_of(second, group.reductions, group.n_columns)
        if pair is not None and all(pair.first is not other.first for other in pairs):
            pairs.append(pair)
    return tuple(pairs)


def find_followers(group: RowGroup, pairs: Sequence[Pair]) -> tuple[Follower, ...]:
    """Return the sums of a group that the pass of its pairs can find besides."""
    maxima = [pair for pair in pairs if pair.kind == "exponentials" and pair.first.level == 0]
    found: list[Follower] = []
    for entry in group.reductions:
        is_sum = entry.kind == "sum" and entry.level == 1 and entry.tensor.dtype == DType.F32
        for base in (None, *maxima) if is_sum and maxima else ():
            shifts = _shifts(entry.scalar, base, maxima)
            if shifts:
                found.append(Follower(entry, base, shifts))
                break
    return tuple(found)


def n_passes(group: RowGroup, *, online: bool = False, shared: bool = False) -> int:
    """Return the number of passes over the row that its dependences need. `online`: one pass computes pairs, and what
    follows them unless blocks have `shared` the row."""
    pairs = find_pairs(group) if online else ()
    together = {pair.second for pair in pairs}
    together |= {each.entry for each in (() if shared else find_followers(group, pairs))}
    levels = {entry.level for entry in group.reductions if entry not in together}
    return len(levels | {level for level, _ in group.stores})


def _shifts(scalar: Scalar, base: Pair | None, maxima: Sequence[Pair]) -> tuple[tuple[int, Pair], ...]:
    """Return the signs of the distances that the terms of a follower have; none of anything else."""
    if base is None:
        for pair in maxima:
            if operands_of(scalar, "sub") == (pair.first.scalar, pair.pivot):
                return ((1, pair),)
    elif choice := operands_of(scalar, "select"):
        zero = Constant(0.0, DType.F32)
        is_empty = operands_of(choice[0], "eq") == (base.second.scalar, zero) and choice[1] == zero
        return _shifts(choice[2], base, maxima) if is_empty else ()
    elif factors := operands_of(scalar, "mul"):
        return _shifts(factors[1], None, maxima) if factors[0] == base.second.scalar else ()
    for name, sign in (("add", 1), ("sub", -1)):
        if operands := operands_of(scalar, name):
            left, right = (_shifts(operand, base, maxima) for operand in operands)
            return (*left, *((sign * other, pair) for other, pair in right)) if left and right else ()
    return ()


def _pair_of(second: RowReduction, reductions: Sequence[RowReduction], n_columns: Index) -> Pair | None:
    if second.kind != "sum" or second.tensor.dtype != DType.F32:
        return None
    for first in reductions:
        if first.level + 1 == second.level and first.tensor.dtype == DType.F32 and first.scalar.dtype == DType.F32:
            pair = _moments(first, second, n_columns) or _exponentials(first, second)
            if pair is not None:
                return pair
    return None


def _exponentials(first: RowReduction, second: RowReduction) -> Pair | None:
    """Match ``max(v)`` and ``sum(exp(v - max))``."""
    shifted = operands_of(second.scalar, "exp")
    difference = operands_of(shifted[0], "sub") if shifted else ()
    if first.kind != "max" or not difference or difference[0] != first.scalar:
        return None
    return Pair("exponentials", first, second, difference[1]) if _is_result(difference[1], first) else None


def _moments(first: RowReduction, second: RowReduction, n_columns: Index) -> Pair | None:
    """Match ``sum(v - offset)`` and ``sum((v - mean)^2)``."""
    factors = operands_of(second.scalar, "mul")
    difference = operands_of(factors[0], "sub") if factors and factors[0] == factors[1] else ()
    if first.kind != "sum" or not difference:
        return None
    value, mean = difference
    offset, quotient = operands_of(mean, "add") or (None, mean)
    fraction = operands_of(quotient, "div")
    if not fraction or not _is_result(fraction[0], first) or not is_count(fraction[1], n_columns):
        return None
    expected = operands_of(first.scalar, "sub") if offset is not None else (first.scalar,)
    is_same = expected == (value, offset) if offset is not None else expected == (value,)
    return Pair("moments", first, second, mean, offset) if is_same else None


def _is_result(scalar: Scalar, reduction: RowReduction) -> bool:
    return isinstance(scalar, Access) and scalar.tensor is reduction.tensor


def is_count(scalar: Scalar, n_columns: Index) -> bool:
    """Return True if the scalar is the number of columns."""
    if isinstance(scalar, Constant):
        return n_columns.constant is not None and scalar.value == n_columns.constant
    inner = operands_of(scalar, "cast")
    return bool(inner) and isinstance(inner[0], IndexValue) and inner[0].index == n_columns


@dataclass(frozen=True)
class LinesOfRows:
    """A `row` has `n` lines of `length` columns; `number` is that of a line."""

    row: Variable
    number: Variable
    n: int
    length: Index

    @classmethod
    def of(cls, definition: Reduction, row: Variable, column: Variable, progress: Progress) -> LinesOfRows | None:
        """Return the lines that the reduction combines; None where they are not those of the rows."""
        pattern = pattern_of(definition)
        if [kind for kind, _ in pattern] != ["o", "r"] or definition.kind != "sum":
            return None
        (_, n_lines), (_, length) = pattern
        per_row = divide_exactly(n_lines, row.extent)
        n = per_row.constant if per_row is not None else None
        if n is None or n < 2 or not progress.sizes.same(length * n, column.extent):
            return None
        return cls(row, progress.variable("line", as_index(n)), n, length)

    def index(self, number: Index, within: Index, definition: Reduction) -> tuple[Index, ...]:
        """Return the index of an element of a line in the domain of the reduction."""
        shape = [variable.extent for variable in definition.domain]
        flat = as_index(self.row) * self.n + number
        return reshape((flat, within), (self.row.extent * self.n, self.length), shape)

    def place(self, tensor: Tensor) -> tuple[Index, ...]:
        """Return the index of a line's value in a tensor with one element per line."""
        return reshape((self._flat(),), (self.row.extent * self.n,), tensor.shape)

    def is_own(self, access: Access) -> bool:
        """Return True for a read of the value of a line itself."""
        return ravel(access.index, access.tensor.shape) == self._flat()

    def _flat(self) -> Index:
        return as_index(self.row) * self.n + as_index(self.number)
