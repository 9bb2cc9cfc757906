"""Rows that several blocks share: each block keeps its part on chip, and blocks exchange their partial results.

Up to 16 blocks form a cluster and write to each other's shared memory. More blocks synchronize at the barrier of a
cooperative grid, and exchange through scratch in global memory; teams of them take one row after the other. All blocks
combine the parts in the same order, so the result does not depend on the order of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Constant
from kernel_lsp.core.expression_rules import binary
from kernel_lsp.generate.codegen.accumulator import Accumulator, OnlinePair
from kernel_lsp.generate.codegen.kernel import KernelWriter, RenderedKernel, name_coordinates, rendered
from kernel_lsp.generate.codegen.operators import ATOM, COMPUTE_TYPE, Text
from kernel_lsp.generate.codegen.rows.online_rows import bounded
from kernel_lsp.generate.codegen.rows.row_cache import RowCache
from kernel_lsp.generate.codegen.rows.row_schedule import WARP, RowSchedule
from kernel_lsp.generate.codegen.rows.rows import RowRenderer, RunningValue
from kernel_lsp.generate.codegen.rows.rows_ahead import RowsAhead
from kernel_lsp.generate.codegen.rows.staged_rows import StagedRows
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import RowGroup, RowReduction, Store
from kernel_lsp.generate.fusion.row_patterns import Follower, Pair, find_followers, find_pairs
from kernel_lsp.generate.ir.index import as_index
from kernel_lsp.generate.ir.scalar import Scalar, accesses
from kernel_lsp.generate.ir.sizes import to_expression

SCRATCH_TYPE = {"double": DType.F64, "float": DType.F32, "long long": DType.I64, "int": DType.I32}


def with_late_stores(group: RowGroup) -> RowGroup:
    """Return the group whose last pass also writes what needs no reduction, from reads that it makes anyway: until
    then the results of an earlier pass would take the place of reads in the L2 cache."""
    last = max((level for level, _ in group.stores), default=0)
    late = {read.digest for level, store in group.stores if level == last for read in accesses(store.scalar)}

    def level_of(level: int, store: Store) -> int:
        return last if all(read.digest in late for read in accesses(store.scalar)) else level

    return replace(group, stores=tuple((level_of(level, store), store) for level, store in group.stores))


class SharedRowRenderer(RowRenderer):
    """Writes the kernel of a row group whose rows several blocks share."""

    def __init__(self, kernel: KernelWriter, group: RowGroup, schedule: RowSchedule) -> None:
        super().__init__(kernel, group if schedule.cached else with_late_stores(group), schedule)
        self.row_scope = self.scope
        self._has_met = False
        self._own_peaks: dict[Pair, str] = {}
        self._followers = self._active_followers()
        self._warp_count = ""

    def render(self, comment: str) -> RenderedKernel:
        """Return the kernel with `comment` above it."""
        self._begin()
        for level in range(self.levels):
            self._pass(level)
        self._finish()
        self.cache.end_row(self.scope)
        if self.scope is not self.row_scope:
            self.scope.close()
        kernel = rendered(
            self.kernel,
            comment,
            self.row_scope.lines,
            (self._grid(),),
            self._block(),
            self._conditions(),
            min_blocks=self.schedule.resident,
        )
        attributes = (("cooperative", 1),) if self.schedule.is_grid else (("cluster", self.schedule.blocks),)
        return replace(
            kernel, attributes=attributes, shared_bytes=self.cache.n_bytes or self.register_values.shared_bytes
        )

    def _grid(self) -> Constant:
        blocks = self.schedule.blocks
        if self.schedule.is_grid:
            return Constant(blocks * self.schedule.teams)
        return binary("*", to_expression(self.group.row.extent), Constant(blocks))  # type: ignore[return-value]  # fixed rows

    def _active_pairs(self, whole: RowGroup) -> tuple[Pair, ...]:
        """Return the pairs of `whole` with the reductions of this group, where kept values hide what both share."""
        now = dict(zip(whole.reductions, self.group.reductions, strict=True))
        return tuple(replace(pair, first=now[pair.first], second=now[pair.second]) for pair in find_pairs(whole))

    def _active_followers(self) -> tuple[Follower, ...]:
        """Return what a block sums up besides the pairs while a row is on chip, relative to the maxima of its part."""
        if not self.schedule.cached:
            return ()
        weighted = (each for each in find_followers(self.group, self.pairs) if each.base is not None)
        return tuple(weighted)

    def _new_cache(self) -> RowCache:
        if self.schedule.ahead:
            return RowsAhead(self.kernel, self.group, self.schedule, self.packing)
        if self.schedule.staged:
            return StagedRows(self.kernel, self.group, self.schedule, self.packing)
        return super()._new_cache()

    def _begin(self) -> None:
        scope, schedule = self.scope, self.schedule
        name_coordinates(self.kernel, as_index(self.group.row), self.group.row_shape)
        scope.names.take_exactly("rank")
        scope.names.take_exactly("lane")
        scope.line(f"const int rank = blockIdx.x % {schedule.blocks};  // of the block among those of its row")
        self._declare_lane()
        if schedule.is_grid:
            self.kernel.use("grid_sync")
        else:
            scope.line(f"{self.kernel.use('cluster_arrive')}();")
        if schedule.is_grid and self.group.row.extent.constant != 1:
            self._open_rows()
        elif self.group.row.extent.constant == 1:
            scope.named[as_index(self.group.row).digest] = Text("0", ATOM)
            scope.define(self.group.row, "0")
        else:
            cast = "(long long)" if self.kernel.index_type == "long long" else ""
            scope.line(f"const {self.kernel.index_type} row = {cast}blockIdx.x / {schedule.blocks};")
            scope.define(self.group.row, "row")

    def _declare_lane(self) -> None:
        """Declare the thread's place among those that share a row."""
        self.scope.line(f"const int lane = rank * {self.schedule.threads} + threadIdx.x;")

    def _open_rows(self) -> None:
        """Open the loop in which teams take one row after the other. All teams stay in it, because they share the
        barrier."""
        teams, type_ = self.schedule.teams, self.kernel.index_type
        n_rows = self.kernel.size("n_rows", self.group.row.extent)
        if self.schedule.meanwhile:
            place = self._n_items(), self._column_lane(), self._limit()
            self.cache.begin_rows(self.scope, self._row_of("0", n_rows), *place)
        if teams == 1:
            self.scope = self.scope.open(f"for ({type_} row = 0; row < {n_rows}; ++row)")
        else:
            self.scope = self.scope.open(f"for ({type_} first_row = 0; first_row < {n_rows}; first_row += {teams})")
            self.scope.line(f"const {type_} my_row = first_row + blockIdx.x / {self.schedule.blocks};")
            self.scope.line(f"const bool is_row = my_row < {n_rows};")
            self.scope.line(f"const {type_} row = is_row ? my_row : {n_rows} - 1;  // all blocks meet at the barrier")
        self.scope.define(self.group.row, "row")
        self.cache.open_row(self.scope, *self._next_row())

    def _next_row(self) -> tuple[str, str]:
        """Return the condition that a team has a row after this one, and that row."""
        n_rows = self.kernel.size("n_rows", self.group.row.extent)
        first = "row + 1" if self.schedule.teams == 1 else f"first_row + {self.schedule.teams}"
        return f"{first} < {n_rows}", self._row_of(first, n_rows)

    def _fill_cache(self, scalars: Sequence[Scalar]) -> None:
        super()._fill_cache(scalars)
        if self.level == self.levels - 1:
            self.cache.begin_last(self.scope)

    def _body(
        self,
        scope: Scope,
        scalars: Sequence[Scalar],
        accumulators: Sequence[RunningValue],
        stores: Sequence[Store],
    ) -> None:
        super()._body(scope, scalars, accumulators, stores)
        self.cache.end_pack(scope)

    def _row_of(self, first: str, n_rows: str) -> str:
        """Return the row of this block's team when the first team is at `first`."""
        if self.schedule.teams == 1:
            return first
        start = "" if first == "0" else f"{first} + "
        return f"min({start}({self.kernel.index_type})blockIdx.x / {self.schedule.blocks}, {n_rows} - 1)"

    def _is_guarded(self) -> bool:
        return self.schedule.is_grid and self.schedule.teams > 1 and self.group.row.extent.constant != 1

    def _column_lane(self) -> str:
        return "lane"

    def _leader_condition(self) -> str:
        return " && ".join([*(["is_row"] if self._is_guarded() else []), "lane == 0"])

    def _finish_pass(self, entries: Sequence[RowReduction], accumulators: Sequence[RunningValue]) -> None:
        self.cache.end_pass(self.scope)
        if not entries and not self._adds_lines():
            return
        found: dict[RowReduction, str] = {}
        self._warp_count = self._count_of_warps(entries)
        together = self._combine_together(accumulators)
        for entry, accumulator in zip(entries, accumulators, strict=True):
            if isinstance(accumulator, OnlinePair):
                pair = accumulator.pair
                found[pair.first], found[pair.second] = self._combine_pair(accumulator, self._part_count())
                continue
            if self._warp_count:
                helper = self.kernel.use("warp_sum", entry.tensor.dtype)
                self.scope.line(f"{accumulator.name} = {helper}<32>({accumulator.name});")
            elif accumulator not in together:
                self._combine(entry, accumulator)
            found[entry] = accumulator.name
        found |= self._found_of_lines()
        if self.schedule.cached:
            self._second_sweeps(found)
        parts = {entry: self._parts(entry) for entry in found}
        self._exchange(found, parts)
        self._combine_parts(found, parts)

    def _adds_lines(self) -> bool:
        """Return True if the pass computes reductions from sums of lines."""
        return False

    def _found_of_lines(self) -> dict[RowReduction, str]:
        """Compute the reductions of this block's part that sums of lines give; return their names."""
        return {}

    def _second_sweeps(self, found: dict[RowReduction, str]) -> None:
        """Walk over the part of the row in registers for the second reductions of pairs."""
        swept: dict[RowReduction, Accumulator] = {}
        pairs = [pair for pair in self.pairs if pair.first in found]
        followers = [follower.entry for follower in self._followers if follower.base in pairs]
        for each in [pairs] if followers else [[pair] for pair in pairs]:
            entries = [*(pair.second for pair in each), *followers]
            for pair in each:
                first = found[pair.first]
                pivot = self._peak_pivot(first) if pair.kind == "exponentials" else self._part_mean(pair, first)
                self.scope.bind(pair.pivot, pivot)
                if self.register_values.has_terms_of(pair.second.tensor):
                    self._own_peaks[pair] = self.scope.declare("own_peak", "float", first)
            self.terms_of = frozenset(pair.second.tensor for pair in each)
            for entry, accumulator in zip(entries, self._sweep(entries, []), strict=True):
                assert isinstance(accumulator, Accumulator)
                swept[entry] = accumulator
                found[entry] = accumulator.name
            self.terms_of = frozenset()
            for pair in each:
                del self.scope.named[pair.pivot.digest]
        if self._warp_count:
            names = ", ".join(found.values())
            helper = self.kernel.use("block_moments")
            self.scope.line(f"{helper}<{self.schedule.threads}>({names}, {self._warp_count});")
            return
        together = self._combine_together(list(swept.values()))
        for entry, accumulator in swept.items():
            if accumulator not in together:
                self._combine(entry, accumulator)

    def _peak_pivot(self, peak: str) -> str:
        """Declare the block's maximum, or 0 where that is -inf: an infinity minus itself would be NaN."""
        return self.scope.declare("part_peak", "float", f"{peak} == -CUDART_INF_F ? 0.0f : {peak}")

    def _part_mean(self, pair: Pair, first: str) -> str:
        """Declare the mean of the block's part of the row, or of the warp's."""
        offset = ""
        if pair.offset is not None:
            offset = f"{self.scope.value(pair.offset).text} + "
        return self.scope.declare("part_mean", "float", f"{offset}{first} / {self._warp_count or self._part_count()}")

    def _count_of_warps(self, entries: Sequence[RowReduction]) -> str:
        """Return the number of columns of a warp where a block combines both sums of a variance at once; nothing where
        it combines one after the other."""
        constant = self.schedule.columns_of(self.group)
        firsts = [pair.first for pair in self.pairs if pair.kind == "moments"]
        if constant is None or constant % (self.schedule.stride * self.schedule.vector):
            return ""
        if not self.schedule.cached or len(entries) != 1 or entries[0] not in firsts:
            return ""
        return f"{constant // (self.schedule.stride // WARP)}.0f"

    def _part_count(self) -> str:
        """Return the number of columns of this block as a float, at least 1."""
        constant = self.schedule.columns_of(self.group)
        if constant is not None and constant % (self.schedule.stride * self.schedule.vector) == 0:
            return f"{constant // self.schedule.blocks}.0f"
        helper = self.kernel.use("share_of")
        count = f"(float){helper}<{self.schedule.blocks}, {self.schedule.threads}>({self._limit()}, rank)"
        count = count if self.schedule.vector == 1 else f"{count} * {self.schedule.vector}"
        return self.scope.declare("part_count", "float", f"fmaxf({count}, 1.0f)")

    def _goes_backward(self) -> bool:
        """Return True for the last of several passes over memory: the L2 cache still has what the one before read last,
        and a pass forward would evict that before it comes there."""
        return not self.schedule.cached and self.level == self.levels - 1 > 0

    def _parts(self, entry: RowReduction) -> str:
        """Declare the storage of the partial results of a row's blocks; return a pointer to it."""
        blocks, type_ = self.schedule.blocks, COMPUTE_TYPE[entry.tensor.dtype]
        wanted = f"{entry.tensor.name}_parts"
        if not self.schedule.is_grid:
            parts = self.row_scope.names.take(wanted)
            self.scope.line(f"__shared__ {type_} {parts}[{blocks}];")
            return parts
        dims = (to_expression(self.group.row.extent), Constant(blocks))
        parts = self.kernel.add_scratch(wanted, SCRATCH_TYPE[type_], dims)
        return parts if self.group.row.extent.constant == 1 else f"{parts} + row * {blocks}"

    def _exchange(self, found: dict[RowReduction, str], parts: dict[RowReduction, str]) -> None:
        """Send this block's partial results to the blocks of its row, and wait for theirs."""
        if not self.schedule.is_grid:
            if not self._has_met:
                self.scope.line(
                    f"{self.kernel.use('cluster_wait')}();  // the shared memory of all its blocks is there"
                )
            self._has_met = True
            with self.scope.open(f"if (threadIdx.x < {self.schedule.blocks})") as inner:
                for entry, name in found.items():
                    inner.line(f"*{self.kernel.use('in_block')}(&{parts[entry]}[rank], threadIdx.x) = {name};")
            self.scope.line(f"{self.kernel.use('cluster_sync')}();")
            return
        is_row = "is_row && " if self._is_guarded() else ""
        with self.scope.open(f"if ({is_row}threadIdx.x == 0)") as inner:
            for entry, name in found.items():
                pointer = parts[entry]
                at = f"({pointer})[rank]" if " " in pointer else f"{pointer}[rank]"
                inner.line(f"{at} = {name};")
        together = self._found_together()
        last = max(entry.level for entry in self._entries() if entry.tensor not in together)
        if self.level == last:
            self.cache.begin_exchange(self.scope)
        self.scope.line("grid_sync();")

    def _combine_parts(self, found: dict[RowReduction, str], parts: dict[RowReduction, str]) -> None:
        """Combine the partial results of the blocks, and name the totals."""
        if self._warp_count:
            (first, total), (second, squares) = found.items()
            helper = self.kernel.use("parts_moments")
            arguments = f"{parts[first]}, {parts[second]}, {self._part_count()}, {total}, {squares}"
            self.scope.line(f"{helper}<{self.schedule.blocks}>({arguments});")
        else:
            self._combine_each(found, parts)
        for entry, name in found.items():
            self._bind(entry, Text(name, ATOM))
        for pair, own in self._own_peaks.items():
            if pair.first in found:
                factor = self.scope.declare("kept_factor", "float", f"expf({own} - {found[pair.first]})")
                self.register_values.correct(pair.second.tensor, factor)

    def _combine_each(self, found: dict[RowReduction, str], parts: dict[RowReduction, str]) -> None:
        """Combine the parts of one reduction after the other."""
        seconds = {pair.second: pair for pair in self.pairs}
        followers = {follower.entry: follower for follower in self._followers}
        for entry, name in found.items():
            if entry in followers:
                self._combine_follower(followers[entry], parts, found)
                continue
            if entry in seconds:
                call = self._pair_call(seconds[entry], parts, found)
            else:
                kind = {"any": "max", "all": "min"}.get(entry.kind, entry.kind)
                call = f"{self.kernel.use(f'parts_{kind}', entry.tensor.dtype)}<{self.schedule.blocks}>({parts[entry]})"
            self.scope.line(f"{name} = {call};")

    def _combine_follower(
        self, follower: Follower, parts: dict[RowReduction, str], found: dict[RowReduction, str]
    ) -> None:
        """Add up what blocks found relative to the maxima of their parts."""
        base, own, scope = follower.base, follower.entry, self.scope
        assert base is not None
        parts = {entry: f"({pointer})" if " " in pointer else pointer for entry, pointer in parts.items()}
        helper = self.kernel.use("part_shift")
        shift = "".join(
            f" {'+' if sign > 0 else '-'} "
            + bounded(f"{helper}({parts[pair.first]}[part], {found[pair.first]})", follower, pair)
            for sign, pair in follower.shifts
        )
        scope.line(f"{found[own]} = 0.0f;")
        with scope.open(f"for (int part = threadIdx.x % 32; part < {self.schedule.blocks}; part += 32)") as each:
            factor = each.declare("factor", "float", f"expf({parts[base.first]}[part] - {found[base.first]})")
            distance = each.declare("distance", "float", shift.removeprefix(" + "))
            moved = f"{factor} * {parts[base.second]}[part] * {distance}"
            each.line(f"{found[own]} += {factor} * {parts[own]}[part] + {moved};")
        scope.line(f"{found[own]} = {self.kernel.use('warp_sum', own.tensor.dtype)}<32>({found[own]});")

    def _pair_call(self, pair: Pair, parts: dict[RowReduction, str], found: dict[RowReduction, str]) -> str:
        schedule, total = self.schedule, found[pair.first]
        both = f"{parts[pair.second]}, {parts[pair.first]}"
        if pair.kind == "exponentials":
            helper = self.kernel.use("parts_exponentials", pair.second.tensor.dtype)
            return f"{helper}<{schedule.blocks}>({both}, {total})"
        helper = self.kernel.use("parts_squares")
        template = f"<{schedule.blocks}, {schedule.threads}, {schedule.vector}>"
        return f"{helper}{template}({both}, {total} / {self._count()}, {self._limit()})"
