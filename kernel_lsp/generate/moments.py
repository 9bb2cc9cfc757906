"""Variances as pairs of sums: ``sum(v - offset)`` and ``sum((v - mean)^2)``, in which the mean is that of the first.

A part of a row can use its own mean. Chan's formula then corrects its squares to the mean of the row, so that one pass
over memory computes both sums of every part.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.generate.fusion.groups import RowReduction
from kernel_lsp.generate.fusion.pairs import match_moments
from kernel_lsp.generate.ir.index import as_index, product
from kernel_lsp.generate.ir.scalar import Access, Operation, Scalar
from kernel_lsp.generate.ir.scalar_walk import accesses
from kernel_lsp.generate.ir.tensor import Reduction, Tensor
from kernel_lsp.generate.nested_sums import is_plain_sum, with_pointwise_inlined


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
    """Return what a sum of squared distances consists of; None where it is no such sum."""
    second = tensor.definition
    if not isinstance(second, Reduction) or not is_plain_sum(second):
        return None
    body = with_pointwise_inlined(second.body)
    read = {access.digest: access for access in accesses(body) if isinstance(access.tensor.definition, Reduction)}
    for total in read.values():
        first = total.tensor.definition
        assert isinstance(first, Reduction)
        if is_plain_sum(first) and _walks_alike(first, second) and total.mask is None:
            found = _matched(total, first, second, body)
            if found is not None:
                return found
    return None


def _walks_alike(first: Reduction, second: Reduction) -> bool:
    def walk(definition: Reduction) -> list[tuple[object, bool]]:
        return [(variable.extent, variable in definition.reduced) for variable in definition.domain]

    return walk(first) == walk(second)


def _matched(total: Access, first: Reduction, second: Reduction, body: Scalar) -> Moments | None:
    replacements = dict(zip(first.domain, map(as_index, second.domain), strict=True))
    first_body = with_pointwise_inlined(first.body).substitute(replacements)
    count = product(variable.extent for variable in second.reduced)
    entry = RowReduction(total.tensor, first.kind, first_body, 0)
    pair = match_moments(entry, RowReduction(total.tensor, second.kind, body, 1), count)
    if pair is None:
        return None
    assert isinstance(body, Operation)
    difference = body.operands[0]
    assert isinstance(difference, Operation)
    quotient = pair.pivot.operands[1] if pair.offset is not None else pair.pivot  # type: ignore[attr-defined]
    return Moments(total.tensor, total, difference.operands[0], pair.offset, quotient.operands[1])
