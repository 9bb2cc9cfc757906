"""Memory order of the factors of a product: which loads are vector loads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernel_lsp.generate.ir.index import Variable
from kernel_lsp.generate.ir.scalar import Access, Scalar
from kernel_lsp.generate.ir.scalar_walk import accesses
from kernel_lsp.generate.ir.tensor import Pointwise


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
