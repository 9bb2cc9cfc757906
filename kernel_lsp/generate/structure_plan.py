"""Structural decisions of an operation, and the definitions that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernel_lsp.generate.attention_gradients import GradientFamily
from kernel_lsp.generate.ir.sizes import Sizes
from kernel_lsp.generate.ir.tensor import Attention, Definition, Reduction, Tensor
from kernel_lsp.generate.library import LibraryPlan
from kernel_lsp.generate.lowering.table import LoweredGraph
from kernel_lsp.generate.structure_rewriter import StructureRewriter


@dataclass(frozen=True)
class Structure:
    """The tensors of an operation with definitions that override their own. Those in `inlined` get no kernel; every
    block computes those in `everywhere` for itself."""

    tensors: tuple[Tensor, ...]
    definitions: Mapping[Tensor, Definition]
    inlined: frozenset[Tensor] = frozenset()
    everywhere: frozenset[Tensor] = frozenset()


@dataclass(frozen=True)
class StructurePlan:
    """Structural decisions: the method of each contraction and the number of parts of its sums, the number of parts of
    each reduction, and the reductions that the reading threads compute in loops of their own."""

    contractions: tuple[tuple[Tensor, str, int], ...]
    splits: tuple[tuple[Tensor, int], ...]
    inlined: tuple[Tensor, ...] = ()
    everywhere: tuple[Tensor, ...] = ()
    attentions: tuple[tuple[Tensor, Attention], ...] = ()
    gradients: tuple[GradientFamily, ...] = ()
    libraries: tuple[tuple[Tensor, LibraryPlan], ...] = ()
    gathered: tuple[Tensor, ...] = ()
    flat: tuple[tuple[Tensor, Reduction], ...] = ()
    of_lines: tuple[Tensor, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """Return a key that is equal for plans that agree."""
        return (
            tuple((tensor.digest, way, parts) for tensor, way, parts in self.contractions),
            tuple((tensor.digest, split) for tensor, split in self.splits),
            tuple(tensor.digest for tensor in self.inlined),
            tuple(tensor.digest for tensor in self.everywhere),
            tuple(tensor.digest for tensor, _ in self.attentions),
            tuple(family.statistics.digest for family in self.gradients),
            tuple(tensor.digest for tensor, _ in self.libraries),
            tuple(tensor.digest for tensor in self.gathered),
            tuple(tensor.digest for tensor, _ in self.flat),
            tuple(tensor.digest for tensor in self.of_lines),
        )

    def structure(self, lowered: LoweredGraph, sizes: Sizes) -> Structure:
        """Apply the decisions to the definitions."""
        rewriter = StructureRewriter(sizes)
        for tensor, way, parts in self.contractions:
            rewriter.compute_contraction(tensor, way)
            if parts > 1:
                rewriter.split_contraction(tensor, parts)
        for tensor, split in self.splits:
            rewriter.split(tensor, split)
        for tensor in self.inlined:
            rewriter.compute_by_loop(tensor)
        for tensor in self.gathered:
            rewriter.gather_rows(tensor)
        rewriter.definitions.update((*self.attentions, *self.flat))
        for tensor in self.of_lines:
            rewriter.join_longer_rows(tensor)
        for family in self.gradients:
            rewriter.new_tensors.append(family.statistics)
            rewriter.definitions.update(family.gradients)
        for tensor, plan in self.libraries:
            rewriter.new_tensors.append(plan.result)
            rewriter.definitions[tensor] = plan.view
        tensors = (*lowered.tensors, *rewriter.new_tensors)
        return Structure(tensors, rewriter.definitions, frozenset(self.inlined), frozenset(self.everywhere))
