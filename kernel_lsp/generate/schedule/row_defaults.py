"""Choose the default schedule of a row reduction by the bytes moved."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES
from kernel_lsp.generate.codegen.rows.packed_columns import loads_packs_of_rows
from kernel_lsp.generate.codegen.rows.row_schedule import (
    COLUMN_WIDTHS,
    MAX_CACHED_BYTES_PER_BLOCK,
    MAX_CLUSTER,
    WARP,
    RowSchedule,
    can_pack_rows,
    can_share,
)
from kernel_lsp.generate.fusion.groups import RowGroup
from kernel_lsp.generate.fusion.row_patterns import find_pairs, n_passes
from kernel_lsp.generate.ir.sizes import divides
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.generate.schedule.next_rows import AHEAD, goes_ahead
from kernel_lsp.generate.schedule.row_fit import RowFit
from kernel_lsp.generate.schedule.row_limits import (
    CACHED_COLUMN_BLOCK,
    COLUMN_WAVES,
    FEW_COLUMNS,
    FEW_ITEMS,
    HELD,
    L2_BYTES,
    LARGE_PACKED_BYTES,
    LATE_THREADS,
    LONG_BYTES,
    MAX_COLUMN_BLOCK,
    MAX_COLUMN_ITEMS,
    MAX_PART_BYTES,
    MAX_WARP_ROW,
    MIN_GRID_PART_BYTES,
    MIN_ONLINE_COLUMNS,
    MIN_READ_ONCE_COLUMNS,
    MIN_READ_ONCE_ROWS,
    MIN_SHARED_COLUMNS,
    ONLINE_THREADS,
    PLAIN_THREADS,
    PORTABLE_CLUSTER,
    SHARING,
    SHORT_IN_BLOCK,
    USUAL_PART_BYTES,
    lanes_of_columns,
    limits_of_packs,
    power_of_two,
)
from kernel_lsp.generate.schedule.row_traits import RowTraits


@dataclass(frozen=True)
class RowDefaults:
    """Chooses the default schedule of one row group."""

    fit: RowFit

    @property
    def rows(self) -> RowTraits:
        return self.fit.rows

    @property
    def group(self) -> RowGroup:
        return self.rows.group

    @property
    def workload(self) -> Workload:
        return self.rows.workload

    def schedule(self) -> RowSchedule:
        """Return the default schedule."""
        schedule = self._shared() or self._cluster() or self._block()
        is_online = bool(find_pairs(self.group)) and self.rows.n_columns >= MIN_ONLINE_COLUMNS and schedule.threads > 1
        schedule = replace(schedule, online=is_online and not schedule.cached)
        values = self.fit.next_row_values(schedule)
        if AHEAD in values and goes_ahead(self.group, schedule, self.rows.kept(), self.rows.n_rows):
            return replace(schedule, ahead=True, streaming=True)
        schedule = replace(schedule, staged=1 in values)
        return replace(schedule, batch=2 if self.rows.is_long_read_once() else 1)

    def _block(self) -> RowSchedule:
        """Return the best schedule with a thread, a warp or a block per row."""
        n_rows, n_columns = self.rows.n_rows, self.rows.n_columns
        if not self.group.is_column_contiguous:
            return self._columns()
        width = self.rows.width()
        if n_columns <= FEW_ITEMS:
            if self.fit.threads and n_rows <= self.fit.threads and self.group.column.extent.constant:
                return RowSchedule(1, self.fit.threads, 1, False)
            return RowSchedule(*((16, 16) if n_rows <= 64 * self.workload.n_multiprocessors else (1, 64)), 1, False)
        if n_rows == 1 and n_columns <= 512:
            is_short = n_columns <= SHORT_IN_BLOCK and self.fit.threads
            return RowSchedule(WARP if is_short else max(WARP, power_of_two(2 * n_columns - 1)), 1, 1, False)
        if n_columns <= 512:
            width = 1 if n_columns < 128 else min(width, 4)
            return self._with_cache(RowSchedule(WARP, 4, width, False))
        if n_passes(self.group) == 1 and n_columns <= MAX_WARP_ROW and n_rows >= 16 * self.workload.n_multiprocessors:
            return RowSchedule(WARP, 4, width, False)
        if not self.group.reductions:
            return RowSchedule(PLAIN_THREADS, 1, width, False)
        # A compute-bound pass is faster with few threads and many packs each: fewer threads combine.
        n_packs = 16 if self.rows.is_online_sum() else 4
        if n_columns >= MIN_READ_ONCE_COLUMNS and n_rows >= MIN_READ_ONCE_ROWS * self.workload.n_multiprocessors:
            n_packs = 32 if self.rows.is_read_once() else 16 if self.rows.is_plain_sum() else n_packs
        threads = 64
        while threads < 1024 and threads * width * n_packs < n_columns:
            threads *= 2
        with_weights = threads * 4 >= LATE_THREADS and self.rows.widest == 4
        reads_late = any(0 not in levels for _, levels in self.rows.levels(with_weights=with_weights))
        if threads < LATE_THREADS and reads_late and self.rows.is_large():
            threads *= 2
        return self._with_cache(RowSchedule(threads, 1, width, False))

    def _columns(self) -> RowSchedule:
        """Return the best schedule for rows side by side."""
        vector = self._row_pack()
        n_rows, n_columns = self.rows.n_rows // vector, self.rows.n_columns
        if self.fit.threads is not None and vector == 1 and 0 < n_columns <= FEW_COLUMNS:
            return RowSchedule(1, min(self.fit.threads, COLUMN_WIDTHS[-1]), 1, False)
        again = n_passes(self.group) > 1
        lanes = lanes_of_columns(n_rows, n_columns, vector, self.workload.n_multiprocessors, reads_again=again)
        if again and self.rows.is_large():
            is_narrow = self.rows.widest <= 2
            more, items = (max(1, lanes // 2), 2 * MAX_COLUMN_ITEMS) if is_narrow else (lanes, MAX_COLUMN_ITEMS)
            while more < WARP and n_columns > items * more:
                more *= 2
            width = self._column_width(more, CACHED_COLUMN_BLOCK)
            schedule = self._with_cache(RowSchedule(more, width, 1, False))
            if schedule.cached:
                return schedule
        return RowSchedule(lanes, self._column_width(lanes, MAX_COLUMN_BLOCK, vector), vector, False)

    def _row_pack(self) -> int:
        """Return 16 bytes' worth of neighbouring rows, where their sums fill the GPU by packs."""
        is_worth_it = divides(8, self.group.row.extent) or self.rows.is_large(LARGE_PACKED_BYTES)
        if not can_pack_rows(self.group) or not is_worth_it:
            return 1
        least, n_packs = limits_of_packs(self.rows.n_columns, self.rows.widest, MAX_PACK_BYTES)
        most = self.rows.n_rows // (n_packs * self.workload.n_multiprocessors)
        fitting = [w for w in self.rows.widths() if least <= self.rows.widest * w <= MAX_PACK_BYTES and w <= most]
        most_proven, loads = MAX_PACK_BYTES // self.rows.widest if self.rows.widest < 4 else 0, loads_packs_of_rows
        return max((w for w in fitting if loads(self.group, w, self.workload, w < most_proven)), default=1)

    def _column_width(self, lanes: int, threads: int, vector: int = 1) -> int:
        """Return the packs of rows of a block of up to `threads`, `lanes` per pack, with which blocks keep the GPU
        busy."""
        most = min(threads // lanes, self.rows.n_rows // (vector * COLUMN_WAVES * self.workload.n_multiprocessors))
        return max(width for width in COLUMN_WIDTHS if width <= max(most, COLUMN_WIDTHS[0]))

    def _shared(self) -> RowSchedule | None:
        """Return the schedule with several blocks per row, where one leaves the GPU idle or cannot keep its row."""
        n_rows, n_columns = self.rows.n_rows, self.rows.n_columns
        if not n_rows or n_passes(self.group) == 1 or n_columns < MIN_SHARED_COLUMNS or not can_share(self.group):
            return None
        filling = min(self.workload.n_multiprocessors // n_rows, n_columns // 4096)
        if filling < 2:
            return self._sharing_many()
        is_open = self.group.column.extent.constant is None
        is_worth_it = not is_open or n_columns * self.rows.kept_bytes() >= LONG_BYTES or self.rows.is_large()
        on_chip = (self._sharing_on_chip(filling, held=v == HELD) for v in self.fit.cache_values()[1:] if is_worth_it)
        return next(filter(None, on_chip), None) or self._sharing_uncached(filling)

    def _cluster(self) -> RowSchedule | None:
        """Return the schedule with the smallest cluster that keeps a row on chip, where one block cannot and several
        passes would read several tensors again. Exponentials take longer, except in f32: a KL divergence of
        4096 x 32000 took 407 us on an H200 by clusters, 471 us by blocks, its gradients 613 and 757 (of bf16 470 and
        462); a JS divergence, with a logarithm of each element, 616 and 485."""
        is_open = self.group.column.extent.constant is None
        is_short = self.rows.n_columns < MIN_SHARED_COLUMNS or self.fit.threads is not None
        if is_short or not self.rows.reads_again() or not can_share(self.group) or not self.rows.can_run(2):
            return None
        is_small = is_open and not self.rows.is_large()
        if is_small or self.rows.is_read_once() or self.rows.is_read_again_from_l2() or self._block().cached:
            return None
        threads, limits = 512, [USUAL_PART_BYTES, MAX_PART_BYTES]
        if self.rows.takes_exponentials():  # small blocks: some compute while others load
            is_slower = bool(find_pairs(self.group)) if self.group.stores else self.rows.takes("log")
            if min(access.dtype.itemsize for access in self.rows.kept()) < 4 or is_slower:
                return None
            threads, limits = 256 if self.group.stores else 128, [MAX_CACHED_BYTES_PER_BLOCK // 4]
        for most, blocks in itertools.product(limits, (2, 4, PORTABLE_CLUSTER)):
            schedule = self.fit.sized(RowSchedule(threads, 1, self.rows.width(), True, blocks))
            if self.fit.is_possible(schedule) and self.rows.kept_per_block(schedule) <= most:
                return schedule
        return None

    def _sharing_on_chip(self, filling: int, *, held: bool) -> RowSchedule | None:
        """Return the schedule with the fewest blocks that fill the GPU and keep a row in registers, or hold what later
        passes need: a layer norm's gradients over 16 MB took 30.0 us on an H200 so, 38.8 us with two reads."""
        width = self.rows.width()
        for threads, blocks in SHARING:
            if blocks > self.workload.n_multiprocessors or (blocks * 2 <= filling) or not self.rows.can_run(blocks):
                continue
            schedule = self.fit.sized(RowSchedule(threads, 1, width, True, blocks, held=held))
            # Blocks of 512 threads allow two per SM: the second loads while the first waits.
            allows_two = self.rows.kept_per_block(schedule) <= MAX_PART_BYTES
            if self.fit.is_possible(schedule) and (threads > 512 or allows_two or held):
                return schedule
        return None

    def _sharing_many(self) -> RowSchedule | None:
        """Return the schedule with the fewest blocks that keep a row on chip, for rows that fill the GPU and that the
        L2 cache does not hold until they are read again."""
        row_bytes = self.rows.n_columns * self.rows.kept_bytes()
        is_kept_anyway = row_bytes <= MAX_CACHED_BYTES_PER_BLOCK or row_bytes * self.rows.n_rows <= L2_BYTES
        if is_kept_anyway or not self.group.stores or not self.rows.is_large() or len(self.rows.kept()) > 1:
            return None
        for threads, blocks in ((512, 2), (512, 4), (512, 8), (512, 16), (1024, 32), (1024, 64)):
            schedule = self.fit.sized(RowSchedule(threads, 1, self.rows.width(), True, blocks))
            n_bytes = self.rows.kept_per_block(schedule)
            fits = n_bytes >= MIN_GRID_PART_BYTES if schedule.is_grid else n_bytes <= MAX_PART_BYTES
            if fits and self.rows.can_run(blocks) and self.fit.is_possible(schedule):
                return schedule
        return None

    def _sharing_uncached(self, filling: int) -> RowSchedule | None:
        """Return the schedule in which the active rows stay in L2 between the passes."""
        row_bytes = self.rows.n_columns * self.rows.kept_bytes()
        width, most = self.rows.width(), power_of_two(self.workload.n_multiprocessors)
        for blocks in (2, 4, PORTABLE_CLUSTER):
            fits = row_bytes * (2 * self.workload.n_multiprocessors // blocks) <= L2_BYTES
            if fits and blocks * 2 > filling and self.rows.can_run(blocks):
                return RowSchedule(1024, 1, width, False, blocks)
        for blocks in (32, 64, most):
            if row_bytes * self.fit.teams(blocks, 1024) <= L2_BYTES and blocks * 2 > filling and blocks <= most:
                return self.fit.with_teams(RowSchedule(1024, 1, width, False, blocks))
        schedule = RowSchedule(1024, 1, width, False, most)
        return self.fit.with_teams(schedule) if most > MAX_CLUSTER else None

    def _with_cache(self, schedule: RowSchedule) -> RowSchedule:
        """Return the schedule with a cache when several passes read the row and it fits the registers. Where the plan
        leaves the length open, that needs a contract, which large tensors are worth. Sums of exponentials of 16-bit
        elements are faster in one pass, and of long rows of f32."""
        if self.rows.is_long_in_16_bits():
            return replace(schedule, threads=min(schedule.threads, ONLINE_THREADS))
        is_open = self.group.column.extent.constant is None
        is_faster_online = (self.rows.is_online_sum() and self.rows.kept_bytes() < 4) or self.rows.is_long_read_once()
        is_crowded = schedule.threads == 1024 and len(self.rows.kept()) > 1  # two rows, and work, in 64 registers
        if n_passes(self.group) == 1 or (is_open and not self.rows.is_large()) or is_faster_online or is_crowded:
            return schedule
        cached = self.fit.with_items(
            replace(schedule, cached=True, evicts_late=self.fit.may_evict_late(schedule.threads))
        )
        return cached if self.fit.is_possible(cached) else schedule
