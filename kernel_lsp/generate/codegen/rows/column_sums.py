"""Row kernels that also sum over the rows, as gradients of norms need.

A block takes one row after the other; each thread keeps the sums of its columns in registers. Every block writes one
part; a second kernel adds the parts in a fixed order, so that results do not depend on the order of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernel_lsp.core.expression import Constant
from kernel_lsp.generate.codegen.elements.packs import prefetch, reads_ahead
from kernel_lsp.generate.codegen.kernel import KernelWriter, RenderedKernel, name_coordinates, rendered
from kernel_lsp.generate.codegen.operators import COMPUTE_TYPE
from kernel_lsp.generate.codegen.rows.row_cache import RowCache
from kernel_lsp.generate.codegen.rows.row_schedule import RowSchedule
from kernel_lsp.generate.codegen.rows.rows import RowRenderer
from kernel_lsp.generate.codegen.rows.staged_rows import StagedRows
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import RowGroup, Store
from kernel_lsp.generate.ir.index import as_index
from kernel_lsp.generate.ir.scalar import Access, Scalar

LOCAL_NAMES = ("first_row", "last_row")
LINE_BYTES = 128
MAX_BYTES_WITH_WEIGHTS = 384
"""Maximum bytes of rows, sums and weights per thread in registers. Gradients of a layer norm with a residual took 78.5
us on an H200 in bf16 so, of an RMS norm 71.4; with weights loaded twice for every row 91.1 and 78.5."""


class StagedRow(StagedRows):
    """Stages whatever differs from row to row, so that memory is busy while a row is computed from registers."""

    def shared_reads(self) -> list[Access]:
        return self._reads_of_passes(1)

    def declare_weights(self, scope: Scope, n_items: int) -> list[Access]:
        """Declare an array for every read that all rows make alike, if registers hold them all; return these reads."""
        weights = self._weights()
        dtypes = [access.dtype for access in (*self.shared_reads(), *weights)]
        dtypes += [entry.tensor.dtype for entry in self.group.column_sums]
        if n_items * self.schedule.vector * sum(d.itemsize for d in dtypes) > MAX_BYTES_WITH_WEIGHTS:
            return []
        self._declare(scope, n_items, weights)
        return weights

    def _source(self, scope: Scope, access: Access) -> str:
        is_staged = self.group.row in access.variables
        return super()._source(scope, access) if is_staged else self.packing.memory(scope, access)


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
        shape = ((Constant(self._n_parts),), self._block(), self._conditions())
        n_bytes = self.cache.n_bytes
        return rendered(self.kernel, comment, outer.lines, *shape, min_blocks=self._resident(), dynamic_bytes=n_bytes)

    def _resident(self) -> int | None:
        """Return the minimum blocks of a multiprocessor, which bound the registers of a thread that keeps weights."""
        return self.schedule.resident if isinstance(self.cache, StagedRow) else None

    @property
    def _n_parts(self) -> int:
        """Return the parts of each sum: one per block."""
        return self.group.column_sums[0].part.extent.constant or 1

    def _shape_of_sums(self) -> str:
        return f"[{self._n_items()}][{self.schedule.vector}]"

    def _declare_sums(self) -> None:
        for entry in self.group.column_sums:
            name = self.scope.names.take(f"{entry.tensor.name}_value")
            self.scope.line(f"{COMPUTE_TYPE[entry.tensor.dtype]} {name}{self._shape_of_sums()} = {{}};")
            self.sums[entry.tensor] = name

    def _open_rows(self) -> Scope:
        type_, n_rows = self.kernel.index_type, self.kernel.size("n_rows", self.group.row.extent)
        length = self.scope.index(self.group.column_sums[0].length).text
        self.scope.line(f"const {type_} first_row = blockIdx.x * {length};")
        self.scope.line(f"const {type_} last_row = first_row + {length} < {n_rows} ? first_row + {length} : {n_rows};")
        if isinstance(self.cache, StagedRow):
            shape = self._n_items(), self._column_lane(), self._limit()
            self.cache.begin_rows(self.scope, "first_row", *shape, condition="first_row < last_row")
            self._load_weights()
        rows = self.scope.open(f"for ({type_} row = first_row; row < last_row; ++row)")
        rows.define(self.group.row, "row")
        name_coordinates(self.kernel, as_index(self.group.row), self.group.row_shape)
        if not isinstance(self.cache, StagedRow):
            self._prefetch_next(rows)
        return rows

    def _load_weights(self) -> None:
        weights = self.cache.declare_weights(self.scope, self._n_items())
        if weights:
            with self._open_loop() as inner:
                for access in weights:
                    self.cache.load(inner, access)

    def _new_cache(self) -> RowCache:
        if self.schedule.staged:
            return StagedRow(self.kernel, self.group, self.schedule, self.packing)
        return super()._new_cache()

    def _fill_cache(self, scalars: Sequence[Scalar]) -> None:
        """Take a staged row into registers, and start to copy the next one."""
        cache = self.cache
        is_first = isinstance(cache, StagedRow) and not cache.is_filled(cache.shared_reads()[0])
        super()._fill_cache(scalars)
        if isinstance(cache, StagedRow) and is_first:
            cache.copy_next(self.scope, "row + 1 < last_row", "row + 1")

    def _prefetch_next(self, rows: Scope) -> None:
        """Prefetch the next row while this one is computed, a line of 128 bytes per thread."""
        scalars = [entry.scalar for entry in self.group.reductions] + [store.scalar for _, store in self.group.stores]
        both = (self.group.row, self.group.column)
        found = [access for access in reads_ahead(scalars, both) if access.variables == frozenset(both)]
        if not found:
            return
        column = self.group.column
        with rows.open("if (row + 1 < last_row)") as inner:
            for access in found:
                step = LINE_BYTES // access.dtype.itemsize
                n_columns = self.kernel.size("n_columns", column.extent)
                next_row = access.substitute({self.group.row: as_index(self.group.row) + 1})
                assert isinstance(next_row, Access)
                first = f"threadIdx.x * {step}"
                with inner.open(
                    f"for (int col = {first}; col < {n_columns}; col += {self.schedule.threads * step})"
                ) as loop:
                    loop.define(column, "col")
                    prefetch(loop, [next_row])

    def _declare_result(self, scope: Scope, store: Store) -> str | None:
        return None if store.tensor in self.sums else super()._declare_result(scope, store)

    def _store_element(self, scope: Scope, store: Store, value: str) -> None:
        if store.tensor in self.sums:
            self._add_element(scope, self.sums[store.tensor], value)
        else:
            super()._store_element(scope, store, value)

    def _add_element(self, scope: Scope, sums: str, value: str) -> None:
        lane = "v" if self.schedule.vector > 1 else "0"
        scope.line(f"{sums}[item][{lane}] += {value};")

    def _store_sums(self) -> None:
        """Store the sums of each thread's columns in the block's part."""
        n_columns = self.kernel.size("n_columns", self.group.column.extent)
        name, vector = self.packing.pack.name, self.schedule.vector
        with self._open_loop() as inner, inner.unroll(f"for (int v = 0; v < {vector}; ++v)") as lanes:
            for tensor, sums in self.sums.items():
                place = f"blockIdx.x * {n_columns} + {name} * {vector} + v"
                lanes.line(f"{self.kernel.target(tensor)}[{place}] = {sums}[item][v];")
