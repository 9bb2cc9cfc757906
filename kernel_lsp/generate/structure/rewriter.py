"""Apply structural decisions to definitions: methods of contractions, loops in place of reductions, and splits; and
those decisions of an operation with the definitions that follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Constant as ConstantExpression
from kernel_lsp.core.expression_rules import call
from kernel_lsp.generate.codegen.kernel import divisible
from kernel_lsp.generate.fusion.fuse import Structure
from kernel_lsp.generate.fusion.rows import split_domain
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index, product
from kernel_lsp.generate.ir.scalar import Access, Loop, Scalar, compare, index_value, masked, select
from kernel_lsp.generate.ir.sizes import Sizes, to_expression, unravel_safe
from kernel_lsp.generate.ir.tensor import (
    Attention,
    Definition,
    Parts,
    Pointwise,
    Reduction,
    Scatter,
    Tensor,
    identity_of,
)
from kernel_lsp.generate.library import LibraryPlan, library_plan
from kernel_lsp.generate.lowering.arithmetic import op
from kernel_lsp.generate.lowering.builder import multiply
from kernel_lsp.generate.lowering.reduction import count_of
from kernel_lsp.generate.lowering.table import LoweredGraph
from kernel_lsp.generate.structure.attention_gradient_patterns import GradientFamily
from kernel_lsp.generate.structure.sum_rewrites import Moments, find_moments
from kernel_lsp.generate.structure.window_gradient_patterns import WindowChoice, defined_by


@dataclass
class StructureRewriter:
    """Collects new definitions, and the tensors that they add."""

    sizes: Sizes
    definitions: dict[Tensor, Definition] = field(default_factory=dict)
    new_tensors: list[Tensor] = field(default_factory=list)

    def compute_contraction(self, tensor: Tensor, way: str) -> None:
        definition = tensor.definition
        assert isinstance(definition, Reduction)
        if way == "direct":
            self.compute_by_loop(tensor)
        elif way == "library":
            plan = library_plan(tensor, definition)
            assert plan is not None
            self.new_tensors.append(plan.result)
            self.definitions[tensor] = plan.view
        elif way == "rows":
            self.definitions[tensor] = replace(definition, contraction=None)
        elif way == "by_taps":
            self.definitions[tensor] = by_copy(definition)
        elif way in ("split_warps", "register_tiles", "thread_rows", "tensor_cores"):
            assert definition.contraction is not None
            self.definitions[tensor] = replace(definition, contraction=replace(definition.contraction, way=way))

    def split_contraction(self, tensor: Tensor, n_parts: int) -> None:
        """Replace the contraction by one whose batches are parts of its first summed dim, and a sum over the parts.
        `n_parts` divides that dim."""
        definition = self.definitions[tensor]
        assert isinstance(definition, Reduction)
        assert definition.contraction is not None
        contraction, first = definition.contraction, definition.reduced[0]
        part = Variable("part", -2 * tensor.serial - 2, as_index(n_parts))
        within = Variable("within", -2 * tensor.serial - 3, self._part_length(first.extent, n_parts))
        replacements = {first: as_index(part) * within.extent + as_index(within)}
        body, left, right = (
            scalar.substitute(replacements) for scalar in (definition.body, contraction.left, contraction.right)
        )
        variables = (part, *definition.variables)
        reduced = (within, *definition.reduced[1:])
        by_parts = replace(
            contraction,
            left=left,
            right=right,
            batch_axes=(0, *(axis + 1 for axis in contraction.batch_axes)),
            row_axes=tuple(axis + 1 for axis in contraction.row_axes),
            column_axes=tuple(axis + 1 for axis in contraction.column_axes),
            library=None,
            conditions=divisible(first.extent, n_parts),
        )
        self._add_parts(
            tensor, definition, Reduction("sum", variables, reduced, (*variables, *reduced), body, by_parts)
        )

    def _add_parts(self, tensor: Tensor, definition: Reduction, of_parts: Reduction) -> None:
        """Define a tensor of the parts' results, and the reduction as one over the parts."""
        part = next(variable for variable in of_parts.variables if variable not in definition.variables)
        shape = tuple(variable.extent for variable in of_parts.variables)
        partial = Tensor(f"{tensor.name}_parts", tensor.serial - 1, tensor.dtype, shape, of_parts, tensor.source)
        index = [as_index(0) if v.extent.constant == 1 else as_index(v) for v in of_parts.variables]
        self.new_tensors.append(partial)
        self.definitions[tensor] = Reduction(
            definition.kind, definition.variables, (part,), of_parts.variables, Access(partial, index)
        )

    def compute_by_loop(self, tensor: Tensor) -> None:
        """Inline the reduction: every thread that reads it computes it."""
        definition = tensor.definition
        assert isinstance(definition, Reduction)
        loop = Loop(definition.kind, definition.reduced, tensor.dtype, definition.body)
        self.definitions[tensor] = Pointwise(definition.variables, loop)

    def join_longer_rows(self, tensor: Tensor) -> None:
        """Have the kernel of longer rows, of which the reduction's rows are lines, compute it."""
        assert isinstance(tensor.definition, Reduction)
        self.definitions[tensor] = replace(tensor.definition, of_lines=True)

    def gather_rows(self, tensor: Tensor) -> None:
        """Have the kernel of the target's rows gather the updates of each."""
        assert isinstance(tensor.definition, Scatter)
        self.definitions[tensor] = replace(tensor.definition, by_rows=True)

    def split(self, tensor: Tensor, split: int) -> None:
        """Replace the reduction by one over `split` parts of its rows and one over the parts. Where it is negative, the
        first -split dims number the parts: a matrix's rows, for example."""
        definition = self.definitions.get(tensor, tensor.definition)
        assert isinstance(definition, Reduction)
        moments = find_moments(tensor)
        rows = _SplitRows.of(tensor, definition, split, self._part_length)
        if moments is not None and moments.first in self.definitions:
            self._split_moments(tensor, definition, moments, rows)
            return
        body = definition.body.substitute(rows.replacements)
        domain, variables = split_domain(definition, rows.part, rows.within)
        body = rows.inside(body, definition.kind)
        of_parts = Reduction(definition.kind, variables, (rows.within,), domain, body, None, rows.parts)
        self._add_parts(tensor, definition, of_parts)

    def _split_moments(self, tensor: Tensor, definition: Reduction, moments: Moments, rows: _SplitRows) -> None:
        """Replace the second sum of a variance, whose first is split, by one over each part with the part's own mean,
        and by Chan's formula over the parts."""
        first = self.definitions[moments.first]
        assert isinstance(first, Reduction)
        assert isinstance(first.body, Access)
        domain, variables = split_domain(definition, rows.part, rows.within)
        index = [as_index(0) if v.extent.constant == 1 else as_index(v) for v in variables]
        of_part = Access(first.body.tensor, index)
        length = rows.count(of_part.dtype, if_empty=0)
        mean_of_part = op("div", of_part, rows.count(of_part.dtype, if_empty=1))
        value = moments.value.substitute(rows.replacements)
        distance = op("sub", value, op("add", moments.offset, mean_of_part) if moments.offset else mean_of_part)
        body = rows.inside(op("mul", distance, distance), "sum")
        of_parts = Reduction("sum", variables, (rows.within,), domain, body, None, rows.parts)
        self._add_parts(tensor, definition, of_parts)
        combined = self.definitions[tensor]
        assert isinstance(combined, Reduction)
        shift = op("sub", mean_of_part, op("div", moments.total, moments.count))
        body = op("add", combined.body, op("mul", length, op("mul", shift, shift)))
        self.definitions[tensor] = replace(combined, body=body)

    def _part_length(self, columns: Index, split: int) -> Index:
        if columns.constant is not None:
            return as_index(-(-columns.constant // split))
        exact = (columns + (split - 1)) // split
        expression = call("ceil_div", to_expression(columns), ConstantExpression(split))
        return as_index(self.sizes.derived(exact, expression, "part_length"))


def by_copy(definition: Reduction) -> Reduction:
    """Return a contraction on tensor cores whose right factor reads a copy in a better order."""
    contraction = definition.contraction
    assert contraction is not None
    assert contraction.copied is not None
    right, stored = contraction.copied.right, contraction.copied.stored
    body = multiply(contraction.left, right, definition.body.dtype)
    found = replace(contraction, right=right, way="tensor_cores", library=None, copied=None, stored=(stored,))
    return replace(definition, body=body, contraction=found)


@dataclass(frozen=True)
class _SplitRows:
    """The parts of a row of `columns`: `flat` is column `within` of `part`, and `replacements` are the reduced dims."""

    part: Variable
    within: Variable
    columns: Index
    flat: Index
    replacements: dict[Variable, Index]
    has_lines: bool

    @classmethod
    def of(
        cls, tensor: Tensor, definition: Reduction, split: int, part_length: Callable[[Index, int], Index]
    ) -> _SplitRows:
        extents = [variable.extent for variable in definition.reduced]
        columns = product(extents)
        n_parts = product(extents[:-split]) if split < 0 else as_index(split)
        length = product(extents[-split:]) if split < 0 else part_length(columns, split)
        part = Variable("part", -2 * tensor.serial - 2, n_parts)
        within = Variable("within", -2 * tensor.serial - 3, length)
        flat = as_index(part) * length + as_index(within)
        places = dict(zip(definition.reduced, unravel_safe(flat, extents), strict=True))
        return cls(part, within, columns, flat, places, split < 0)

    @property
    def parts(self) -> Parts | None:
        """Return the parts of any length; None where they are lines."""
        return None if self.has_lines else Parts(self.part, self.within, self.columns)

    @property
    def is_even(self) -> bool:
        return self.within.extent * self.part.extent == self.columns

    def inside(self, body: Scalar, kind: str) -> Scalar:
        """Return the term of each column, and the identity element of the reduction behind the last one."""
        if self.is_even:
            return body
        inside = compare("lt", index_value(self.flat), index_value(self.columns))
        # Reads that all columns share are in bounds for every column. Without a mask they are read once per row.
        terms = masked(inside, body, varying=frozenset((self.part, self.within)))
        return select(inside, terms, identity_of(kind, body.dtype))

    def count(self, dtype: DType, *, if_empty: int) -> Scalar:
        """Return the number of columns of a part."""
        whole = count_of(self.within.extent, dtype)
        if self.is_even:
            return whole
        first = as_index(self.part) * self.within.extent
        is_whole, is_empty = (
            compare("le", index_value(left), index_value(right))
            for left, right in ((first + self.within.extent, self.columns), (self.columns, first))
        )
        rest = select(is_empty, count_of(as_index(if_empty), dtype), count_of(self.columns - first, dtype))
        return select(is_whole, whole, rest)


@dataclass
class StructurePlan:
    """Structural decisions: the method of each contraction and the number of parts of its sums, the number of parts of
    each reduction, and the reductions that the reading threads compute in loops of their own."""

    contractions: list[tuple[Tensor, str, int]] = field(default_factory=list)
    splits: list[tuple[Tensor, int]] = field(default_factory=list)
    inlined: list[Tensor] = field(default_factory=list)
    everywhere: list[Tensor] = field(default_factory=list)
    attentions: list[tuple[Tensor, Attention]] = field(default_factory=list)
    gradients: list[GradientFamily] = field(default_factory=list)
    libraries: list[tuple[Tensor, LibraryPlan]] = field(default_factory=list)
    gathered: list[Tensor] = field(default_factory=list)
    rewritten: list[tuple[Tensor, Reduction]] = field(default_factory=list)
    of_lines: list[Tensor] = field(default_factory=list)
    joined: list[Tensor] = field(default_factory=list)
    recomputed: list[Tensor] = field(default_factory=list)
    windows: list[WindowChoice] = field(default_factory=list)

    @property
    def fused(self) -> dict[Tensor, Definition]:
        """Return the definitions of what one kernel or call finds with its intermediate tensors."""
        called = {tensor: plan.view for tensor, plan in self.libraries}
        gradients = dict(entry for family in self.gradients for entry in family.definitions.items())
        return {**dict(self.attentions), **called, **gradients, **defined_by(self.windows)}

    @property
    def key(self) -> tuple[object, ...]:
        """Return a key that is equal for plans that agree."""
        named = (self.attentions, self.libraries, self.rewritten)
        plain = (self.inlined, self.everywhere, self.gathered, self.of_lines, self.joined, self.recomputed)
        return (
            tuple((tensor.digest, way, parts) for tensor, way, parts in self.contractions),
            tuple((tensor.digest, split) for tensor, split in self.splits),
            tuple(tensor.digest for family in self.gradients for tensor in family.definitions),
            tuple((family.grad.digest, family.tensors[0].digest, channels) for family, channels in self.windows),
            *(tuple(tensor.digest for tensor, _ in tensors) for tensors in named),
            *(tuple(tensor.digest for tensor in tensors) for tensors in plain),
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
        rewriter.definitions.update((*self.attentions, *self.rewritten))
        for tensor in self.of_lines:
            rewriter.join_longer_rows(tensor)
        for family in self.gradients:
            rewriter.new_tensors += [family.statistics] if family.statistics is not None else []
            rewriter.definitions.update(family.definitions)
        for windows, channels in self.windows:
            sums = windows.parts(channels)
            rewriter.new_tensors.append(sums)
            rewriter.definitions.update(windows.definitions(sums, channels))
        for tensor, plan in self.libraries:
            rewriter.new_tensors.append(plan.result)
            rewriter.definitions[tensor] = plan.view
        tensors = (*lowered.tensors, *rewriter.new_tensors)
        sets = map(frozenset, ((*self.inlined, *self.recomputed), self.everywhere, self.joined))
        return Structure(tensors, rewriter.definitions, *sets)
