"""Sums of what a softmax weighs, or of its logarithms, relative to the maximum of the row instead of to its sum.

With ``e = exp(v - max)`` and ``p = e / sum(e)``, ``sum(p * (v - max - log(s)))`` is ``sum(e * (v - max)) / sum(e) -
log(s)``, and ``sum(v - max - log(s))`` is ``sum(v - max) - n * log(s)``. So a KL divergence, an entropy or a smoothed
cross entropy needs no pass of its own after the sums, and one pass over memory can find all (`row_patterns.py`). An
element's distance from the maximum stays as it is: an offset that all elements share costs no digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.fusion.groups import RowGroup, RowReduction, Store
from kernel_lsp.generate.fusion.row_algebra import in_float, result_of, with_scalars
from kernel_lsp.generate.fusion.row_patterns import Pair, find_pairs
from kernel_lsp.generate.ir.scalar import (
    Constant,
    Scalar,
    accesses,
    cast,
    compare,
    index_value,
    operands_of,
    operation,
    rewrite,
    select,
)


def with_weighted_sums(group: RowGroup) -> RowGroup:
    """Return the group with sums relative to maxima, one pass earlier, for sums that need a softmax's sum."""
    for tensor in [entry.tensor for entry in group.reductions if entry.level > 1]:
        pairs = [pair for pair in find_pairs(group) if pair.kind == "exponentials"]
        entry = next(each for each in group.reductions if each.tensor is tensor)
        if pairs and entry.kind == "sum" and entry.level > 1 and tensor.dtype == DType.F32:
            splits = ((pair, _Terms(group, pairs, pair).split(entry.scalar)) for pair in pairs)
            pair, found = next((each for each in splits if each[1] is not None), (pairs[0], None))
            if found is not None:
                group = _with_split(group, entry, found, pair)
    return group


@dataclass(frozen=True)
class _Split:
    """A sum over a row: that of `inner`, over a softmax's sum where it is `weighted`, and of `outer`, the same in all
    columns, whose weights add up to 1."""

    inner: Scalar | None
    outer: Scalar | None
    weighted: bool = False

    def joined(self, name: str, other: _Split) -> _Split | None:
        """Return the sum or difference of both; None where only one is weighted."""
        if self.weighted != other.weighted:
            return None
        return _Split(_joined(name, self.inner, other.inner), _joined(name, self.outer, other.outer), self.weighted)


