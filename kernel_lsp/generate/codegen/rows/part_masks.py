"""Reads of parts of rows, which a condition bounds: packs are loaded whole where all of their elements share it."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.core.expression import Expression
from kernel_lsp.generate.codegen.elements.packs import Packing, multiple_conditions
from kernel_lsp.generate.codegen.elements.runs import has_masked_runs, load_runs, with_whole_masks
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import Store
from kernel_lsp.generate.ir.index import Index
from kernel_lsp.generate.ir.scalar import Access
from kernel_lsp.generate.ir.workload import Workload


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
