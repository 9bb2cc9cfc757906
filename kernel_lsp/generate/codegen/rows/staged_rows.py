"""Copy the next row to shared memory while this one is computed from registers."""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES, Packing
from kernel_lsp.generate.codegen.kernel import KernelWriter
from kernel_lsp.generate.codegen.rows.row_cache import RowCache
from kernel_lsp.generate.codegen.rows.row_schedule import RowSchedule
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import RowGroup
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import as_index, substitute
from kernel_lsp.generate.ir.scalar import Access

STAGE = "next_row"


class StagedRows(RowCache):
    """Reads the first pass of a row from shared memory, where the previous pass copied it. A thread copies what it
    reads itself, so no barrier is needed."""

    def __init__(self, kernel: KernelWriter, group: RowGroup, schedule: RowSchedule, packing: Packing) -> None:
        super().__init__(kernel, group, schedule, packing)
        self.row = Variable("staged_row", (1 << 20) + 2, group.row.extent)
        self._n_items, self._lane, self._limit = 0, "", ""
        self._condition, self._next_row = "", ""

    @property
    def n_bytes(self) -> int:
        itemsizes = sum(access.dtype.itemsize for access in self.shared_reads())
        return itemsizes * self.schedule.vector * self._n_items * self.schedule.threads

    def begin_rows(self, scope: Scope, row: str, n_items: int, lane: str, limit: str, *, condition: str = "") -> None:
        """Declare the stage of every kept read, and start to copy the first row, of `limit` packs, if there is one."""
        self._n_items, self._lane, self._limit = n_items, lane, limit
        stage = scope.names.take(STAGE)
        scope.line(f"extern __shared__ uint4 {stage}[];")
        offset = 0
        for access in self.shared_reads():
            type_ = self._type(access)
            name = self._stage(access)
            start = stage if not offset else f"{stage} + {offset}"
            scope.line(f"{type_}* {name} = reinterpret_cast<{type_}*>({start});")
            offset += access.dtype.itemsize * self.schedule.vector * n_items * self.schedule.threads // 16
        if condition:
            self.copy_next(scope, condition, row)
        else:
            self._copy(scope, row)

    def open_row(self, scope: Scope, condition: str, next_row: str) -> None:
        """Keep the place of the row after this one for the end of the first pass."""
        self._condition, self._next_row = condition, next_row

    def end_pass(self, scope: Scope) -> None:
        """Start to copy the next row once the first pass has read this one."""
        if self._condition:
            self.copy_next(scope, self._condition, self._next_row)
            self._condition = ""

    def copy_next(self, scope: Scope, condition: str, row: str) -> None:
        """Start to copy the row after this one."""
        with scope.open(f"if ({condition})") as inner:
            self._copy(inner, row)

    def _copy(self, scope: Scope, row: str) -> None:
        threads, n_items = self.schedule.threads, self._n_items
        name = scope.declare("staged_row", self.kernel.index_type, row) if not row.isdigit() else row
        with scope.unroll(f"for (int item = 0; item < {n_items}; ++item)") as item:
            item.line(f"const int {self.packing.pack.name} = item * {self.schedule.stride} + {self._lane};")
            item.define(self.packing.pack, self.packing.pack.name)
            item.define(self.row, name)
            if name == "0":
                item.named[as_index(self.row).digest] = item.variable_text(self.row)
            target = item
            if str(n_items * self.schedule.stride) != self._limit:
                target = item.open(f"if ({self.packing.pack.name} < {self._limit})")
            for access in self.shared_reads():
                moved = Access(
                    access.tensor, [substitute(i, {self.group.row: as_index(self.row)}) for i in access.index]
                )
                source = f"&{Packing.memory(self._plain(), target, moved)}"
                is_wide = access.dtype.itemsize * self.schedule.vector == MAX_PACK_BYTES
                helper = self.kernel.use("copy_past_l1" if self.schedule.streaming and is_wide else "copy_pack")
                target.line(f"{helper}(&{self._stage(access)}[item * {threads} + threadIdx.x], {source});")
            if target is not item:
                target.close()
        self.kernel.use("wait_async")
        self.kernel.use("commit_copies")
        scope.line("commit_copies();")

    def _plain(self) -> Packing:
        return replace(self.packing, streamed=frozenset(), reused=frozenset())

    def _source(self, scope: Scope, access: Access) -> str:
        return f"{self._stage(access)}[item * {self.schedule.threads} + threadIdx.x]"

    def declare(self, scope: Scope, n_items: int) -> None:
        """Wait for the copies of this row before the first pass."""
        if not any(access.digest in self._arrays for access in self.shared_reads()):
            scope.line("wait_async();  // a thread reads what it copied itself")
        super().declare(scope, n_items)

    def _stage(self, access: Access) -> str:
        return f"next_{self.kernel.local_name(access.tensor)}"