class _Terms:
    """Splits the terms of a sum over a row, where `pair` is the softmax that weighs them."""

    def __init__(self, group: RowGroup, pairs: Sequence[Pair], pair: Pair) -> None:
        self._column, self._exponential = group.column, pair.second.scalar
        self._total = result_of(group, pair.second.tensor)
        self._peaks = {each.pivot.digest: each.first.scalar for each in pairs}
        known = {tensor for each in pairs for tensor in (each.first.tensor, each.second.tensor)}
        self._unknown = {entry.tensor for entry in group.reductions} - known

    def split(self, scalar: Scalar) -> _Split | None:
        """Return the split sum of these terms; None where they have another form."""
        found = self._parts(scalar, self._term)
        return found if found is not None and found.inner is not None else None

    def _parts(self, scalar: Scalar, leaf: Callable[[Scalar], _Split | None]) -> _Split | None:
        """Return the split of sums and differences of distances, values of the row, and what `leaf` knows."""
        scalar = in_float(scalar)
        found = self._distance(scalar) or leaf(scalar)
        if found is not None:
            return found
        for name in ("add", "sub"):
            if operands := operands_of(scalar, name):
                left, right = (self._parts(operand, leaf) for operand in operands)
                return left.joined(name, right) if left is not None and right is not None else None
        return None

    def _term(self, scalar: Scalar) -> _Split | None:
        """Return the split of a product with an element of the softmax."""
        if choice := operands_of(scalar, "select"):
            return self._of_choice(*choice)
        factors = operands_of(scalar, "mul")
        for weight, value in (factors, factors[::-1]) if factors else ():
            found = self._parts(value, lambda _: None) if self._is_weight(weight) else None
            if found is not None and found.inner is not None:
                inner = operation("mul", DType.F32, self._exponential, found.inner)
                return _Split(inner, found.outer, weighted=True)
        return None

    def _of_choice(self, condition: Scalar, if_true: Scalar, if_false: Scalar) -> _Split | None:
        """Return the split of ``p * log(p)`` with its cases: NaN where p is, and 0 where p is 0."""
        tested, compared = operands_of(condition, "isnan"), operands_of(condition, "eq")
        if not isinstance(if_true, Constant) or not self._is_weight((*tested, *compared, condition)[0]):
            return None
        found = self._term(in_float(if_false))
        if found is None or found.inner is None or (tested and math.isnan(if_true.value)):
            return found
        zero = Constant(0.0, DType.F32)
        if not compared or if_true.value != 0 or compared[1] != Constant(0.0, compared[1].dtype):
            return None
        return replace(found, inner=select(compare("eq", self._exponential, zero), zero, found.inner))

    def _distance(self, scalar: Scalar) -> _Split | None:
        """Return an element's distance from the maximum of its row, or a value of the row."""
        if self._column not in scalar.variables:
            is_known = all(read.tensor not in self._unknown for read in accesses(scalar))
            return _Split(None, cast(scalar, DType.F32)) if is_known else None
        difference = operands_of(scalar, "sub")
        if not difference or self._peaks.get(difference[1].digest) != difference[0]:
            return None
        return _Split(scalar, None)

    def _is_weight(self, scalar: Scalar) -> bool:
        """Return True for an element of the softmax."""
        scalar = in_float(scalar)
        if factors := operands_of(scalar, "mul"):
            one = Constant(1.0, self._total.dtype)
            inverse = operation("div", self._total.dtype, one, self._total)
            return factors == (self._exponential, inverse)
        exponent = operands_of(scalar, "exp")
        if not exponent:
            return operands_of(scalar, "div") == (self._exponential, self._total)
        parts = operands_of(in_float(exponent[0]), "sub")
        shift = operation("log", self._total.dtype, self._total)
        return parts == (*operands_of(self._exponential, "exp"), shift)


def _joined(name: str, left: Scalar | None, right: Scalar | None) -> Scalar | None:
    """Return the sum or difference of what there is, without a sum of a negation."""
    if left is None or right is None:
        return left if right is None else right if name == "add" else operation("neg", right.dtype, right)
    if negated := operands_of(right, "neg"):
        name, right = "sub" if name == "add" else "add", negated[0]
    if name == "add" and (negated := operands_of(left, "neg")):
        return operation("sub", left.dtype, right, negated[0])
    return operation(name, left.dtype, left, right)


def _with_split(group: RowGroup, entry: RowReduction, found: _Split, pair: Pair) -> RowGroup:
    """Return the group that finds the sum of a reduction from that of its split."""
    assert found.inner is not None
    tensor = replace(entry.tensor, name=f"{entry.tensor.name}_to_peak")
    value: Scalar = result_of(group, tensor)
    outer = found.outer
    if found.weighted:
        value = operation("div", value.dtype, value, result_of(group, pair.second.tensor))
    elif outer is not None:
        outer = operation("mul", value.dtype, cast(index_value(group.n_columns), value.dtype), outer)
    value = _joined("add", value, outer) or value
    own = RowReduction(tensor, "sum", found.inner, entry.level)
    reductions = tuple(own if each is entry else each for each in group.reductions)
    kept = result_of(group, entry.tensor)
    stores = (Store(entry.tensor, kept.index, value),) if entry.stored else ()
    known = {entry.tensor: value}
    split = replace(group, reductions=reductions)
    changed = with_scalars(split, lambda scalar: rewrite(scalar, lambda read: known.get(read.tensor, read)))
    return replace(changed, row_stores=(*changed.row_stores, *stores))
