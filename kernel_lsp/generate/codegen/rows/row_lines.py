"""Rows that lie in memory as several lines, such as a channel of a batch of images: packs that divide a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kernel_lsp.generate.fusion.groups import RowGroup, Store
from kernel_lsp.generate.ir.atoms import Atom, Quotient, Remainder
from kernel_lsp.generate.ir.index import ZERO, Index, as_index, replace_atoms
from kernel_lsp.generate.ir.scalar import Access, Scalar, accesses, rewrite
from kernel_lsp.generate.ir.sizes import ravel
from kernel_lsp.generate.ir.workload import Workload


def with_lines(group: RowGroup, vector: int, workload: Workload) -> RowGroup:
    """Return the group with lines of whole packs, where all have one length and the captured one allows it. A part of
    a row, whose place in the row is divided, need not be whole lines."""
    divisions = [atom for flat in _positions(group) for atom in _divisions(flat, group)]
    lengths = {atom.divisor for atom in divisions}
    if vector == 1 or len(lengths) != 1 or not all(_divides_column(atom, group) for atom in divisions):
        return group
    (length,) = lengths
    if length.constant is not None or length.variables or workload.size(length) % vector:
        return group

    def whole(atom: Atom) -> Index:
        if not _divides_column(atom, group):
            return as_index(atom)
        column, packs = as_index(group.column), length // vector * vector
        return column // packs if isinstance(atom, Quotient) else column % packs

    def placed(access: Access) -> Access:
        """Return the access by its flat position, in which the dims of a line are one."""
        if group.column not in access.variables:
            return access
        flat = replace_atoms(ravel(access.index, access.tensor.shape), whole)
        return Access(access.tensor, (*[ZERO] * (len(access.index) - 1), flat), access.mask)

    def changed(scalar: Scalar) -> Scalar:
        return rewrite(scalar, placed)

    def moved(store: Store) -> Store:
        return replace(store, index=placed(Access(store.tensor, store.index)).index, scalar=changed(store.scalar))

    return replace(
        group,
        reductions=tuple(replace(entry, scalar=changed(entry.scalar)) for entry in group.reductions),
        stores=tuple((level, moved(store)) for level, store in group.stores),
        line=length,
    )


def _positions(group: RowGroup) -> Iterator[Index]:
    """Yield the flat positions of what is read and written."""
    scalars = [*(entry.scalar for entry in group.reductions), *(store.scalar for _, store in group.stores)]
    for access in accesses(*scalars):
        yield ravel(access.index, access.tensor.shape)
    for _, store in group.stores:
        yield ravel(store.index, store.tensor.shape)


def _divisions(flat: Index, group: RowGroup) -> Iterator[Quotient | Remainder]:
    for monomial, _ in flat.terms:
        for atom in monomial:
            if isinstance(atom, Quotient | Remainder) and group.column in atom.variables:
                yield atom


def _divides_column(atom: Atom, group: RowGroup) -> bool:
    return isinstance(atom, Quotient | Remainder) and atom.dividend == as_index(group.column)
