"""Variances as pairs of sums: ``sum(v - offset)`` and ``sum((v - mean)^2)``, in which the mean is that of the first.

A part of a row can use its own mean. Chan's formula then corrects its squares to the mean of the row, so that one pass
over memory computes both sums of every part.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.generate.fusion.pairs import is_count
from kernel_lsp.generate.ir.index import as_index, product
from kernel_lsp.generate.ir.scalar import Access, Operation, Scalar, operation
from kernel_lsp.generate.ir.tensor import Pointwise, Reduction, Tensor
from kernel_lsp.generate.nested_sums import is_plain_sum


@dataclass(frozen=True)
class Moments:
    """`first` is the tensor of the first sum, `total` the second's read of it. `value` and `offset`, None for 0, are
    those of an element; `count` is the number of elements."""

    first: Tensor
    total: Access
    value: Scalar
    offset: Scalar | None
    count: Scalar


def find_moments(tensor: Tensor) -> Moments | None:
    """Return what a sum of squared distances consists of; None where it is no such sum. Only the mean is inlined: what
    the elements are may be the end of a deep network."""
    second = tensor.definition
    if not isinstance(second, Reduction) or not is_plain_sum(second):
        return None
    factors = _operands(second.body, "mul")
    difference = _operands(factors[0], "sub") if factors and factors[0] == factors[1] else ()
    if not difference:
        return None
    value, mean = difference[0], _resolved(difference[1])
    offset, quotient = _operands(mean, "add") or (None, mean)
    fraction = _operands(quotient, "div")
    total = _resolved(fraction[0]) if fraction else None
    first = total.tensor.definition if isinstance(total, Access) and total.mask is None else None
    if total is None or not isinstance(first, Reduction) or not is_plain_sum(first) or not _walks_alike(first, second):
        return None
    body = first.body.substitute(dict(zip(first.domain, map(as_index, second.domain), strict=True)))
    expected = value if offset is None else operation("sub", value.dtype, value, offset)
    count = product(variable.extent for variable in second.reduced)
    if body != expected or not is_count(fraction[1], count):
        return None
    assert isinstance(total, Access)
    return Moments(total.tensor, total, value, offset, fraction[1])


def _resolved(scalar: Scalar) -> Scalar:
    """Return the scalar that a read of pointwise results stands for."""
    while isinstance(scalar, Access) and scalar.mask is None and isinstance(scalar.tensor.definition, Pointwise):
        found = scalar.tensor.definition
        scalar = found.body.substitute(dict(zip(found.variables, scalar.index, strict=True)))
    return scalar


def _operands(scalar: Scalar, name: str) -> tuple[Scalar, ...]:
    return scalar.operands if isinstance(scalar, Operation) and scalar.name == name else ()


def _walks_alike(first: Reduction, second: Reduction) -> bool:
    def walk(definition: Reduction) -> list[tuple[object, bool]]:
        return [(variable.extent, variable in definition.reduced) for variable in definition.domain]

    return walk(first) == walk(second)
