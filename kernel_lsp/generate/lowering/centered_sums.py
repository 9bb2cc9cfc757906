"""Means of what a norm has centered, such as the mean of a group norm: found from the sums of the lines along which the
norm's factors stay the same.

``sum(w * r * (v - (p + d)) + b)`` over a line where w, r and b are constant is ``w * r * (sum(v - p) - n * d) + n *
b``, so the elements are read once, with the norm's own sums, and not again after them. The pivot p of a mean is an
element of its row, so that few digits cancel. Elements of both signs times an infinity, or divided by 0, are
infinities of both signs, whose sum is NaN: so is a line's sum then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index, product
from kernel_lsp.generate.ir.scalar import Access, Constant, Operation, Scalar, cast, compare, index_value, select
from kernel_lsp.generate.ir.tensor import Pointwise, Reduction, Tensor
from kernel_lsp.generate.lowering.arithmetic import number, op
from kernel_lsp.generate.lowering.builder import Builder, positions


@dataclass(frozen=True)
class _Centered:
    """A value that is affine in ``distance``, an element minus the pivot of its mean. `sum_of` takes the sum of the
    distances of n elements and n, and returns the sum of the values. `others` are what the elements share."""

    distance: Scalar
    sum_of: Callable[[Scalar, Scalar], Scalar]
    others: tuple[Scalar, ...]


def centered_sum(builder: Builder, source: Tensor, axes: Sequence[int], dtype: DType) -> Tensor | None:
    """Return the sum that a mean over axes divides, without them, of elements that a norm has centered; None for
    others."""
    domain = builder.variables(source.shape, prefix="r")
    found = _centered(Access(source, positions(domain)))
    if found is None or found.distance.dtype != dtype:
        return None
    shared: frozenset[Variable] = frozenset().union(*(other.variables for other in found.others))
    along = [axis for axis in axes if domain[axis] not in shared and source.shape[axis].constant != 1]
    rest = [axis for axis in range(len(domain)) if axis not in along]
    if not along:
        return None

    def at(scalar: Scalar, index: Sequence[Index], kept: Sequence[int]) -> Scalar:
        return scalar.substitute({domain[axis]: position for axis, position in zip(kept, index, strict=True)})

    everywhere = range(len(domain))
    lines = builder.reduction(
        "sum", dtype, source.shape, along, lambda index: at(found.distance, index, everywhere), name="line_sum"
    )
    count = cast(index_value(product(source.shape[axis] for axis in along)), dtype)
    own = Access(lines, [as_index(domain[axis]) for axis in rest])
    value = found.sum_of(own, count)
    outer = [place for place, axis in enumerate(rest) if axis in axes]
    if not outer:
        return builder.pointwise(dtype, lines.shape, lambda index: at(value, index, rest), name="sum")
    return builder.reduction("sum", dtype, lines.shape, outer, lambda index: at(value, index, rest), name="sum")


def _centered(scalar: Scalar) -> _Centered | None:
    """Return a value as an affine one of an element's distance from its mean; None where it is none."""
    if isinstance(scalar, Access):
        return (
            _centered(_body(scalar))
            if scalar.mask is None and isinstance(scalar.tensor.definition, Pointwise)
            else None
        )
    if not isinstance(scalar, Operation) or not scalar.dtype.is_floating:
        return None
    if scalar.name == "cast":
        return _centered(scalar.operands[0])
    if scalar.name not in ("add", "sub", "mul", "div"):
        return None
    left, right = scalar.operands
    if scalar.name == "sub" and (mean := _mean(right)) is not None:
        pivot, shift = mean
        distance = op("sub", left, pivot)
        return _Centered(distance, lambda total, n: op("sub", total, op("mul", n, shift)), (pivot, shift))
    inner = _centered(left)
    return None if inner is None else _with(scalar.name, inner, right)


def _with(name: str, inner: _Centered, other: Scalar) -> _Centered:
    """Return the value that an operation makes of an affine one and of what the elements share. Where a factor makes
    infinities of the elements, the sum is NaN, as of elements of both signs."""

    def sum_of(total: Scalar, n: Scalar) -> Scalar:
        value = inner.sum_of(total, n)
        shared = cast(other, value.dtype)
        if name in ("add", "sub"):
            return op(name, value, op("mul", n, shared))
        scaled = op(name, value, shared)
        if isinstance(shared, Constant) and shared.value and math.isfinite(shared.value):
            return scaled
        is_defined = (
            compare("ne", shared, number(0, shared)) if name == "div" else op("isfinite", shared, dtype=DType.BOOL)
        )
        return select(is_defined, scaled, number(math.nan, scaled))

    return _Centered(inner.distance, sum_of, (*inner.others, other))


def _mean(scalar: Scalar) -> tuple[Scalar, Scalar] | None:
    """Return the pivot of a mean and the mean's distance from it, as `shifted_mean` defines them."""
    if not isinstance(scalar, Access) or scalar.mask is not None or not isinstance(scalar.tensor.definition, Pointwise):
        return None
    body = _body(scalar)
    if not isinstance(body, Operation) or body.name != "add":
        return None
    pivot, shift = body.operands
    if not isinstance(shift, Operation) or shift.name != "div" or not isinstance(shift.operands[0], Access):
        return None
    return (pivot, shift) if isinstance(shift.operands[0].tensor.definition, Reduction) else None


def _body(access: Access) -> Scalar:
    found = access.tensor.definition
    assert isinstance(found, Pointwise)
    return found.body.substitute(dict(zip(found.variables, access.index, strict=True)))
