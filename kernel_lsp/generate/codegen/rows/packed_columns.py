"""Sums of rows that lie side by side, whose threads take packs of neighbouring rows.

A thread loads a pack of each column, adds it to a sum per row, and writes results of the pack's elements at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.generate.codegen.accumulator import combined
from kernel_lsp.generate.codegen.elements.elementwise import write_packed
from kernel_lsp.generate.codegen.elements.packs import Packing, find_packed, multiple_conditions
from kernel_lsp.generate.codegen.elements.runs import load_runs, with_whole_masks
from kernel_lsp.generate.codegen.kernel import (
    KernelWriter,
    RenderedKernel,
    blocks_of,
    divisible,
    name_coordinates,
    rendered,
)
from kernel_lsp.generate.codegen.operators import ATOM, COMPUTE_TYPE, Text, stored
from kernel_lsp.generate.codegen.rows.row_schedule import RowSchedule
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import RowGroup, Store, row_index
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import as_index, divide_exactly
from kernel_lsp.generate.ir.scalar import Access, accesses
from kernel_lsp.generate.ir.workload import Workload

BYTES_IN_FLIGHT = 32
"""Bytes of a tensor that a thread has in flight in packs of 2 and 4 rows; of 8 rows it has one pack: more of wide packs
leave too few threads."""


def loads_packs_of_rows(group: RowGroup, width: int, workload: Workload, is_proven: bool) -> bool:
    """Return True if threads load `width` neighbouring rows at once, at the captured sizes, or, where it must be
    `is_proven`, at all that the plan admits: not from a matrix with 4095 columns, where a sum over 4096 x 4095 took
    3368 us on an H200 by fours, PyTorch's 2223; nor where the number of columns is open, with which a masked mean over
    512 of 768 took 41 us by twos, 32 by single columns."""
    packing = _packing(group, width)
    terms = packing.substituted([Store(entry.tensor, (), entry.scalar) for entry in group.reductions], group.row)
    reads = list(accesses(*(term.scalar for term in terms)))
    has_masks = any(access.mask is not None for access in reads)
    if not is_proven and has_masks and workload.size(group.row_shape[-1]) % width == 0:
        return True
    unmasked = [Access(a.tensor, a.index) for a in reads if a.mask is None or packing.lane not in a.mask.variables]
    varying = [access for access in unmasked if group.column in access.variables]
    return bool(find_packed(varying if is_proven else [term.scalar for term in terms], packing))


def _packing(group: RowGroup, width: int) -> Packing:
    """Return the packs of `width` neighbouring rows."""
    rows = group.row.extent
    n_packs = divide_exactly(rows, as_index(width))
    return Packing(
        Variable("pack", 1 << 20, n_packs if n_packs is not None else rows),
        Variable("v", (1 << 20) + 1, as_index(width)),
        width,
        multiple=rows,
    )


class PackedColumnRenderer:
    """Writes the kernel of a row group whose threads take packs of neighbouring rows."""

    def __init__(self, kernel: KernelWriter, group: RowGroup, schedule: RowSchedule, workload: Workload) -> None:
        self.kernel, self.group, self.schedule = kernel, group, schedule
        self.scope = Scope(kernel)
        self.n_packs = divide_exactly(group.row.extent, as_index(schedule.vector))
        self.packing = _packing(group, schedule.vector)
        terms = [Store(entry.tensor, (), entry.scalar) for entry in group.reductions]
        work = self.packing.substituted([*terms, *(store for _, store in group.stores)], group.row)
        found = with_whole_masks(work, self.packing.lane, workload)
        self.workload = workload if found is not None else None
        self.work, self.multiples = found if found is not None else (work, [])

    def render(self, comment: str) -> RenderedKernel:
        """Return the kernel with `comment` above it."""
        rows, schedule, entries = self.group.row.extent, self.schedule, self.group.reductions
        self._begin()
        sums = [self._declare_sum(entry.tensor.name, COMPUTE_TYPE[entry.tensor.dtype]) for entry in entries]
        self._sweep(sums)
        if schedule.threads > 1:
            for name, entry in zip(sums, entries, strict=True):
                helper = self.kernel.use("column_sums", entry.tensor.dtype)
                self.scope.line(f"{helper}<{schedule.threads}, {schedule.rows}>({name}.item);")
        self._finish(sums)
        n_items, per_thread = (rows, schedule.vector) if self.n_packs is None else (self.n_packs, 1)
        grid = (blocks_of(n_items, schedule.rows * per_thread),)
        conditions = (*divisible(rows, schedule.vector), *multiple_conditions(self.multiples))
        return rendered(self.kernel, comment, self.scope.lines, grid, (schedule.threads * schedule.rows,), conditions)

    def _begin(self) -> None:
        """Declare the pack of rows; threads beyond the last one take it again, because all of a block combine."""
        type_, vector, scope = self.kernel.index_type, self.schedule.vector, self.scope
        size = self.kernel.size("n_rows", self.group.row.extent)
        limit = str(int(size) // vector) if size.isdigit() else f"{size} / {vector}"
        cast = "(long long)" if type_ == "long long" else ""
        scope.line(
            f"const {type_} my_pack = {cast}blockIdx.x * {self.schedule.rows} + threadIdx.x % {self.schedule.rows};"
        )
        scope.line(f"const bool is_row = my_pack < {limit};")
        scope.line(f"const {type_} pack = is_row ? my_pack : {limit} - 1;  // all threads combine")
        scope.define(self.packing.pack, "pack")
        name_coordinates(self.kernel, self.packing.flat, self.group.row_shape)

    def _declare_sum(self, wanted: str, type_: str) -> str:
        self.kernel.use("packs")
        name = self.scope.names.take(f"{wanted}_value" if self.kernel.is_parameter(wanted) else wanted)
        self.scope.line(f"Pack<{type_}, {self.schedule.vector}> {name} = {{}};")
        return name

    def _sweep(self, sums: Sequence[str]) -> None:
        """Loop over the columns: what does not depend on them is loaded before."""
        group, packing, lane = self.group, self.packing, self.packing.lane
        scalars = [store.scalar for store in self.work]
        packed = find_packed(scalars, packing)
        known = [access.digest for access in packed]
        self.scope.hoist(scalars, [group.column, lane])
        names = {a.digest: packing.load(self.scope, a) for a in packed if group.column not in a.variables}
        self._load_runs(self.scope, known)
        n_columns = self.kernel.size("n_columns", group.column.extent)
        step, rows = self.schedule.threads, self.schedule.rows
        pack_bytes = packing.vector * max((access.dtype.itemsize for access in packed), default=4)
        unroll = max(1, BYTES_IN_FLIGHT // pack_bytes) if packing.vector < 8 else 1
        self.scope.line(f"#pragma unroll {unroll}")
        header = f"{self.kernel.index_type} col = threadIdx.x / {rows}; col < {n_columns}; col += {step}"
        loop = self.scope.open(f"for ({header})")
        loop.define(group.column, "col")
        name_coordinates(self.kernel, as_index(group.column), group.column_shape)
        loop.hoist(scalars, [lane])
        names |= {a.digest: packing.load(loop, a) for a in packed if a.digest not in names}
        self._load_runs(loop, [*known, *self.kernel.runs])
        stores = self.work[len(sums) :]
        targets = [packing.declare_result(loop, store) for store in stores]
        divisions = loop.hoist_lanes(scalars, lane)
        lanes = loop.unroll(f"for (int v = 0; v < {packing.vector}; ++v)")
        lanes.define(lane, "v")
        lanes.named |= divisions
        for access in packed:
            lanes.bind(access, packing.item(names[access.digest], access.dtype))
        texts = lanes.values(scalars)
        for entry, name, text in zip(group.reductions, sums, texts, strict=False):
            lanes.line(combined("sum", f"{name}.item[v]", text, entry.tensor.dtype, self.kernel))
        for store, target, text in zip(stores, targets, texts[len(sums) :], strict=True):
            self._assign(lanes, store, target, stored(text, store.scalar.dtype, store.tensor.dtype))
        lanes.close()
        for store, target in zip(stores, targets, strict=True):
            if target is not None:
                with loop.open("if (is_row)") as inner:
                    packing.store(inner, store, target)
        loop.close()

    def _load_runs(self, scope: Scope, loaded: Sequence[bytes]) -> None:
        """Load the packs under a mask that all rows of a pack share, such as the end of a part."""
        needed = load_runs(scope, self.work, {self.packing.lane: ()}, self.workload, loaded)
        self.multiples = [*self.multiples, *needed]

    def _assign(self, scope: Scope, store: Store, target: str | None, value: str) -> None:
        """Set one element of a result: in its pack, or in memory where it has none."""
        if target is not None:
            scope.line(f"{target}.item[v] = {value};")
            return
        offset = scope.offset(store.tensor, store.index).text
        scope.line(f"if (is_row) {self.kernel.target(store.tensor)}[{offset}] = {value};")

    def _finish(self, sums: Sequence[str]) -> None:
        """Write the results per row, by one thread of each pack."""
        group, packing = self.group, self.packing
        stores = list(group.row_stores)
        loads = {}
        condition = "is_row" if self.schedule.threads == 1 else f"is_row && threadIdx.x < {self.schedule.rows}"
        inner = self.scope.open(f"if ({condition})")
        for entry, name in zip(group.reductions, sums, strict=True):
            index = row_index(as_index(group.row), group.row_shape, entry.tensor)
            access = Access(entry.tensor, index)
            if entry.stored:
                stores.append(Store(entry.tensor, index, access))
            own = access.substitute({group.row: packing.flat})
            assert isinstance(own, Access)
            inner.bind(own, Text(f"{name}.item[v]", ATOM))
            loads[own.digest] = name
        stores = packing.substituted(stores, group.row)
        packed = find_packed([store.scalar for store in stores], packing)
        loads |= {a.digest: packing.load(inner, a) for a in packed if a.digest not in loads}
        if stores:
            write_packed(inner, packing, stores, loads)
        inner.close()
