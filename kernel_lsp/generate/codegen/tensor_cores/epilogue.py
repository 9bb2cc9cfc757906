"""Write the sums of a block's tile, with what follows them: neighbouring threads write neighbours, in packs where the
captured sizes allow it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Expression
from kernel_lsp.generate.codegen.elements.elementwise import write_stores
from kernel_lsp.generate.codegen.kernel import KernelWriter
from kernel_lsp.generate.codegen.operators import ADD, ATOM, MULTIPLY, Text, loaded, stored
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_operands import declare_divisions_of, pack_conditions
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_schedule import TensorCoreSchedule
from kernel_lsp.generate.fusion.groups import ContractionGroup
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.scalar import TRUE, Access, Scalar, accesses
from kernel_lsp.generate.ir.sizes import ravel
from kernel_lsp.generate.ir.workload import Workload

PACK = 4
MAX_PACKED_BYTES = 4
"""Maximum bytes of an element for packs of 16 bytes."""
MIN_UNROLLED_ROUNDS = 8
"""Minimum results per thread to unroll the epilogue, so that its loads overlap."""
LANE_SERIAL = 1 << 22


@dataclass(frozen=True)
class RowPlaces:
    """Rows of a tile that are places with gaps: the name of a place, the text that declares its row m, and the name of
    the condition that it has one."""

    name: str
    declare: Callable[[Scope], None]
    condition: str


@dataclass(frozen=True)
class ResultText:
    """Names and limits that the text refers to: upper bounds of m and n where tiles do not fit, the number of products
    of a sum, and whether a sum may have to be computed again. `place` is a sum's in the shared array, where that does
    not follow from m and n."""

    row_limit: str
    column_limit: str
    n_terms: str
    may_be_redone: bool
    rows: RowPlaces | None = None
    place: str = ""

    def own(self, name: str) -> str:
        """Return the name of what runs along a tile's rows or columns."""
        return self.rows.name if self.rows is not None and name == "m" else name


def sum_type(operand: DType | None) -> str:
    """Return the C++ type in which tensor cores add up products of this element type."""
    return "int" if operand == DType.I8 else "float"


