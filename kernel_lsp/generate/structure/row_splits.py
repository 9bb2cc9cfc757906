"""Choose parts of the rows of reductions: lines of memory, or any lengths, which masks then bound."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.rows.row_schedule import (
    MAX_CACHED_BYTES_PER_BLOCK,
    MAX_CLUSTER,
    WARP,
    n_column_sum_blocks,
)
from kernel_lsp.generate.fusion.graph import scalars_of
from kernel_lsp.generate.fusion.rows import MAX_SIDE_COLUMNS, MAX_SUMMED_COLUMNS
from kernel_lsp.generate.ir.index import Index, divide_exactly, product
from kernel_lsp.generate.ir.scalar import accesses
from kernel_lsp.generate.ir.tensor import Buffer, Pointwise, Reduction, Tensor, pattern_of
from kernel_lsp.generate.ir.workload import HOPPER, Workload
from kernel_lsp.generate.schedule.column_knobs import SIDE_SUM_THREADS, clusters_of_lines, lanes_of_tile
from kernel_lsp.generate.schedule.row_limits import MAX_PART_BYTES, power_of_two
from kernel_lsp.generate.structure.sum_rewrites import flat_sum

MIN_SPLIT_COLUMNS = 8192
"""Minimum columns of a row to split it over blocks; for shorter rows a second launch would cost more than it saves."""
MIN_SPLIT_LENGTH = 2048
MAX_SPLIT = 512
MIN_BY_ROWS = 1 << 24
"""Minimum terms of a reduction to one value whose parts are rows: 64 MB of f32 exceed the L2 cache, so that a launch
which also reads them again gains nothing."""
MAX_ADDED_ROWS = 1 << 16
"""Maximum rows whose sums one block adds up."""
MIN_SUMMED_COLUMNS = 64
"""Minimum columns so that every thread of a warp has some."""
MIN_SIDE_COLUMNS = 32
"""The same of rows side by side, of which every thread has several columns."""
MIN_NEIGHBOURS = 128
"""Minimum columns of lines whose neighbouring elements a sum compares: a pack for each lane of a warp."""
MIN_TILES_PER_PART = 4
"""Minimum tiles of rows side by side for each block that also sums over rows: its sums are combined once."""
MIN_LINES_PER_MULTIPROCESSOR = 2
MIN_JOINED_ROWS = 512
"""Minimum rows per multiprocessor for results to join the kernel of their sums: fewer leave it too few threads. The
gradients of a rotary embedding took 124 us on an H200 apart, and 70 by a text that joins them with packs of 8."""
MIN_ROWS_BESIDE_OPERANDS = 4
"""Minimum rows for parts where other operands have the length of a row: with fewer, all of it stays in the L2 cache."""


@dataclass(frozen=True)
class RowSplits:
    """The parts that suit each reduction. `patterns` are those of all reductions, `live` all tensors of the graph."""

    workload: Workload
    live: Sequence[Tensor]
    patterns: list[tuple[tuple[str, Index], ...]] = field(default_factory=list)

    def n_leading(self, definition: Reduction) -> int:
        """Return how many reduced dims number lines of memory that are long and fill the GPU; 0 where none do."""
        if self.spans_rows(definition) or self._walks_neighbours(definition):
            return len(definition.reduced) - 1
        kinds = [kind for kind, _ in pattern_of(definition)]
        if kinds == ["r", "o"]:
            return self._n_leading_of_others(definition)
        if kinds not in (["r"], ["o", "r"], ["r", "o", "r"]):
            return 0
        extents = [variable.extent for variable in definition.reduced]
        last_outer = max((at for at, v in enumerate(definition.domain) if v not in definition.reduced), default=-1)
        n_before = sum(variable in definition.reduced for variable in definition.domain[:last_outer])
        n_rows = self._size(product(variable.extent for variable in definition.variables))
        for n_leading in range(n_before, len(extents)) if kinds == ["r", "o", "r"] else range(1, len(extents)):
            n_parts, length = (self._size(product(part)) for part in (extents[:n_leading], extents[n_leading:]))
            fills = n_rows * n_parts >= MIN_LINES_PER_MULTIPROCESSOR * self.workload.n_multiprocessors
            if fills and 1 < n_parts <= MAX_ADDED_ROWS and length >= MIN_SPLIT_LENGTH:
                return n_leading
        return 0

    def _n_leading_of_others(self, definition: Reduction) -> int:
        """Return how many reduced dims number the parts of a sum down columns that other reductions loop over, as the
        batch does for a channels-last norm over an image's pixels; 0 where none do."""
        extents = [variable.extent for variable in definition.reduced]
        columns = pattern_of(definition)[-1]
        for n_leading in range(1, len(extents)):
            parts, rest = product(extents[:n_leading]), product(extents[n_leading:])
            if any(list(other) == [("o", parts), ("r", rest), columns] for other in self.patterns):
                return n_leading if 1 < self._size(parts) <= MAX_ADDED_ROWS else 0
        return 0

    def is_better_by_lines(self, definition: Reduction, readers: Iterable[Tensor], later: Iterable[Tensor]) -> bool:
        """Return True if lines are the default parts: for a matrix's rows that other reductions loop over, for rows
        whose lines are added up as well and that nothing reads after that, and for rows that `readers` read again and
        that no launch keeps on chip, or need not. A batch norm of 64 channels of 64 MB took 5104 us on an H100 in one
        cooperative launch, a layer norm of 16 rows of 16 MB with its weights 407 us. What reads the rows `later`, when
        other sums are known, reads them on chip where a cluster finds the sums of lines, too: the gradients of a group
        norm took 266 us on an H200 in six launches by lines, and 104 us so."""
        readers = list(readers)
        if self.spans_rows(definition) or self._n_leading_of_others(definition) or self._walks_neighbours(definition):
            return True
        if self._has_line_sums(definition) and not any(map(self._is_stored, readers)):
            return not (self._has_kept_lines(definition) and any(map(self._is_stored, later)))
        pattern = pattern_of(definition)
        if self.parts_beside_rows(definition):
            return False
        if self.usual(definition) > 1 and len(pattern) == 3 and not any(map(self._is_stored, readers)):
            return True
        n_rows = self._size(product(extent for kind, extent in pattern if kind == "o"))
        n_columns = self._size(product(extent for kind, extent in pattern if kind == "r"))
        if n_rows == 1:
            return n_columns >= MIN_BY_ROWS
        fills = n_rows >= MIN_LINES_PER_MULTIPROCESSOR * self.workload.n_multiprocessors
        if_unwritten = not fills and n_rows * n_columns >= MIN_BY_ROWS
        if_written = self._is_beyond_chip(n_rows, n_columns)
        if not if_unwritten and not if_written:
            return False
        is_read = False
        for reader in readers:
            is_read = True
            if self._is_stored(reader):
                return if_written
        return is_read and if_unwritten

    def _is_beyond_chip(self, n_rows: int, n_columns: int) -> bool:
        """Return True if no launch keeps a row on chip, or one with operands of its length leaves the L2 no room."""
        n_bytes = n_columns * self._widest(n_rows * n_columns)
        if n_bytes > self.workload.n_multiprocessors * MAX_CACHED_BYTES_PER_BLOCK:
            return True
        has_operands = bool(self._sizes_of_arguments(n_columns))
        return has_operands and n_rows >= MIN_ROWS_BESIDE_OPERANDS and n_bytes > MAX_CLUSTER * MAX_PART_BYTES

    def spans_rows(self, definition: Reduction) -> bool:
        """Return True for a sum over all of a matrix whose rows other reductions loop over."""
        *rows, columns = (variable.extent for variable in definition.reduced)
        n_rows = self._size(product(rows))
        is_whole = definition.kind == "sum" and [kind for kind, _ in pattern_of(definition)] == ["r"]
        fills = (
            self.workload.n_multiprocessors <= n_rows <= MAX_ADDED_ROWS and self._size(columns) >= MIN_SUMMED_COLUMNS
        )
        return is_whole and fills and any(list(e) == [("o", product(rows)), ("r", columns)] for e in self.patterns)

    def _walks_neighbours(self, definition: Reduction) -> bool:
        """Return True for a sum over all of a tensor of differences of neighbours, some of which are missing: in lines
        of memory one condition holds for all of a line, and the other for its packs."""
        *rows, columns = (self._size(variable.extent) for variable in definition.reduced)
        fills = (
            MIN_LINES_PER_MULTIPROCESSOR * self.workload.n_multiprocessors <= math.prod(rows) <= MAX_ADDED_ROWS
            and columns >= MIN_NEIGHBOURS
        )
        if not fills or definition.kind != "sum" or [kind for kind, _ in pattern_of(definition)] != ["r"]:
            return False
        reads = list(accesses(definition.body))
        return len({a.tensor for a in reads}) == 1 < len(reads) and any(a.mask is not None for a in reads)

    def _has_line_sums(self, definition: Reduction) -> bool:
        """Return True if another reduction is over the lines that are the parts of this one: one pass finds both."""
        n_leading = self.n_leading(definition)
        extents = [variable.extent for variable in definition.reduced]
        n_lines = product([*(v.extent for v in definition.variables), *extents[:n_leading]])
        return n_leading > 0 and (("o", n_lines), ("r", product(extents[n_leading:]))) in map(tuple, self.patterns)

    def parts_beside_rows(self, definition: Reduction) -> int:
        """Return the parts of a sum over rows that others loop over, as many as fill the GPU; 0 without such others."""
        pattern = pattern_of(definition)
        if definition.kind == "sum" and [kind for kind, _ in pattern] == ["r", "o", "r"]:
            return self._parts_of_tiles(pattern)
        if definition.kind != "sum" or [kind for kind, _ in pattern] != ["r", "o"]:
            return 0
        n_rows, n_columns = (self._size(extent) for _, extent in pattern)
        if not MIN_SUMMED_COLUMNS <= n_columns <= MAX_SUMMED_COLUMNS:
            return 0
        along = [("o", pattern[0][1]), ("r", pattern[1][1])]
        if not any(list(other) == along for other in self.patterns):
            return 0
        most = n_column_sum_blocks(n_columns, self._widest(n_rows * n_columns)) if n_columns % 4 == 0 else 4
        factors = [
            factor for factor in (8, 4, 2, 1) if most >= factor <= n_rows // (2 * self.workload.n_multiprocessors)
        ]
        return self.workload.n_multiprocessors * factors[0] if factors else 0

    def _parts_of_tiles(self, pattern: Sequence[tuple[str, Index]]) -> int:
        """Return the parts of sums over rows that lie side by side, whose blocks take tiles of them."""
        (_, before), (_, columns), (_, after) = pattern
        n_tiles = self._size(before * after) // WARP
        if not MIN_SIDE_COLUMNS <= (columns.constant or 0) <= MAX_SIDE_COLUMNS:
            return 0
        if not any(list(other) == [("o", before), ("r", columns), ("o", after)] for other in self.patterns):
            return 0
        per_multiprocessor = SIDE_SUM_THREADS // (lanes_of_tile(columns.constant or 0) * WARP)
        parts = self.workload.n_multiprocessors * per_multiprocessor
        return parts if n_tiles >= MIN_TILES_PER_PART * parts else 0

    def lets_results_join(self, tensor: Tensor, definition: Reduction) -> bool:
        """Return True for a sum of rows that lie side by side and whose packs fill the GPU: results that read them too
        then save a pass over memory."""
        is_plain = definition.kind == "sum" and tensor.dtype in (DType.F32, DType.F16, DType.BF16)
        n_rows = self._size(product(variable.extent for variable in definition.variables))
        is_by_packs = n_rows % 8 == 0 and n_rows >= MIN_JOINED_ROWS * self.workload.n_multiprocessors
        return is_plain and is_by_packs and pattern_of(definition)[-1][0] == "o"

    def is_of_lines(self, definition: Reduction) -> bool:
        """Return True for sums of the lines of longer rows that other reductions loop over and a cluster keeps on chip,
        such as those of the channels of a group."""
        pattern = pattern_of(definition)
        if definition.kind != "sum" or [kind for kind, _ in pattern] != ["o", "r"]:
            return False
        (_, n_lines), (_, length) = pattern
        for other in self.patterns:
            if [kind for kind, _ in other] not in (["o", "r"], ["r"]):
                continue
            per_row = divide_exactly(n_lines, other[0][1]) if len(other) > 1 else n_lines
            n = per_row.constant if per_row is not None else None
            if n is not None and n > 1 and length * n == other[-1][1]:
                return self._keeps_lines(n, self._size(n_lines), self._size(length))
        return False

    def _has_kept_lines(self, definition: Reduction) -> bool:
        """Return True if a cluster keeps a row of the reduction on chip and finds the sums of its lines."""
        n_leading = self.n_leading(definition)
        extents = [variable.extent for variable in definition.reduced]
        n, length = (self._size(product(part)) for part in (extents[:n_leading], extents[n_leading:]))
        n_rows = self._size(product(variable.extent for variable in definition.variables))
        return self._keeps_lines(n, n_rows * n, length)

    def rows_of_lines(self, found: Iterable[tuple[Tensor, Reduction]]) -> Iterator[Reduction]:
        """Yield the sums over all terms of sums of lines, whose rows a cluster keeps on chip for a result that reads
        them again: gradients behind a group norm and a SiLU, whose moments the forward has kept, have no other
        reduction over groups."""
        for tensor, definition in found:
            flat = flat_sum(definition)
            if flat is not None and self._keeps_flat(flat, definition) and self._is_read_by_elements(tensor, flat):
                yield flat

    def _is_read_by_elements(self, tensor: Tensor, rows: Reduction) -> bool:
        """Return True if a pointwise result with an element for each of the rows needs the tensor."""
        n_elements, pending = self._size(product(variable.extent for variable in rows.domain)), [tensor]
        seen = {tensor}
        while pending:
            readers = [reader for reader in self._readers.get(pending.pop(), ()) if reader not in seen]
            if any(isinstance(r.definition, Pointwise) and self._size(r.n_elements) == n_elements for r in readers):
                return True
            seen.update(readers)
            pending += readers
        return False

    def _keeps_flat(self, flat: Reduction, definition: Reduction) -> bool:
        """Return True if a cluster keeps on chip the rows of `flat`, whose lines' sums `definition` adds up."""
        pattern = pattern_of(flat)
        n = product(variable.extent for variable in definition.reduced).constant
        if [kind for kind, _ in pattern] != ["o", "r"] or n is None or n < 2:
            return False
        n_rows, length = (self._size(extent) for _, extent in pattern)
        return self._keeps_lines(n, n_rows * n, length // n)

    def _keeps_lines(self, n: int, n_lines: int, length: int) -> bool:
        """Return True if a cluster keeps rows of n lines on chip, `n_lines` in all."""
        n_bytes = sum(self._sizes_of_arguments(n_lines * length))
        return self.workload.capability >= HOPPER and bool(clusters_of_lines(n, length, n_bytes))

    def usual(self, definition: Reduction) -> int:
        """Return the number of parts of any length that fill the GPU."""
        pattern = pattern_of(definition)
        n_rows = self._size(product(extent for kind, extent in pattern if kind == "o"))
        n_columns = self._size(product(extent for kind, extent in pattern if kind == "r"))
        if not n_rows or n_columns < MIN_SPLIT_COLUMNS // 4:
            return 1
        if pattern[-1][0] == "r":
            if n_columns < MIN_SPLIT_COLUMNS or n_rows >= self.workload.n_multiprocessors:
                return 1
            wanted = min(4 * self.workload.n_multiprocessors // n_rows, n_columns // MIN_SPLIT_LENGTH)
        else:
            wanted = min(self.workload.n_multiprocessors * 64 // n_rows, n_columns // 256)
        return power_of_two(min(wanted, MAX_SPLIT))

    def _is_stored(self, tensor: Tensor) -> bool:
        """Return True if more than pointwise results and reductions needs an element of a pointwise result."""
        if not isinstance(tensor.definition, Pointwise):
            return False
        readers = self._readers.get(tensor, [])
        return not readers or not all(
            isinstance(t.definition, Pointwise)
            or (isinstance(t.definition, Reduction) and t.definition.contraction is None)
            for t in readers
        )

    @cached_property
    def _readers(self) -> dict[Tensor, list[Tensor]]:
        """Return the tensors whose definitions read each one."""
        found: dict[Tensor, list[Tensor]] = {}
        for tensor in self.live:
            for read in {access.tensor for access in accesses(*scalars_of(tensor.definition))}:
                found.setdefault(read, []).append(tensor)
        return found

    def _widest(self, n_elements: int) -> int:
        """Return the size of the widest element of the arguments of `n_elements`; that of f32 where there are none."""
        return max(self._sizes_of_arguments(n_elements), default=4)

    def _sizes_of_arguments(self, n_elements: int) -> list[int]:
        """Return the size of an element of each argument of `n_elements`."""
        return self._arguments.get(n_elements, [])

    @cached_property
    def _arguments(self) -> Mapping[int, list[int]]:
        found: dict[int, list[int]] = {}
        for tensor in self.live:
            if isinstance(tensor.definition, Buffer):
                found.setdefault(self._size(tensor.n_elements), []).append(tensor.dtype.itemsize)
        return found

    def _size(self, size: Index) -> int:
        return self.workload.size(size)
