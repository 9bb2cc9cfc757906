"""Reads of parts of rows, which a condition bounds: packs are loaded whole where all of their elements share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernel_lsp.core.expression import Expression
from kernel_lsp.generate.codegen.elements.packs import Packing, multiple_conditions
from kernel_lsp.generate.codegen.elements.runs import has_masked_runs, load_runs, with_whole_masks
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import RowGroup, Store
from kernel_lsp.generate.ir.index import Index, is_below, is_nonnegative
from kernel_lsp.generate.ir.scalar import Access, Operation, Scalar, rewrite
from kernel_lsp.generate.ir.workload import Workload


def with_shared_reads(group: RowGroup) -> RowGroup:
    """Return the group whose masked terms read without their mask what all columns share and what is in bounds for
    every row, such as a weight: threads then load it once for all columns."""

    def shared(term: Scalar) -> Scalar:
        if not isinstance(term, Operation) or term.name != "select":
            return term
        inside, value, otherwise = term.operands

        def unmasked(access: Access) -> Scalar:
            if access.mask is None or access.mask.digest != inside.digest or not _is_shared(access, group):
                return access
            return Access(access.tensor, access.index)

        return Operation(term.name, term.dtype, (inside, rewrite(value, unmasked), otherwise))

    reductions = tuple(replace(each, scalar=shared(each.scalar)) for each in group.reductions)
    return replace(group, reductions=reductions)


def _is_shared(access: Access, group: RowGroup) -> bool:
    """Return True if the place of a read does not vary with the column, and lies in the tensor for every row."""
    places = zip(access.index, access.tensor.shape, strict=True)
    is_within = all(is_nonnegative(index) and is_below(index, size) for index, size in places)
    return is_within and not any(group.column in index.variables for index in access.index)


class PartMasks:
    """The conditions of one kernel's passes over rows that all elements of a pack share; none without a `workload`."""

    def __init__(self, packing: Packing, workload: Workload | None) -> None:
        self.packing, self.workload = packing, workload
        self._multiples: list[tuple[Index, int]] = []
        self._work: list[Store] = []

    @property
    def conditions(self) -> tuple[Expression, ...]:
        """Return the `where:` lines that make packs whole."""
        return multiple_conditions(self._multiples)

    def state_once(self, work: list[Store]) -> list[Store]:
        """Return what a pass computes, with such conditions in terms of the pack, not of its elements."""
        self._work = []
        if self.workload is None or self.packing.vector == 1:
            return work
        found = with_whole_masks(work, self.packing.lane, self.workload)
        if found is None and not has_masked_runs(work, self.packing.lane, self.workload):
            return work
        found = found or (work, [])
        self._work, multiples = found
        self._multiples += multiples
        return self._work

    def load(self, scope: Scope, loaded: Sequence[Access]) -> None:
        """Load the packs that the pass reads under such conditions. Those in `loaded` have been."""
        if self._work:
            known = [access.digest for access in loaded]
            self._multiples += load_runs(scope, self._work, {self.packing.lane: ()}, self.workload, known)
