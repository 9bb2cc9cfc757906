"""Rows read once, whose maxima, sums of exponentials and what these weigh are found in one pass over memory.

A thread's sums are relative to the maxima of what it has read so far. When a pack raises a maximum, one factor
multiplies exponentials relative to it, and every distance from it changes by the same shift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.accumulator import Accumulator, OnlinePair
from kernel_lsp.generate.codegen.elements.packs import find_packed
from kernel_lsp.generate.codegen.kernel import KernelWriter
from kernel_lsp.generate.codegen.operators import ATOM, Text
from kernel_lsp.generate.codegen.rows.row_schedule import RowSchedule
from kernel_lsp.generate.codegen.rows.rows import RowRenderer, RunningValue
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import RowGroup, RowReduction, Store
from kernel_lsp.generate.fusion.row_patterns import Follower, Pair, find_followers
from kernel_lsp.generate.ir.scalar import Scalar, accesses, operands_of
from kernel_lsp.generate.ir.workload import Workload


def bounded(shift: str, follower: Follower, pair: Pair) -> str:
    """Return the shift as a finite number, where it multiplies a weight that it makes 0: 0 * -inf is NaN."""
    return f"fmaxf({shift}, -3e38f)" if pair == follower.base else shift


class OnlineRowRenderer(RowRenderer):
    """Writes the kernel of a row group whose pairs, and what follows them, one pass finds."""

    def __init__(
        self, kernel: KernelWriter, group: RowGroup, schedule: RowSchedule, workload: Workload | None = None
    ) -> None:
        super().__init__(kernel, group, schedule, workload)
        self._followers = find_followers(self.group, self.pairs)
        self._sums: dict[Follower, str] = {}
        self._pivots: dict[Pair, str] = {}
        self._n_read = ""

    def _sweep(self, entries: Sequence[RowReduction], stores: Sequence[Store]) -> list[RunningValue]:
        if self.level or self.schedule.batch == 1 or not self._can_batch(entries, stores):
            return super()._sweep(entries, stores)
        scalars = [self._summed(entry) for entry in entries]
        self.scope.hoist(scalars, self._inner_variables())
        running = [self._accumulator(entry, scalar) for entry, scalar in zip(entries, scalars, strict=True)]
        self._declare_followers()
        self._sweep_batches(scalars, [each for each in running if isinstance(each, OnlinePair)])
        return running

    def _can_batch(self, entries: Sequence[RowReduction], stores: Sequence[Store]) -> bool:
        """Return True if the pass finds nothing but pairs, and what follows them, of elements that packs hold."""
        firsts = {pair.first for pair in self.pairs if pair.kind == "exponentials"}
        if stores or not firsts.issuperset(entries) or self.schedule.vector == 1:
            return False
        scalars = [self._summed(entry) for entry in entries]
        packed = {access.digest for access in find_packed(scalars, self.packing)}
        return all(
            access.digest in packed or self.packing.pack not in access.variables for access in accesses(*scalars)
        )

    def _sweep_batches(self, scalars: Sequence[Scalar], followed: Sequence[OnlinePair]) -> None:
        """Loop over the row by batches of packs, all loads of one before its first use; then over the packs left."""
        scope, stride, limit = self.scope, self.schedule.stride, self._limit()
        name = scope.names.take("first")
        scope.line(f"{self.kernel.index_type} {name} = {self._column_lane()};")
        for n_packs in (self.schedule.batch, 1):
            last = f"{name} + {(n_packs - 1) * stride}" if n_packs > 1 else name
            with scope.open(f"for (; {last} < {limit}; {name} += {n_packs * stride})") as batch:
                self._add_batch(batch, name, n_packs, scalars, followed)

    def _add_batch(
        self, batch: Scope, first: str, n_packs: int, scalars: Sequence[Scalar], followed: Sequence[OnlinePair]
    ) -> None:
        """Add a batch of packs, whose first is `first`."""
        vector, arrays = self.schedule.vector, {}
        packed = find_packed(scalars, self.packing)
        for access in packed:
            self.kernel.use("packs")
            arrays[access.digest] = batch.names.take(f"{self.kernel.pointer(access.tensor)}_packs")
            batch.line(f"Pack<{access.dtype.cuda_type}, {vector}> {arrays[access.digest]}[{n_packs}];")
        with self._open_batch(batch, first, n_packs) as each:
            for access in packed:
                each.line(f"{arrays[access.digest]}[u] = {self.packing.memory(each, access)};")
        for pair in followed:
            pair.begin_pack(batch, n_packs * vector)
        with (
            self._open_batch(batch, first, n_packs) as each,
            each.unroll(f"for (int v = 0; v < {vector}; ++v)") as lanes,
        ):
            lanes.define(self.packing.lane, "v")
            for access in packed:
                lanes.bind(access, self.packing.item(f"{arrays[access.digest]}[u]", access.dtype))
            for pair, text in zip(followed, lanes.values(scalars), strict=True):
                pair.add(lanes, f"u * {vector} + v", text.text)
        self._raise(batch, followed)
        self._count_packs(batch, n_packs)
        with batch.unroll(f"for (int v = 0; v < {n_packs * vector}; ++v)") as lanes:
            self._add_terms(lanes, followed, "v")

    def _open_batch(self, scope: Scope, first: str, n_packs: int) -> Scope:
        """Open the loop over the packs of the batch at `first`."""
        each = scope.unroll(f"for (int u = 0; u < {n_packs}; ++u)")
        name = self.packing.pack.name
        each.declare_if_used(name, f"const {self.kernel.index_type} {name} = {first} + u * {self.schedule.stride};")
        each.define(self.packing.pack, name)
        return each

    def _open_loop(self) -> Scope:
        if self.level == 0:
            self._declare_followers()
        return super()._open_loop()

    def _declare_followers(self) -> None:
        """Declare a pivot for each maximum, which is finite where that is -inf, and the sums of followers."""
        for pair in self.pairs:
            if pair.kind == "exponentials" and pair.first.level == 0:
                self._pivots[pair] = self.scope.declare("pivot", "float", "0.0f", is_const=False)
        for follower in self._followers:
            name = self._name_of(follower.entry)
            self._sums[follower] = self.scope.declare(name, "float", "0.0f", is_const=False)
        if any(follower.base is None for follower in self._followers):
            self._n_read = self.scope.declare("count", "float", "0.0f", is_const=False)

    def _end_packs(self, scope: Scope, online: Sequence[OnlinePair]) -> None:
        followed = [running for running in online if running.pair in self._pivots]
        super()._end_packs(scope, [running for running in online if running not in followed])
        if not followed:
            return
        self._raise(scope, followed)
        self._count_packs(scope, 1)
        if self.schedule.vector == 1:
            self._add_terms(scope, followed, "0")
            return
        with scope.unroll(f"for (int v = 0; v < {self.schedule.vector}; ++v)") as lanes:
            self._add_terms(lanes, followed, "v")

    def _count_packs(self, scope: Scope, n_packs: int) -> None:
        if self._n_read:
            scope.line(f"{self._n_read} += {n_packs * self.schedule.vector}.0f;")

    def _raise(self, scope: Scope, followed: Sequence[OnlinePair]) -> None:
        """Raise the maxima to those of the values of a step."""
        factors, shifts = {}, {}
        for running in followed:
            shifts[running.pair] = scope.names.take("shift")
            scope.line(f"float {shifts[running.pair]};")
            names = f"{running.values}, {running.first}, {self._pivots[running.pair]}, {shifts[running.pair]}"
            helper = self.kernel.use("raise_quick_peak" if self.kernel.uses_intrinsics else "raise_peak")
            factors[running.pair] = scope.declare("factor", "float", f"{helper}({names})")
        self._move(scope, followed, factors, shifts)

    def _move(
        self, scope: Scope, followed: Sequence[OnlinePair], factors: Mapping[Pair, str], shifts: Mapping[Pair, str]
    ) -> None:
        """Make the sums relative to other maxima."""
        sums = {}
        for running in followed:
            sums[running.pair] = running.second
            scope.line(f"{running.second} *= {factors[running.pair]};")
        for follower, name in self._sums.items():
            terms = "".join(
                f" {'+' if sign > 0 else '-'} {bounded(shifts[pair], follower, pair)}" for sign, pair in follower.shifts
            )
            shift = f"({terms.removeprefix(' + ').removeprefix(' ')})" if len(follower.shifts) > 1 else terms[3:]
            if follower.base is None:
                scope.line(f"{name} += {self._n_read} * {shift};")
            else:
                scope.line(f"{name} = {factors[follower.base]} * {name} + {sums[follower.base]} * {shift};")

    def _add_terms(self, scope: Scope, followed: Sequence[OnlinePair], lane: str) -> None:
        """Add one lane of a pack."""
        targets, scalars = [], []
        for running in followed:
            scalar = self._over_packs(running.pair.second.scalar)
            text = f"{running.values}[{lane}] - {self._pivots[running.pair]}"
            scope.bind(operands_of(scalar, "exp")[0], scope.declare("distance", "float", text))
            targets.append(running.second)
            scalars.append(scalar)
        targets += self._sums.values()
        scalars += [self._over_packs(follower.entry.scalar) for follower in self._sums]
        for target, value in zip(targets, scope.values(scalars), strict=True):
            scope.line(f"{target} += {value.text};")

    def _finish_pass(self, entries: Sequence[RowReduction], accumulators: Sequence[RunningValue]) -> None:
        each = list(zip(entries, accumulators, strict=True))
        followed = [
            running for running in accumulators if isinstance(running, OnlinePair) and running.pair in self._pivots
        ]
        rest = [(entry, running) for entry, running in each if running not in followed]
        super()._finish_pass([entry for entry, _ in rest], [running for _, running in rest])
        if followed:
            self._combine_followed(followed)

    def _combine_followed(self, followed: Sequence[OnlinePair]) -> None:
        """Combine maxima over the threads of the row, then what is relative to them."""
        own = {running.pair: self.scope.declare("own_peak", "float", running.first) for running in followed}
        self._combine_all("max", [running.first for running in followed])
        moved = {pair for follower in self._followers for _, pair in follower.shifts}
        factors, shifts = {}, {}
        for running in followed:
            pair, peak = running.pair, running.first
            factors[pair] = self.scope.declare("factor", "float", f"expf({own[pair]} - {peak})")
            if pair in moved:
                shifts[pair] = self.scope.declare("shift", "float", f"{self._pivots[pair]} - {peak}")
        self._move(self.scope, followed, factors, shifts)
        self._combine_all("sum", [*(running.second for running in followed), *self._sums.values()])
        for running in followed:
            self._bind(running.pair.first, Text(running.first, ATOM))
            self._bind(running.pair.second, Text(running.second, ATOM))
        for follower, name in self._sums.items():
            self._bind(follower.entry, Text(name, ATOM))

    def _combine_all(self, kind: str, names: Sequence[str]) -> None:
        """Combine variables over the threads of the row."""
        values = [Accumulator(kind, name, "", DType.F32) for name in names]
        together = self._combine_together(values)
        for value in values:
            call = "" if value in together else self._combiner(kind, value)
            if call:
                self.scope.line(call)
