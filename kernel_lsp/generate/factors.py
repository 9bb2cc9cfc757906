"""Factors of a product: their memory order, which loads are vector loads, and the numbers that scale them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernel_lsp.generate.ir.index import Variable
from kernel_lsp.generate.ir.scalar import Access, Constant, Operation, Scalar
from kernel_lsp.generate.ir.scalar_walk import accesses
from kernel_lsp.generate.ir.tensor import Pointwise

SCALES = (2.0**-20, 2.0**20)
"""Smallest and largest constant factor that multiplies a sum instead of its terms: a sum beyond f32's range is computed
again, term by term."""


def without_scale(factor: Scalar) -> tuple[Scalar, float]:
    """Return a factor in f32 without the numbers that it is multiplied by, so that it may be an element in memory, and
    the product of these numbers."""
    scale = 1.0
    while isinstance(factor, Operation) and factor.name == "mul":
        parts = [(a, b) for a, b in (factor.operands, factor.operands[::-1]) if isinstance(b, Constant)]
        if not parts or not SCALES[0] <= abs(float(parts[0][1].value)) <= SCALES[1]:
            break
        factor, scale = parts[0][0], scale * float(parts[0][1].value)
    return factor, scale


def runs_along(factor: Scalar, reduced: Sequence[Variable]) -> bool:
    """Return True if every tensor behind a factor, through views, casts and arithmetic, is constant along the summed
    dims or has them last."""
    found = list(reads_behind(factor, reduced))
    return bool(found) and all(is_matrix(e) and not e.index[-1].variables.isdisjoint(reduced) for e in found)


def reads_behind(factor: Scalar, reduced: Sequence[Variable]) -> Iterator[Access]:
    """Yield the reads of memory behind a factor that vary along the summed dims."""
    for access in accesses(factor):
        definition = access.tensor.definition
        if access.variables.isdisjoint(reduced):
            continue
        if isinstance(definition, Pointwise):
            along = dict(zip(definition.variables, access.index, strict=True))
            yield from reads_behind(definition.body.substitute(along), reduced)
        else:
            yield access


def is_matrix(factor: Scalar) -> bool:
    """Return True if a factor is a tensor indexed by one variable per dim, so that runs of it are vector loads."""
    if not isinstance(factor, Access) or factor.mask is not None:
        return False
    return all(
        len(index.terms) <= 1 and all(step == 1 and len(atoms) <= 1 for atoms, step in index.terms)
        for index in factor.index
    )
