"""Grow row groups: reductions over one row space, the pointwise results of that space, and all per-row values between
them."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.generate.fusion.fusion_state import NotReadyError, Progress
from kernel_lsp.generate.fusion.groups import ColumnSum, RowGroup, RowReduction, Store, row_index
from kernel_lsp.generate.fusion.row_patterns import LinesOfRows
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index, product
from kernel_lsp.generate.ir.scalar import Access, Scalar, accesses, rewrite
from kernel_lsp.generate.ir.sizes import Sizes, ravel, reshape, unravel_safe
from kernel_lsp.generate.ir.tensor import Parts, Pointwise, Reduction, Tensor, pattern_of


def grow_rows(progress: Progress, seed: Tensor, definition: Reduction) -> tuple[RowGroup, list[Tensor]]:
    """Return the group of a reduction with every pending root that belongs to it, and the roots that it computes."""
    rows = _RowDraft(progress, _RowSpace.of(definition, progress), is_of_parts=definition.parts is not None)
    for tensor in list(progress.pending):
        if tensor is seed or progress.is_ready(tensor, rows.roots):
            rows.offer(tensor, is_seed=tensor is seed)
    # A root before the seed may depend on a later one.
    for tensor in list(progress.pending):
        if tensor not in rows.roots and progress.is_ready(tensor, rows.roots):
            rows.offer(tensor, is_seed=False)
    return rows.group(), rows.roots


MAX_SUMMED_COLUMNS = 8192
"""Maximum columns whose sums one block keeps in registers: 16 per thread for 512 threads."""
MAX_SIDE_COLUMNS = 256
"""The same where rows lie side by side, a warp of them: 16 per thread for 512 threads."""


@dataclass(frozen=True)
class _RowSpace:
    """Rows and columns as runs of dims in memory order."""

    pattern: tuple[tuple[str, Index], ...]
    row: Variable
    column: Variable

    @classmethod
    def of(cls, definition: Reduction, progress: Progress) -> _RowSpace:
        pattern = pattern_of(definition)
        rows = product(extent for kind, extent in pattern if kind == "o")
        columns = product(extent for kind, extent in pattern if kind == "r")
        return cls(pattern, progress.variable("row", rows), progress.variable("col", columns))

    def shape(self, kind: str) -> tuple[Index, ...]:
        return tuple(extent for entry, extent in self.pattern if entry == kind)

    @property
    def extents(self) -> list[Index]:
        """Return the extent of each run."""
        return [extent for _, extent in self.pattern]

    @property
    def coordinates(self) -> tuple[Index, ...]:
        """Return the index of each run."""
        rows = iter(self.row_coordinates)
        columns = iter(unravel_safe(as_index(self.column), self.shape("r")))
        return tuple(next(rows) if kind == "o" else next(columns) for kind, _ in self.pattern)

    @property
    def row_coordinates(self) -> tuple[Index, ...]:
        return unravel_safe(as_index(self.row), self.shape("o"))

    def matches(self, definition: Reduction, sizes: Sizes) -> bool:
        other = pattern_of(definition)
        return len(other) == len(self.pattern) and all(
            left[0] == right[0] and sizes.same(left[1], right[1])
            for left, right in zip(other, self.pattern, strict=True)
        )


class _RowDraft:
    """A row group under construction. Where its seed is a sum over parts of rows, so are the others: of as many parts
    of rows as long."""

    def __init__(self, progress: Progress, space: _RowSpace, *, is_of_parts: bool) -> None:
        self.progress, self.space, self.is_of_parts = progress, space, is_of_parts
        self.roots: list[Tensor] = []
        self.levels: dict[Tensor, int] = {}
        self.reductions: list[RowReduction] = []
        self.stores: list[tuple[int, Store]] = []
        self.row_stores: list[Store] = []
        self.column_sums: list[ColumnSum] = []
        self.lines: LinesOfRows | None = None
        self.line_sums: list[RowReduction] = []
        self.line_stores: list[Store] = []

    def offer(self, tensor: Tensor, *, is_seed: bool) -> None:
        """Add the tensor if it belongs to the group."""
        definition = self.progress.graph.definitions[tensor]
        if isinstance(definition, Reduction) and definition.parts is not None and not is_seed and not self.is_of_parts:
            self._offer_column_sum(tensor, definition, definition.parts)
            if tensor not in self.roots and self.space.matches(definition, self.progress.sizes):
                self._offer_reduction(tensor, definition)
        elif isinstance(definition, Reduction) and definition.of_lines and not is_seed:
            self._offer_line_sum(tensor, definition)
        elif isinstance(definition, Reduction) and definition.contraction is None:
            if is_seed or self.space.matches(definition, self.progress.sizes):
                self._offer_reduction(tensor, definition)
        elif isinstance(definition, Pointwise) and self._is_related(tensor):
            self._offer_pointwise(tensor, definition)

    def group(self) -> RowGroup:
        is_contiguous = not self.space.pattern or self.space.pattern[-1][0] == "r"
        return RowGroup(
            self.space.row,
            self.space.column,
            self.space.shape("o"),
            self.space.shape("r"),
            is_contiguous,
            tuple(self.reductions),
            tuple(self.stores),
            tuple(self.row_stores),
            column_sums=tuple(self.column_sums),
            line=self.lines.length if self.lines else None,
            line_number=self.lines.number if self.lines else None,
            line_sums=tuple(self.line_sums),
            line_stores=tuple(self.line_stores),
        )

    def _offer_reduction(self, tensor: Tensor, definition: Reduction) -> None:
        shape = [variable.extent for variable in definition.domain]
        index = reshape(self.space.coordinates, self.space.extents, shape)
        scalar = self._expanded(definition.body.substitute(dict(zip(definition.domain, index, strict=True))))
        if scalar is None:
            return
        level = self._level(scalar)
        self.levels[tensor] = level + 1
        self.reductions.append(RowReduction(tensor, definition.kind, scalar, level))
        self.roots.append(tensor)

    def _offer_column_sum(self, tensor: Tensor, definition: Reduction, parts: Parts) -> None:
        """Add the sums over this group's rows, part by part, where they depend on a reduction of the group or read
        the rows that one reads."""
        columns = [variable for variable in definition.variables if variable is not parts.part]
        sizes, shape = self.progress.sizes, self.space.shape("r")
        if definition.kind != "sum" or not self._has_columns(definition, parts):
            return
        if not sizes.same(parts.n_rows, self.space.row.extent):
            return
        if not sizes.same(product(variable.extent for variable in columns), self.space.column.extent):
            return
        if self.column_sums and self.column_sums[0].part.extent != parts.part.extent:
            return
        graph = self.progress.graph
        if not self.column_sums and not graph.needs(tensor) & set(self.roots) and not self._reads_rows(tensor):
            return
        length, row = parts.within.extent, as_index(self.space.row)
        place = reshape(unravel_safe(as_index(self.space.column), shape), shape, [v.extent for v in columns])
        replacements = dict(zip(columns, place, strict=True))
        replacements |= {parts.part: row // length, parts.within: row % length}
        scalar = self._expanded(definition.body.substitute(replacements))
        if scalar is not None:
            self.column_sums.append(ColumnSum(tensor, parts.part, length, scalar, self._level(scalar)))
            self.roots.append(tensor)

    def _has_columns(self, definition: Reduction, parts: Parts) -> bool:
        """Return True if a block may keep the sums of all columns: of rows one after the other, or side by side."""
        kinds = [kind for kind, _ in self.space.pattern]
        if kinds == ["o", "r"]:
            is_short = 0 < (self.space.column.extent.constant or 1) <= MAX_SUMMED_COLUMNS
            return is_short and definition.variables[0] is parts.part
        is_short = 0 < (self.space.column.extent.constant or 0) <= MAX_SIDE_COLUMNS
        return kinds == ["o", "r", "o"] and is_short and definition.variables[-1] is parts.part

    def _offer_line_sum(self, tensor: Tensor, definition: Reduction) -> None:
        """Add a sum over each line of this group's rows."""
        space, sizes = self.space, self.progress.sizes
        lines = LinesOfRows.of(definition, space.row, space.column, self.progress)
        is_plain = [kind for kind, _ in space.pattern] in (["o", "r"], ["r"])
        if lines is None or not is_plain or not self.reductions:
            return
        if self.lines is not None and not sizes.same(lines.length, self.lines.length):
            return
        lines = self.lines or lines
        column = as_index(space.column)
        index = lines.index(column // lines.length, column % lines.length, definition)
        scalar = self._expanded(definition.body.substitute(dict(zip(definition.domain, index, strict=True))))
        if scalar is not None and not self._level(scalar):
            self.lines = lines
            self.line_sums.append(RowReduction(tensor, definition.kind, scalar, 0))
            self.roots.append(tensor)

    def _offer_line_value(self, tensor: Tensor, definition: Pointwise, lines: LinesOfRows) -> None:
        """Add a value per line that depends on sums over lines."""
        own = frozenset(entry.tensor for entry in self.line_sums)
        index = lines.place(tensor)
        body = definition.body.substitute(dict(zip(definition.variables, index, strict=True)))
        scalar = self._expanded(body, own)
        if scalar is not None:
            self.line_stores.append(Store(tensor, index, scalar))
            self.roots.append(tensor)

    def _offer_pointwise(self, tensor: Tensor, definition: Pointwise) -> None:
        sizes = self.progress.sizes
        extents = self.space.extents
        row_shape = self.space.shape("o")
        if sizes.same(tensor.n_elements, product(extents)):
            if _is_product(tensor):
                return
            index = reshape(self.space.coordinates, extents, tensor.shape)
            is_per_row = False
        elif sizes.same(tensor.n_elements, product(row_shape)):
            index = reshape(self.space.row_coordinates, row_shape, tensor.shape)
            is_per_row = True
        elif self.lines is not None and sizes.same(tensor.n_elements, product(row_shape) * self.lines.n):
            self._offer_line_value(tensor, definition, self.lines)
            return
        else:
            return
        scalar = self._expanded(definition.body.substitute(dict(zip(definition.variables, index, strict=True))))
        if scalar is None:
            return
        store = Store(tensor, index, scalar)
        if is_per_row:
            self.row_stores.append(store)
        else:
            self.stores.append((self._level(scalar), store))
        self.roots.append(tensor)

    def _is_related(self, tensor: Tensor) -> bool:
        """Return True if the tensor depends on a reduction of the group, the group computes it inline, or it reads what
        a reduction of the group reads, element by element."""
        graph = self.progress.graph
        if graph.needs(tensor) & set(self.roots):
            return True
        # Few threads share a column: a kernel of its own has more.
        is_contiguous = not self.space.pattern or self.space.pattern[-1][0] == "r"
        may_join = is_contiguous or any(entry.tensor in self.progress.joined for entry in self.reductions)
        is_of_rows = self.progress.sizes.same(tensor.n_elements, product(self.space.extents))
        if may_join and is_of_rows and self._reads_rows(tensor):
            return True
        return any(tensor in self._inlined_by(reduction.tensor) for reduction in self.reductions)

    def _reads_rows(self, tensor: Tensor) -> bool:
        """Return True if the tensor depends on a source of the rows' size that a reduction of the group reads."""
        graph, n_elements = self.progress.graph, product(self.space.extents)
        shared = graph.sources(tensor) & frozenset().union(*(graph.sources(e.tensor) for e in self.reductions))
        return any(self.progress.sizes.same(source.n_elements, n_elements) for source in shared)

    def _inlined_by(self, tensor: Tensor) -> set[Tensor]:
        graph = self.progress.graph
        found: set[Tensor] = set()
        pending = [tensor]
        while pending:
            for read in graph.reads(pending.pop()):
                is_inlined = isinstance(graph.definitions[read], Pointwise) and read not in self.progress.computed
                if is_inlined and read not in found:
                    found.add(read)
                    pending.append(read)
        return found

    def _expanded(self, scalar: Scalar, of_line: frozenset[Tensor] = frozenset()) -> Scalar | None:
        """Return the scalar over this group's coordinates, if it reads each reduction of the group in its own row, and
        the sums `of_line` in its own line."""
        local = frozenset(reduction.tensor for reduction in self.reductions)
        try:
            expanded = self.progress.expand(scalar, local | of_line)
        except NotReadyError:
            return None
        for access in accesses(expanded):
            if access.tensor in local and not self._is_own_row(access):
                return None
            if access.tensor in of_line and not (self.lines and self.lines.is_own(access)):
                return None
        return rewrite(expanded, lambda access: self._own_row(access) if access.tensor in local else access)

    def _own_row(self, access: Access) -> Scalar:
        return Access(access.tensor, row_index(as_index(self.space.row), self.space.shape("o"), access.tensor))

    def _is_own_row(self, access: Access) -> bool:
        flat = ravel(access.index, access.tensor.shape)
        return flat == as_index(self.space.row) or self.space.row.extent.constant == 1

    def _level(self, scalar: Scalar) -> int:
        return max((self.levels[a.tensor] for a in accesses(scalar) if a.tensor in self.levels), default=0)


def _is_product(tensor: Tensor) -> bool:
    """Return True for a sum of products that its readers' threads compute, such as a depthwise convolution. A kernel of
    its own loads each window once for a box of results; each pass over rows computes it anew."""
    return isinstance(tensor.definition, Reduction) and tensor.definition.contraction is not None


def split_domain(
    definition: Reduction, part: Variable, within: Variable
) -> tuple[tuple[Variable, ...], tuple[Variable, ...]]:
    """Return the memory order of the split reduction, and its outer variables. The parts replace the columns."""
    kept: list[Variable] = [variable for variable in definition.domain if variable not in definition.reduced]
    place = len(kept)
    sized = [variable for variable in definition.domain if variable.extent.constant != 1]
    if sized[-1] not in definition.reduced:
        first = next(variable for variable in sized if variable in definition.reduced)
        place = sum(
            variable not in definition.reduced for variable in definition.domain[: definition.domain.index(first)]
        )
    domain = (*kept[:place], part, within, *kept[place:])
    return domain, (*kept[:place], part, *kept[place:])
