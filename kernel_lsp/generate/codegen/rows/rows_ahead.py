"""Load the next row into registers while the results of this one are stored, and keep on chip what all rows read.

Blocks that take row after row have the same columns of each, so weights are copied to shared memory once. What does not
fit there is read from the L2 cache, two packs ahead. A layer norm of 16 rows of 16 MB in f32 took 211.9 us on an H200
by lines of memory, and 189.2 us in this way.
"""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES, Packing, reads_ahead
from kernel_lsp.generate.codegen.kernel import KernelWriter
from kernel_lsp.generate.codegen.operators import ADD, ATOM, COMPUTE_TYPE, Text, loaded
from kernel_lsp.generate.codegen.rows.row_cache import RowCache
from kernel_lsp.generate.codegen.rows.row_schedule import MAX_STAGED_BYTES, RowSchedule, n_blocks_per_multiprocessor
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import RowGroup, scalars_of_group
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import as_index, substitute
from kernel_lsp.generate.ir.scalar import Access

N_AHEAD = 2
"""Packs of weights in flight per thread: by hand, the layer norm took 190.6 us on an H200 with one and 223.2 with
three."""


def ends_in_results(group: RowGroup) -> bool:
    """Return True if the last pass over a row stores results of its length and reduces nothing: each pack of the next
    row may then take the place of one that was just stored."""
    last = max((level for level, _ in group.stores), default=0)
    return bool(group.reductions) and all(entry.level < last for entry in group.reductions)


