"""Kernels of rows that lie side by side which also sum over the rows, as gradients of a norm over channels need.

A block takes tile after tile of neighbouring rows; each thread keeps the sums of its columns in registers. Every block
writes one part of each column; a second kernel adds the parts up in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.generate.codegen.kernel import name_coordinates
from kernel_lsp.generate.codegen.rows.column_sums import ColumnSumRenderer
from kernel_lsp.generate.codegen.rows.row_cache import RowCache
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.ir.index import as_index
from kernel_lsp.generate.ir.scalar import Access, Scalar

LOCAL_NAMES = ("tile",)


class SideRow(RowCache):
    """Keeps what all rows read alike, such as weights, in registers while a block takes its tiles."""

    def _cacheable(self, scalars: Sequence[Scalar]) -> list[Access]:
        return self._along_row(scalars)

    def shared_reads(self) -> list[Access]:
        return [access for access in super().shared_reads() if self.group.row in access.variables]

    def declare_weights(self, scope: Scope, n_items: int) -> list[Access]:
        """Declare an array for every read that all rows make alike; return these reads."""
        weights = self._weights()
        self._declare(scope, n_items, weights)
        return weights


class SideSumRenderer(ColumnSumRenderer):
    """Writes the kernel of rows side by side with sums over its rows, a warp of rows wide."""

    def _resident(self) -> int:
        return self.schedule.resident

    def _new_cache(self) -> SideRow:
        return SideRow(self.kernel, self.group, self.schedule, self.packing)

    def _shape_of_sums(self) -> str:
        return f"[{self._n_items()}]"

    def _open_rows(self) -> Scope:
        self._load_weights()
        type_, width = self.kernel.index_type, self.schedule.rows
        n_rows = self.kernel.size("n_rows", self.group.row.extent)
        n_tiles = f"({n_rows} + {width - 1}) / {width}"
        tiles = self.scope.open(f"for ({type_} tile = blockIdx.x; tile < {n_tiles}; tile += {self._n_parts})")
        tiles.line(f"const {type_} my_row = tile * {width} + threadIdx.x % {width};")
        tiles.line(f"const bool is_row = my_row < {n_rows};")
        tiles.line(f"const {type_} row = is_row ? my_row : {n_rows} - 1;  // all threads combine")
        tiles.define(self.group.row, "row")
        name_coordinates(self.kernel, as_index(self.group.row), self.group.row_shape)
        return tiles

    def _add_element(self, scope: Scope, sums: str, value: str) -> None:
        scope.line(f"{sums}[item] += is_row ? {value} : 0.0f;")

    def _store_sums(self) -> None:
        """Add up the sums of a column over the warp that has its rows; its first thread stores them."""
        with self._open_loop() as inner:
            for tensor, sums in self.sums.items():
                combine = self.kernel.use("warp_sum", tensor.dtype)
                inner.line(f"{sums}[item] = {combine}<{self.schedule.rows}>({sums}[item]);")
            with inner.open(f"if (threadIdx.x % {self.schedule.rows} == 0)") as first:
                for tensor, sums in self.sums.items():
                    place = f"{self.packing.pack.name} * {self._n_parts} + blockIdx.x"
                    first.line(f"{self.kernel.target(tensor)}[{place}] = {sums}[item];")