class ResultWriter:
    """Writes the end of a kernel whose sums are in the shared array `results`."""

    def __init__(
        self,
        kernel: KernelWriter,
        group: ContractionGroup,
        schedule: TensorCoreSchedule,
        workload: Workload,
        *,
        is_m_inner: bool,
    ) -> None:
        self.kernel, self.group, self.schedule, self.is_m_inner = kernel, group, schedule, is_m_inner
        self._sum_type = sum_type(group.operand)
        self.inner, self.outer = (group.m, group.n) if is_m_inner else (group.n, group.m)
        self.inner_name, self.outer_name = ("m", "n") if is_m_inner else ("n", "m")
        found = [self._pack_conditions(access, workload) for access in self._packable()]
        complete = [conditions for conditions in found if conditions is not None]
        self.is_packed = schedule.cluster == 1 and len(complete) == len(found)
        self.conditions: list[Expression] = [each for own in complete for each in own] if self.is_packed else []

    def keep_packs(self, fits: bool, conditions: Sequence[Expression]) -> None:
        """Keep packs only where `fits`, under more conditions."""
        self.is_packed = self.is_packed and fits
        self.conditions = [*self.conditions, *conditions] if self.is_packed else []

    def write(self, scope: Scope, text: ResultText) -> None:
        """Write the loop over a thread's sums."""
        schedule, kernel = self.schedule, self.kernel
        n_threads, start = schedule.n_threads, "threadIdx.x"
        if schedule.cluster > 1:
            start, n_threads = f"(rank * {n_threads} + threadIdx.x)", n_threads * schedule.cluster
        width = PACK if self.is_packed else 1
        n_inner = (schedule.tile_m if self.is_m_inner else schedule.tile_n) // width
        tile, outer_tile = ("TM", "TN") if self.is_m_inner else ("TN", "TM")
        step, length = (f" * {width}", f"({tile} / {width})") if width > 1 else ("", tile)
        name, other = self.inner_name, self.outer_name
        keeps_place = n_threads % n_inner == 0
        if keeps_place:
            scope.line(f"const {kernel.index_type} {text.own(name)} = {name}0 + {start} % {length}{step};")
            if text.rows is not None:
                text.rows.declare(scope)
            self._declare_place(scope)
        if schedule.tile_m * schedule.tile_n >= MIN_UNROLLED_ROUNDS * width * n_threads:
            scope.line("#pragma unroll 4")
        with scope.open(f"for (int e = {start}; e < {length} * {outer_tile}; e += {n_threads})") as loop:
            own = "" if keeps_place else f"{name} = {name}0 + e % {length}{step}, "
            loop.line(f"const {kernel.index_type} {own}{other} = {other}0 + e / {length};")
            loop.define(self.inner, name)
            loop.define(self.outer, other)
            limits = (("m", text.row_limit), ("n", text.column_limit))
            outside = [f"{each} >= {limit}" for each, limit in limits if limit]
            if text.rows is not None:
                outside.append(f"!{text.rows.condition}")
            if self._inside != TRUE:
                outside.append(f"!{loop.value(self._inside).within(ATOM)}")
            if outside:
                loop.line(f"if ({' || '.join(outside)}) continue;")
            if self.is_packed:
                self._write_pack(loop, text)
            else:
                self._write_sum(loop, text)
                loop.bind(Access(self.group.tensor, self.group.at), Text("sum", 20))
                write_stores(loop, self.group.stores)
        if schedule.cluster > 1:
            scope.line("cluster_sync();  // others may still read this block's sums")

    def write_lines(self, scope: Scope, text: ResultText, declare_phase: Callable[[Scope], None]) -> None:
        """Write the loop over a thread's places on lines whose elements are of different phases. A place is kept for
        all columns, since its coordinates take divisions. `declare_phase` declares what depends on `phase`."""
        schedule, n_phases = self.schedule, self.schedule.n_phases
        bound = f"TM * {n_phases}"
        with scope.open(f"for (int e = threadIdx.x; e < {bound}; e += {schedule.n_threads})") as loop:
            loop.line(f"const {self.kernel.index_type} m = m0 + e / {n_phases};")
            loop.line(f"const int phase = e % {n_phases};")
            declare_phase(loop)
            self._declare_place(loop)
            outside = [f"m >= {text.row_limit}"] if text.row_limit else []
            if self._inside != TRUE:
                outside.append(f"!{loop.value(self._inside).within(ATOM)}")
            if outside:
                loop.line(f"if ({' || '.join(outside)}) continue;")
            loop.line("#pragma unroll 4")
            with loop.open(f"for ({self.kernel.index_type} n = n0; n < n0 + TN; ++n)") as columns:
                columns.define(self.outer, "n")
                if text.column_limit:
                    columns.line(f"if (n >= {text.column_limit}) break;")
                self._write_sum(columns, text)
                columns.bind(Access(self.group.tensor, self.group.at), Text("sum", 20))
                write_stores(columns, self.group.stores)

    def write_registers(self, scope: Scope, text: ResultText, sums: str) -> None:
        """Write a pack of sums at m and n that a thread has in registers."""
        self._skip_outside(scope, text)
        scope.line(f"const Pack<float, {PACK}> part = {sums};")
        self._finish_pack(scope, text)

    def write_again(self, scope: Scope, text: ResultText) -> None:
        """Write one result at m and n, whose sum is computed by plain multiplications."""
        self._skip_outside(scope, text)
        scope.line("float sum = 0.0f;")
        self._add_products(scope, text, {})
        scope.bind(Access(self.group.tensor, self.group.at), Text("sum", ATOM))
        write_stores(scope, self.group.stores)

    def _skip_outside(self, scope: Scope, text: ResultText) -> None:
        scope.define(self.group.m, "m")
        scope.define(self.group.n, "n")
        outside = [f"{name} >= {limit}" for name, limit in (("m", text.row_limit), ("n", text.column_limit)) if limit]
        if outside:
            scope.line(f"if ({' || '.join(outside)}) continue;")

    def _place_of_sum(self, text: ResultText) -> str:
        if text.place:
            return text.place
        inner, outer = self.inner_name, self.outer_name
        return f"[{text.own(outer)} - {outer}0][{text.own(inner)} - {inner}0]"

    def _packable(self) -> Iterator[Access]:
        """Yield what is written, and what is read along the inner dim, but not inside a loop of its own."""
        for store in self.group.stores:
            yield Access(store.tensor, store.index)
            for access in accesses(store.scalar):
                is_in_loop = not access.variables <= store.scalar.variables
                if access.tensor is not self.group.tensor and self.inner in access.variables and not is_in_loop:
                    yield access

    def _pack_conditions(self, access: Access, workload: Workload) -> tuple[Expression, ...] | None:
        if access.tensor.dtype.itemsize > MAX_PACKED_BYTES or access.mask is not None:
            return None
        return pack_conditions(ravel(access.index, access.tensor.shape), self.inner, PACK, workload)

    def _write_pack(self, scope: Scope, text: ResultText) -> None:
        place = self._place_of_sum(text)
        scope.line(f"const Pack<{self._sum_type}, {PACK}> part = *packs<{PACK}>(&results{place});")
        self._finish_pack(scope, text)

    def _finish_pack(self, scope: Scope, text: ResultText) -> None:
        group, kernel, name = self.group, self.kernel, self.inner_name
        reads = [access for access in self._packable() if access.tensor not in {s.tensor for s in group.stores}]
        packs = {}
        for access in dict.fromkeys(reads):
            pointer, offset = kernel.pointer(access.tensor), scope.offset(access.tensor, access.index)
            type_ = f"Pack<{access.dtype.cuda_type}, {PACK}>"
            loaded_pack = f"*packs<{PACK}>({pointer} + {offset.within(ADD)})"
            packs[access] = scope.declare(f"{pointer}_pack", type_, loaded_pack)
        targets = [scope.names.take(f"{kernel.target(store.tensor)}_pack") for store in group.stores]
        for store, target in zip(group.stores, targets, strict=True):
            scope.line(f"Pack<{store.tensor.dtype.cuda_type}, {PACK}> {target};")
        lane = Variable(f"{name}_of_lane", LANE_SERIAL, self.inner.extent)
        of_lane = {self.inner: as_index(lane)}
        with scope.unroll(f"for (int c = 0; c < {PACK}; ++c)") as lanes:
            lanes.define(lane, Text(f"({name} + c)", ATOM))
            lanes.line(f"{self._sum_type} sum = part.item[c];")
            self._finish_sum(lanes, text, of_lane)
            own = Access(group.tensor, group.at).substitute(of_lane)
            lanes.bind(own, Text("sum", 20))
            for access, pack in packs.items():
                lanes.bind(access.substitute(of_lane), loaded(f"{pack}.item[c]", access.dtype))
            values = lanes.values([store.scalar.substitute(of_lane) for store in group.stores])
            for store, target, value in zip(group.stores, targets, values, strict=True):
                lanes.line(f"{target}.item[c] = {stored(value, store.scalar.dtype, store.tensor.dtype)};")
        for store, target in zip(group.stores, targets, strict=True):
            offset = scope.offset(store.tensor, store.index)
            scope.line(f"*packs<{PACK}>({kernel.target(store.tensor)} + {offset.within(ADD)}) = {target};")

    @property
    def _inside(self) -> Scalar:
        return TRUE if self.group.phases is None else self.group.phases.inside

    def _declare_place(self, scope: Scope) -> None:
        """Declare the coordinates of the place along the inner dim that a thread keeps, and whether it is stored."""
        group = self.group
        scope.define(self.inner, self.inner_name)
        for store in group.stores:
            declare_divisions_of(scope, ravel(store.index, store.tensor.shape), self.inner)
            for access in accesses(store.scalar):
                declare_divisions_of(scope, ravel(access.index, access.tensor.shape), self.inner)
        if self._inside != TRUE and self.is_m_inner:
            scope.bind(self._inside, scope.declare("is_stored", "bool", scope.value(self._inside).text))

    def _write_sum(self, scope: Scope, text: ResultText) -> None:
        place = self._place_of_sum(text)
        if self.schedule.cluster > 1:
            scope.line(f"{self._sum_type} sum = {'0' if self._sum_type == 'int' else '0.0f'};")
            with scope.unroll(f"for (int peer = 0; peer < {self.schedule.cluster}; ++peer)") as peers:
                peers.line(f"sum += {self.kernel.use('read_peer')}(&results{place}, peer);")
        else:
            scope.line(f"{self._sum_type} sum = results{place};")
        self._finish_sum(scope, text, {})

    def _finish_sum(self, scope: Scope, text: ResultText, of_lane: dict[Variable, Index]) -> None:
        """Scale a sum, or recompute it without the split."""
        scale = self.group.unscaled[2]
        if text.may_be_redone:
            self._write_again(scope, text, of_lane)
        if scale != 1.0:
            scope.line(f"{'else ' if text.may_be_redone else ''}sum *= {scale!r}f;")

    def _write_again(self, scope: Scope, text: ResultText, of_lane: dict[Variable, Index]) -> None:
        with scope.open(f"if ({self.kernel.use('must_be_redone')}(sum, {text.n_terms}))") as again:
            again.line("sum = 0.0f;")
            self._add_products(again, text, of_lane)

    def _add_products(self, scope: Scope, text: ResultText, of_lane: dict[Variable, Index]) -> None:
        with scope.open("#pragma unroll 8", f"for ({self.kernel.index_type} k = 0; k < {text.n_terms}; ++k)") as loop:
            loop.define(self.group.k, "k")
            left, right = loop.values([e.substitute(of_lane) for e in (self.group.left, self.group.right)])
            loop.line(f"sum += {left.within(MULTIPLY)} * {right.within(MULTIPLY + 1)};")