class RowsAhead(RowCache):
    """Registers that have a row before its first pass begins, and shared memory for what all rows read."""

    pack_type = "unsigned"
    """With signed packs and constant sizes, ptxas keeps addresses of all items at once and spills 60 bytes of the 64
    registers: the layer norm of 16 rows took 221.6 us on an H200, without constants 189.2 (2026-11-30)."""

    def __init__(self, kernel: KernelWriter, group: RowGroup, schedule: RowSchedule, packing: Packing) -> None:
        super().__init__(kernel, group, schedule, packing)
        self._next = Variable("next_row", (1 << 20) + 2, group.row.extent)
        self._later = Variable("later_pack", (1 << 20) + 3, packing.pack.extent)
        self._n_items, self._lane, self._row, self._is_last = 0, "", as_index(0), False
        self._has_next = ""
        self._held: dict[bytes, str] = {}
        self._rings: dict[bytes, str] = {}
        self._singles: dict[bytes, tuple[Access, str]] = {}
        self._after: dict[str, str] = {}

    def begin_rows(self, scope: Scope, row: str, n_items: int, lane: str, limit: str) -> None:
        """Load the first row, and start to copy what all rows read."""
        self._n_items, self._lane = n_items, lane
        self.declare(scope, n_items)
        if not row.isdigit():
            self._row = as_index(self._next)
            scope.define(self._next, scope.declare("start_row", self.kernel.index_type, row))
        for access in self._single_reads():
            wanted, type_ = f"{self.kernel.local_name(access.tensor)}_value", COMPUTE_TYPE[access.dtype]
            name = scope.declare(wanted, type_, self._single(scope, access), is_const=False)
            self._singles[access.digest] = access, name
        with self._items(scope) as item:
            for access in self.shared_reads():
                item.line(f"{self._arrays[access.digest]}[item] = {self.packing.memory(item, self._moved(access))};")
        self._filled = set(self._arrays)
        self._hold(scope)
        scope.line("#pragma unroll 1")

    def open_row(self, scope: Scope, condition: str, next_row: str) -> None:
        """Declare the row after this one, and bind what was loaded of this one."""
        self._has_next = scope.declare("has_next", "bool", condition)
        scope.define(self._next, scope.declare("next_row", self.kernel.index_type, next_row))
        self._row = as_index(self._next)
        for access, name in self._singles.values():
            scope.bind(access, Text(name, ATOM))

    def begin_exchange(self, scope: Scope) -> None:
        """Load the first packs of what all rows read and shared memory has no room for: they arrive meanwhile."""
        for access in self._read_by_all():
            if access.digest in self._held:
                continue
            n_ahead = min(N_AHEAD, self._n_items)
            ring = scope.names.take(f"{self.kernel.local_name(access.tensor)}_ahead")
            scope.line(f"{self._type(access)} {ring}[{n_ahead}];")
            self._rings[access.digest] = ring
            with scope.unroll(f"for (int item = 0; item < {n_ahead}; ++item)") as item:
                item.line(f"{ring}[item] = {self._at_item(item, access, 'item')};")

    def begin_last(self, scope: Scope) -> None:
        """Wait for the copies, and load what the next row needs before its first pass."""
        self._is_last = True
        if self._held:
            scope.line(f"{self.kernel.use('wait_async')}();  // a thread reads what it copied itself")
        for access, name in self._singles.values():
            source = f"{self._has_next} ? {self._single(scope, access)} : {name}"
            self._after[name] = scope.declare(f"next_{name}", COMPUTE_TYPE[access.dtype], source)

    def load(self, scope: Scope, access: Access) -> str:
        """Return the location of an element of the row, or of what all rows read."""
        if self._is_last and access.digest in self._held:
            return f"{self._held[access.digest]}[item * {self.schedule.threads}]"
        ring = self._rings.get(access.digest) if self._is_last else None
        if ring is None:
            return super().load(scope, access)
        n_ahead = min(N_AHEAD, self._n_items)
        wanted, source = f"{self.kernel.local_name(access.tensor)}_pack", f"{ring}[item % {n_ahead}]"
        name = scope.declare(wanted, self._type(access), source)
        if self._n_items > n_ahead:
            later = self._at_item(scope, access, f"(item + {n_ahead})")
            scope.line(f"if (item + {n_ahead} < {self._n_items}) {ring}[item % {n_ahead}] = {later};")
        return name

    def end_pack(self, scope: Scope) -> None:
        """Load a pack of the next row in the place of one whose results are stored."""
        if self._is_last:
            for access in self.shared_reads():
                source = self.packing.memory(scope, self._moved(access))
                scope.line(f"if ({self._has_next}) {self._arrays[access.digest]}[item] = {source};")

    def end_row(self, scope: Scope) -> None:
        """Make the next row this one."""
        for name, after in self._after.items():
            scope.line(f"{name} = {after};")

    @property
    def n_bytes(self) -> int:
        return sum(self._bytes_of(access) for access in self._read_by_all() if access.digest in self._held)

    def _hold(self, scope: Scope) -> None:
        """Start to copy what all rows read to shared memory, as far as it has room."""
        room, offset = MAX_STAGED_BYTES // n_blocks_per_multiprocessor(self.schedule.threads), 0
        stage = ""
        for access in self._read_by_all():
            if offset + self._bytes_of(access) > room or self._pack_bytes(access) not in (4, 8, MAX_PACK_BYTES):
                continue
            if not stage:
                stage = scope.names.take("held")
                scope.line(f"extern __shared__ uint4 {stage}[];")
            name = scope.names.take(f"{self.kernel.local_name(access.tensor)}_held")
            start, type_ = f"{stage} + {offset // 16}" if offset else stage, self._type(access)
            scope.line(f"{type_}* {name} = reinterpret_cast<{type_}*>({start}) + threadIdx.x;")
            self._held[access.digest] = name
            offset += self._bytes_of(access)
        if not self._held:
            return
        plain = replace(self.packing, streamed=frozenset(), reused=frozenset())
        with self._items(scope) as item:
            for access in self._read_by_all():
                if access.digest in self._held:
                    copy = "copy_past_l1" if self._pack_bytes(access) == MAX_PACK_BYTES else "copy_pack"
                    target = f"&{self._held[access.digest]}[item * {self.schedule.threads}]"
                    item.line(f"{self.kernel.use(copy)}({target}, &{plain.memory(item, access)});")
        scope.line(f"{self.kernel.use('commit_copies')}();")

    def _items(self, scope: Scope) -> Scope:
        """Open a loop over the packs of a thread."""
        item = scope.unroll(f"for (int item = 0; item < {self._n_items}; ++item)")
        item.line(f"const {self.pack_type} {self.packing.pack.name} = item * {self.schedule.stride} + {self._lane};")
        item.define(self.packing.pack, self.packing.pack.name)
        return item

    def _read_by_all(self) -> list[Access]:
        """Return the packs of the last pass that all rows read."""
        entries = self._entries()
        last = max(level for level, _ in entries)
        along = self._along_row([scalar for level, scalar in entries if level == last])
        return [access for access in along if self.group.row not in access.variables]

    def _single_reads(self) -> list[Access]:
        """Return the single elements of each row that its passes need."""
        own = {entry.tensor for entry in self.group.reductions}
        found = reads_ahead(scalars_of_group(self.group), (self.group.row,))
        known = self.kernel.tensor_names
        return [a for a in found if a.variables and a.mask is None and a.tensor in known and a.tensor not in own]

    def _single(self, scope: Scope, access: Access) -> str:
        """Return the element of the next row."""
        moved = self._moved(access)
        at = scope.offset(moved.tensor, moved.index).text
        return loaded(f"{self.kernel.pointer(access.tensor)}[{at}]", access.dtype).text

    def _at_item(self, scope: Scope, access: Access, item: str) -> str:
        """Return the load of a thread's pack of what all rows read."""
        moved = Access(access.tensor, [substitute(i, {self.packing.pack: as_index(self._later)}) for i in access.index])
        scope.define(self._later, Text(f"{item} * {self.schedule.stride} + {self._lane}", ADD))
        return self.packing.memory(scope, moved)

    def _moved(self, access: Access) -> Access:
        """Return the read of the next row."""
        return Access(access.tensor, [substitute(i, {self.group.row: self._row}) for i in access.index])

    def _pack_bytes(self, access: Access) -> int:
        return access.dtype.itemsize * self.schedule.vector

    def _bytes_of(self, access: Access) -> int:
        return self._pack_bytes(access) * self._n_items * self.schedule.threads
