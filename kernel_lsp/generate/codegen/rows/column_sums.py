"""Row kernels that also sum over the rows, as gradients of norms need.

A block takes one row after the other; each thread keeps the sums of its columns in registers. Every block writes one
part; a second kernel adds the parts in a fixed order, so that results do not depend on the order of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernel_lsp.core.expression import Constant
from kernel_lsp.generate.codegen.coordinates import name_coordinates
from kernel_lsp.generate.codegen.elements.prefetching import prefetch, reads_ahead
from kernel_lsp.generate.codegen.kernel import RenderedKernel, rendered
from kernel_lsp.generate.codegen.kernel_writer import KernelWriter
from kernel_lsp.generate.codegen.operators import COMPUTE_TYPE
from kernel_lsp.generate.codegen.rows.row_schedule import RowSchedule
from kernel_lsp.generate.codegen.rows.rows import RowRenderer
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import RowGroup, Store
from kernel_lsp.generate.ir.index import as_index
from kernel_lsp.generate.ir.scalar import Access

LOCAL_NAMES = ("first_row", "last_row")
LINE_BYTES = 128
MAX_SUMMED_PACK_BYTES = 8


class ColumnSumRenderer(RowRenderer):
    """Writes the kernel of a row group with sums over its rows."""

    def __init__(self, kernel: KernelWriter, group: RowGroup, schedule: RowSchedule) -> None:
        stores = tuple((entry.level, Store(entry.tensor, (), entry.scalar)) for entry in group.column_sums)
        super().__init__(kernel, replace(group, stores=(*group.stores, *stores)), schedule)
        self.sums = {entry.tensor: "" for entry in group.column_sums}

    def render(self, comment: str) -> RenderedKernel:
        """Return the kernel with `comment` above it."""
        outer = self.scope
        self._declare_sums()
        self.scope = self._open_rows()
        for level in range(self.levels):
            self._pass(level)
        self._finish()
        self.scope.close()
        self.scope = outer
        self._store_sums()
        n_parts = self.group.column_sums[0].part.extent.constant or 1
        return rendered(self.kernel, comment, outer.lines, (Constant(n_parts),), self._block(), self._conditions())

    # --- the loop over rows, and its column sums

    def _declare_sums(self) -> None:
        for entry in self.group.column_sums:
            name = self.scope.names.take(f"{entry.tensor.name}_value")
            type_ = COMPUTE_TYPE[entry.tensor.dtype]
            self.scope.line(f"{type_} {name}[{self._n_items()}][{self.schedule.vector}] = {{}};")
            self.sums[entry.tensor] = name

    def _open_rows(self) -> Scope:
        type_, n_rows = self.kernel.index_type, self.kernel.size("n_rows", self.group.row.extent)
        length = self.scope.index(self.group.column_sums[0].length).text
        self.scope.line(f"const {type_} first_row = blockIdx.x * {length};")
        self.scope.line(f"const {type_} last_row = first_row + {length} < {n_rows} ? first_row + {length} : {n_rows};")
        rows = self.scope.open(f"for ({type_} row = first_row; row < last_row; ++row)")
        rows.define(self.group.row, "row")
        name_coordinates(self.kernel, as_index(self.group.row), self.group.row_shape)
        self._prefetch_next(rows)
        return rows

    def _prefetch_next(self, rows: Scope) -> None:
        """Prefetch the next row while this one is computed, a line of 128 bytes per thread."""
        scalars = [entry.scalar for entry in self.group.reductions] + [store.scalar for _, store in self.group.stores]
        both = (self.group.row, self.group.column)
        found = [access for access in reads_ahead(scalars, both) if access.variables == frozenset(both)]
        if not found:
            return
        column = self.group.column
        inner = rows.open("if (row + 1 < last_row)")
        for access in found:
            step = LINE_BYTES // access.dtype.itemsize
            n_columns = self.kernel.size("n_columns", column.extent)
            next_row = access.substitute({self.group.row: as_index(self.group.row) + 1})
            assert isinstance(next_row, Access)
            first = f"threadIdx.x * {step}"
            loop = inner.open(f"for (int col = {first}; col < {n_columns}; col += {self.schedule.threads * step})")
            loop.define(column, "col")
            prefetch(loop, [next_row])
            loop.close()
        inner.close()

    def _declare_result(self, scope: Scope, store: Store) -> str | None:
        return None if store.tensor in self.sums else super()._declare_result(scope, store)

    def _store_element(self, scope: Scope, store: Store, value: str) -> None:
        if store.tensor not in self.sums:
            super()._store_element(scope, store, value)
            return
        lane = "v" if self.schedule.vector > 1 else "0"
        scope.line(f"{self.sums[store.tensor]}[item][{lane}] += {value};")

    def _store_sums(self) -> None:
        """Store the sums of each thread's columns in the block's part."""
        n_columns = self.kernel.size("n_columns", self.group.column.extent)
        inner, closes = self._open_loop()
        name, vector = self.packing.pack.name, self.schedule.vector
        inner.line("#pragma unroll")
        lanes = inner.open(f"for (int v = 0; v < {vector}; ++v)")
        for tensor, sums in self.sums.items():
            place = f"blockIdx.x * {n_columns} + {name} * {vector} + v"
            lanes.line(f"{self.kernel.target(tensor)}[{place}] = {sums}[item][v];")
        lanes.close()
        for scope in closes:
            scope.close()


def render_column_sums(kernel: KernelWriter, group: RowGroup, schedule: RowSchedule, comment: str) -> RenderedKernel:
    """Render the kernel of a row group with sums over its rows."""
    return ColumnSumRenderer(kernel, group, schedule).render(comment)


def column_schedule(n_columns: int, threads: int, vector: int, *, is_open: bool) -> RowSchedule:
    """Return the schedule of a block per row. Where the plan leaves the length open (`is_open`), a row has room for
    the captured length."""
    items = -(-n_columns // (threads * vector)) if is_open else 0
    return RowSchedule(threads, 1, vector, True, items=items)


def is_valid_column_schedule(group: RowGroup, schedule: RowSchedule, n_columns: int) -> bool:
    """Check that a block handles one row at a time, that it caches the row, and that the sums fit the registers as
    well."""
    n_items = -(-n_columns // (schedule.threads * schedule.vector))
    n_kept = n_items * schedule.vector * (2 + len(group.column_sums))
    return schedule.rows == 1 and schedule.cached and schedule.threads >= 32 and n_kept <= MAX_KEPT


def default_column_schedule(n_columns: int, widths: Sequence[int], itemsize: int, *, is_open: bool) -> RowSchedule:
    """Return the default schedule: as few items per thread as blocks of 64 to 512 threads allow, in packs of at most 8
    bytes. On an H200 the gradients of RMSNorm took 113 us so and 135 us in packs of 16 bytes."""
    threads = 64
    while threads < 512 and threads * max(widths) < n_columns:
        threads *= 2
    width = max(width for width in widths if width * itemsize <= MAX_SUMMED_PACK_BYTES or width == 1)
    return column_schedule(n_columns, threads, width, is_open=is_open)


MAX_KEPT = 96
"""Maximum values of rows and sums per thread, in registers: with as many others, an SM fits four blocks of 256
threads."""
