"""Choose the threads and blocks of a row reduction: knobs, and defaults by the bytes moved."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES
from kernel_lsp.generate.codegen.rows.packed_columns import loads_packs_of_rows
from kernel_lsp.generate.codegen.rows.register_values import can_hold
from kernel_lsp.generate.codegen.rows.row_cache import may_keep
from kernel_lsp.generate.codegen.rows.row_reads import reads_bytes
from kernel_lsp.generate.codegen.rows.row_schedule import (
    COLUMN_WIDTHS,
    MAX_CACHED_BYTES_PER_BLOCK,
    MAX_CLUSTER,
    WARP,
    RowSchedule,
    can_pack_rows,
    can_share,
    is_valid_row_schedule,
    n_blocks_per_multiprocessor,
)
from kernel_lsp.generate.fusion.groups import RowGroup
from kernel_lsp.generate.fusion.row_patterns import find_pairs, n_passes
from kernel_lsp.generate.ir.scalar import Access, Operation, accesses, nodes
from kernel_lsp.generate.ir.sizes import divides
from kernel_lsp.generate.ir.workload import HOPPER, Workload
from kernel_lsp.generate.schedule.knobs import Choices
from kernel_lsp.generate.schedule.next_rows import AHEAD, goes_ahead, next_row_values
from kernel_lsp.generate.schedule.row_limits import (
    CACHED_COLUMN_BLOCK,
    COLUMN_WAVES,
    FEW_COLUMNS,
    FEW_ITEMS,
    HELD,
    L2_BYTES,
    LARGE_PACKED_BYTES,
    LARGE_ROW_BYTES,
    LATE,
    LATE_THREADS,
    LONG_BYTES,
    MAX_COLUMN_BLOCK,
    MAX_COLUMN_ITEMS,
    MAX_KEPT_EXPONENTIALS,
    MAX_PART_BYTES,
    MAX_SERIAL_SUM,
    MAX_WARP_ROW,
    MIN_GRID_PART_BYTES,
    MIN_ONLINE_COLUMNS,
    MIN_READ_ONCE_COLUMNS,
    MIN_READ_ONCE_ROWS,
    MIN_SHARED_COLUMNS,
    MIN_WHOLE_ELEMENTS,
    NARROW_L2_BYTES,
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


@dataclass(frozen=True)
class ChosenRows:
    """The schedule to render. `is_valid` is True if it is exactly what the knobs requested."""

    schedule: RowSchedule
    is_valid: bool


@dataclass(frozen=True)
class RowChooser:
    """Chooses the schedule of one row group. `threads` is the size of every block where groups share a launch."""

    choices: Choices
    workload: Workload
    group: RowGroup
    threads: int | None = None

    def choose(self, kernel: str) -> ChosenRows:
        """Read the knobs of `kernel`; return its schedule, or the default one where they are impossible."""
        default = self._in_block(self._default())
        schedule = self._fitted(self._in_block(self._picked(kernel, default)))
        is_valid = self._is_valid(schedule)
        chosen = schedule if is_valid else default
        return ChosenRows(replace(chosen, reads_first=self._reads_first(chosen)), is_valid)

    def _picked(self, kernel: str, default: RowSchedule) -> RowSchedule:
        is_contiguous = self.group.is_column_contiguous
        threads_values = (1, 8, 16, 32, 64, 128, 256, 512, 1024) if is_contiguous else (1, 2, 4, 8, 16, 32)
        rows_values = (1, 2, 4, 8, 32, 64, 128, 256) if is_contiguous else COLUMN_WIDTHS

        def pick(what: str, values: Sequence[int], default: int, description: str) -> int:
            return self.choices.pick_int(f"{kernel}.{what}", values, default, description)

        how = pick("cached", self._cache_values(), default.n_kept, "keep the row in registers; 2: on chip")
        picked = RowSchedule(
            pick("threads", threads_values, default.threads, "threads of a block that share a row"),
            pick("rows", rows_values, default.rows, "rows per block"),
            pick("vector", self.widths(), default.vector, "neighbouring elements per load"),
            how > 0,
            pick("blocks", self._block_values(), default.blocks, "blocks that share a row"),
            held=how == HELD,
        )
        evictions = (0, 1, LATE) if self._may_evict_late(picked.threads) else (0, 1)
        eviction = pick("streaming", evictions, default.eviction, "evict early what is used once; 2: rows late")
        online = bool(pick("online", self._online_values(), int(default.online), "dependent reductions in one pass"))
        picked = replace(picked, streaming=eviction == 1, evicts_late=eviction == LATE, online=online)
        batches = self._batch_values(picked)
        batch = pick("batch", batches, min(default.batch, batches[-1]), "packs that are loaded before any is used")
        picked = self._with_items(self._with_teams(replace(picked, batch=batch)))
        values = self._next_row_values(picked)
        wanted = default.meanwhile if picked.blocks == default.blocks else 1
        wanted = max(value for value in values if value <= wanted)
        staged = pick("staged", values, wanted, "copy the next row to shared memory; 2: load it ahead")
        return replace(picked, staged=staged == 1, ahead=staged == AHEAD)

    def _in_block(self, schedule: RowSchedule) -> RowSchedule:
        """Return the schedule with the rows, or threads per row, that make a block of a shared launch."""
        if self.threads is None:
            return schedule
        schedule = replace(schedule, blocks=1, teams=1, resident=1, staged=False, ahead=False)
        if not self.group.is_column_contiguous:
            return replace(schedule, threads=self.threads // schedule.rows)
        lanes = schedule.threads if schedule.threads <= WARP else self.threads
        return self._fitted(replace(schedule, threads=lanes, rows=self.threads // lanes))

    def _fitted(self, schedule: RowSchedule) -> RowSchedule:
        """Return the schedule without meaningless choices, such as a cache or a stage that is too small."""
        if self.group.is_column_contiguous and schedule.threads > WARP:
            schedule = replace(schedule, rows=1)
        if schedule.cached and not self._is_possible(replace(schedule, staged=False)):
            schedule = replace(schedule, cached=False, items=0, held=False)
        if schedule.threads == 1 or schedule.cached:
            schedule = replace(schedule, online=False)
        is_possible = schedule.meanwhile in self._next_row_values(schedule)
        return schedule if is_possible else replace(schedule, staged=False, ahead=False)

    def _is_valid(self, schedule: RowSchedule) -> bool:
        most = self.workload.n_multiprocessors * n_blocks_per_multiprocessor(schedule.threads)
        is_resident = not schedule.is_grid or schedule.blocks <= most
        return is_resident and self._is_possible(schedule) and self._is_accurate(schedule)

    def _reads_first(self, schedule: RowSchedule) -> bool:
        """Return True if a thread has at most one element of the captured row."""
        is_single = schedule.vector == 1 and 0 < self.n_columns <= schedule.threads
        return is_single and self.group.is_column_contiguous and schedule.blocks == 1 and not schedule.cached

    def _is_possible(self, schedule: RowSchedule) -> bool:
        in_registers = replace(schedule, cached=schedule.cached and not schedule.held)
        is_valid = is_valid_row_schedule(self.group, in_registers, self._kept_bytes())
        return is_valid and (not schedule.held or can_hold(self.group, schedule))

    def _is_accurate(self, schedule: RowSchedule) -> bool:
        """Return True if no thread adds up so many elements that rounding errors accumulate."""
        return self.n_columns <= schedule.stride * MAX_SERIAL_SUM

    def _cache_values(self) -> tuple[int, ...]:
        is_held = self._reads_again() and len(self._block_values()) > 1 and not find_pairs(self.group)
        return (0, 1, HELD) if is_held and self.group.line is None else (0, 1) if self.n_columns else (0,)

    def _online_values(self) -> tuple[int, ...]:
        return (0, 1) if find_pairs(self.group) else (0,)

    def _batch_values(self, schedule: RowSchedule) -> tuple[int, ...]:
        is_online = schedule.online and not schedule.cached and schedule.blocks == 1
        return (1, 2, 4) if is_online and schedule.vector > 1 else (1,)

    def _block_values(self) -> tuple[int, ...]:
        if self.threads is not None or not can_share(self.group) or self.n_columns < MIN_SHARED_COLUMNS // 4:
            return (1,)
        most = self.workload.n_multiprocessors
        in_grid = {32, 64, power_of_two(most), most, 2 * power_of_two(most)}
        clusters = (2, 4, 8, MAX_CLUSTER) if self.workload.capability >= HOPPER else ()
        return (1, *clusters, *sorted(n for n in in_grid if n > MAX_CLUSTER))

    @property
    def widest(self) -> int:
        """Return the bytes of the widest element of a row."""
        return max((access.dtype.itemsize for access in self._varying()), default=4)

    def widths(self) -> list[int]:
        """Return the numbers of neighbouring columns per load."""
        size = self.n_columns
        if not self.group.is_column_contiguous:
            size = self._n_rows if can_pack_rows(self.group) else 1
        return [1, *(width for width in (2, 4, 8) if size and size % width == 0 and self._fits_a_pack(width))]

    def _fits_a_pack(self, width: int) -> bool:
        return any(access.dtype.itemsize * width <= MAX_PACK_BYTES for access in self._accesses())

    def _next_row_values(self, schedule: RowSchedule) -> tuple[int, ...]:
        is_open = self.group.column.extent.constant is None and self.for_whole_rows(schedule) is None
        return next_row_values(self.group, schedule, self._kept(), self.n_columns, is_open=is_open)

    def _default(self) -> RowSchedule:
        schedule = self._default_shared() or self._default_cluster() or self._default_block()
        is_online = bool(find_pairs(self.group)) and self.n_columns >= MIN_ONLINE_COLUMNS and schedule.threads > 1
        schedule = replace(schedule, online=is_online and not schedule.cached)
        values = self._next_row_values(schedule)
        if AHEAD in values and goes_ahead(self.group, schedule, self._kept(), self._n_rows):
            return replace(schedule, ahead=True, streaming=True)
        schedule = replace(schedule, staged=1 in values)
        return replace(schedule, batch=2 if self._is_long_read_once() else 1)

    def _default_block(self) -> RowSchedule:
        """Return the best schedule with a thread, a warp or a block per row."""
        n_rows, n_columns = self._n_rows, self.n_columns
        if not self.group.is_column_contiguous:
            return self._default_columns()
        width = self._default_width()
        if n_columns <= FEW_ITEMS:
            if self.threads and n_rows <= self.threads and self.group.column.extent.constant:
                return RowSchedule(1, self.threads, 1, False)
            return RowSchedule(*((16, 16) if n_rows <= 64 * self.workload.n_multiprocessors else (1, 64)), 1, False)
        if n_rows == 1 and n_columns <= 512:
            is_short = n_columns <= SHORT_IN_BLOCK and self.threads
            return RowSchedule(WARP if is_short else max(WARP, power_of_two(2 * n_columns - 1)), 1, 1, False)
        if n_columns <= 512:
            width = 1 if n_columns < 128 else min(width, 4)
            return self._with_cache(RowSchedule(WARP, 4, width, False))
        if n_passes(self.group) == 1 and n_columns <= MAX_WARP_ROW and n_rows >= 16 * self.workload.n_multiprocessors:
            return RowSchedule(WARP, 4, width, False)
        if not self.group.reductions:
            return RowSchedule(PLAIN_THREADS, 1, width, False)
        # A compute-bound pass is faster with few threads and many packs each: fewer threads combine.
        n_packs = 16 if self._is_online_sum() else 4
        if n_columns >= MIN_READ_ONCE_COLUMNS and n_rows >= MIN_READ_ONCE_ROWS * self.workload.n_multiprocessors:
            n_packs = 32 if self._is_read_once() else 16 if self._is_plain_sum() else n_packs
        threads = 64
        while threads < 1024 and threads * width * n_packs < n_columns:
            threads *= 2
        with_weights = threads * 4 >= LATE_THREADS and self.widest == 4
        reads_late = any(0 not in levels for _, levels in self._levels(with_weights=with_weights))
        if threads < LATE_THREADS and reads_late and self._is_large():
            threads *= 2
        return self._with_cache(RowSchedule(threads, 1, width, False))

    def _default_columns(self) -> RowSchedule:
        """Return the best schedule for rows side by side."""
        vector = self._default_row_pack()
        n_rows, n_columns = self._n_rows // vector, self.n_columns
        if self.threads is not None and vector == 1 and 0 < n_columns <= FEW_COLUMNS:
            return RowSchedule(1, min(self.threads, COLUMN_WIDTHS[-1]), 1, False)
        again = n_passes(self.group) > 1
        lanes = lanes_of_columns(n_rows, n_columns, vector, self.workload.n_multiprocessors, reads_again=again)
        if again and self._is_large():
            is_narrow = self.widest <= 2
            more, items = (max(1, lanes // 2), 2 * MAX_COLUMN_ITEMS) if is_narrow else (lanes, MAX_COLUMN_ITEMS)
            while more < WARP and n_columns > items * more:
                more *= 2
            width = self._column_width(more, CACHED_COLUMN_BLOCK)
            schedule = self._with_cache(RowSchedule(more, width, 1, False))
            if schedule.cached:
                return schedule
        return RowSchedule(lanes, self._column_width(lanes, MAX_COLUMN_BLOCK, vector), vector, False)

    def _default_row_pack(self) -> int:
        """Return 16 bytes' worth of neighbouring rows, where their sums fill the GPU by packs."""
        is_worth_it = divides(8, self.group.row.extent) or self._is_large(LARGE_PACKED_BYTES)
        if not can_pack_rows(self.group) or not is_worth_it:
            return 1
        least, n_packs = limits_of_packs(self.n_columns, self.widest, MAX_PACK_BYTES)
        most = self._n_rows // (n_packs * self.workload.n_multiprocessors)
        fitting = [w for w in self.widths() if least <= self.widest * w <= MAX_PACK_BYTES and w <= most]
        most_proven, loads = MAX_PACK_BYTES // self.widest if self.widest < 4 else 0, loads_packs_of_rows
        return max((w for w in fitting if loads(self.group, w, self.workload, w < most_proven)), default=1)

    def _column_width(self, lanes: int, threads: int, vector: int = 1) -> int:
        """Return the packs of rows of a block of up to `threads`, `lanes` per pack, with which blocks keep the GPU
        busy."""
        most = min(threads // lanes, self._n_rows // (vector * COLUMN_WAVES * self.workload.n_multiprocessors))
        return max(width for width in COLUMN_WIDTHS if width <= max(most, COLUMN_WIDTHS[0]))

    def _default_shared(self) -> RowSchedule | None:
        """Return the schedule with several blocks per row, where one leaves the GPU idle or cannot keep its row."""
        n_rows, n_columns = self._n_rows, self.n_columns
        if not n_rows or n_passes(self.group) == 1 or n_columns < MIN_SHARED_COLUMNS or not can_share(self.group):
            return None
        filling = min(self.workload.n_multiprocessors // n_rows, n_columns // 4096)
        if filling < 2:
            return self._sharing_many()
        is_open = self.group.column.extent.constant is None
        is_worth_it = not is_open or n_columns * self._kept_bytes() >= LONG_BYTES or self._is_large()
        on_chip = (self._sharing_on_chip(filling, held=v == HELD) for v in self._cache_values()[1:] if is_worth_it)
        return next(filter(None, on_chip), None) or self._sharing_uncached(filling)

    def _default_cluster(self) -> RowSchedule | None:
        """Return the schedule with the smallest cluster that keeps a row on chip, where one block cannot and several
        passes would read several tensors again. Exponentials take longer, except in f32: a KL divergence of
        4096 x 32000 took 407 us on an H200 by clusters, 471 us by blocks, its gradients 613 and 757 (of bf16 470 and
        462); a JS divergence, with a logarithm of each element, 616 and 485."""
        is_open = self.group.column.extent.constant is None
        is_short = self.n_columns < MIN_SHARED_COLUMNS or self.threads is not None
        if is_short or not self._reads_again() or not can_share(self.group) or not self._can_run(2):
            return None
        is_small = is_open and not self._is_large()
        if is_small or self._is_read_once() or self._is_read_again_from_l2() or self._default_block().cached:
            return None
        threads, limits = 512, [USUAL_PART_BYTES, MAX_PART_BYTES]
        if self.takes_exponentials():  # small blocks: some compute while others load
            is_slower = bool(find_pairs(self.group)) if self.group.stores else self._takes("log")
            if min(access.dtype.itemsize for access in self._kept()) < 4 or is_slower:
                return None
            threads, limits = 256 if self.group.stores else 128, [MAX_CACHED_BYTES_PER_BLOCK // 4]
        for most, blocks in itertools.product(limits, (2, 4, PORTABLE_CLUSTER)):
            schedule = self._with_items(self._with_teams(RowSchedule(threads, 1, self._default_width(), True, blocks)))
            if self._is_possible(schedule) and self._kept_per_block(schedule) <= most:
                return schedule
        return None

    def _is_read_again_from_l2(self) -> bool:
        """Return True for active rows of 16 bits that stay in L2, which their blocks read again in less time."""
        row_bytes = self.n_columns * self._kept_bytes()
        n_bytes = row_bytes * min(self._n_rows, self.workload.n_multiprocessors)
        return n_bytes <= NARROW_L2_BYTES and all(access.dtype.itemsize == 2 for access in self._kept())

    def _sharing_on_chip(self, filling: int, *, held: bool) -> RowSchedule | None:
        """Return the schedule with the fewest blocks that fill the GPU and keep a row in registers, or hold what later
        passes need: a layer norm's gradients over 16 MB took 30.0 us on an H200 so, 38.8 us with two reads."""
        width = self._default_width()
        for threads, blocks in SHARING:
            if blocks > self.workload.n_multiprocessors or (blocks * 2 <= filling) or not self._can_run(blocks):
                continue
            schedule = self._with_items(self._with_teams(RowSchedule(threads, 1, width, True, blocks, held=held)))
            # Blocks of 512 threads allow two per SM: the second loads while the first waits.
            allows_two = self._kept_per_block(schedule) <= MAX_PART_BYTES
            if self._is_possible(schedule) and (threads > 512 or allows_two or held):
                return schedule
        return None

    def _sharing_many(self) -> RowSchedule | None:
        """Return the schedule with the fewest blocks that keep a row on chip, for rows that fill the GPU and that the
        L2 cache does not hold until they are read again."""
        row_bytes = self.n_columns * self._kept_bytes()
        is_kept_anyway = row_bytes <= MAX_CACHED_BYTES_PER_BLOCK or row_bytes * self._n_rows <= L2_BYTES
        if is_kept_anyway or not self.group.stores or not self._is_large() or len(self._kept()) > 1:
            return None
        for threads, blocks in ((512, 2), (512, 4), (512, 8), (512, 16), (1024, 32), (1024, 64)):
            schedule = self._with_items(self._with_teams(RowSchedule(threads, 1, self._default_width(), True, blocks)))
            n_bytes = self._kept_per_block(schedule)
            fits = n_bytes >= MIN_GRID_PART_BYTES if schedule.is_grid else n_bytes <= MAX_PART_BYTES
            if fits and self._can_run(blocks) and self._is_possible(schedule):
                return schedule
        return None

    def _sharing_uncached(self, filling: int) -> RowSchedule | None:
        """Return the schedule in which the active rows stay in L2 between the passes."""
        row_bytes = self.n_columns * self._kept_bytes()
        width, most = self._default_width(), power_of_two(self.workload.n_multiprocessors)
        for blocks in (2, 4, PORTABLE_CLUSTER):
            fits = row_bytes * (2 * self.workload.n_multiprocessors // blocks) <= L2_BYTES
            if fits and blocks * 2 > filling and self._can_run(blocks):
                return RowSchedule(1024, 1, width, False, blocks)
        for blocks in (32, 64, most):
            if row_bytes * self._teams(blocks, 1024) <= L2_BYTES and blocks * 2 > filling and blocks <= most:
                return self._with_teams(RowSchedule(1024, 1, width, False, blocks))
        schedule = RowSchedule(1024, 1, width, False, most)
        return self._with_teams(schedule) if most > MAX_CLUSTER else None

    def _can_run(self, blocks: int) -> bool:
        """Return True unless blocks need a cluster and the GPU has none."""
        return blocks > MAX_CLUSTER or self.workload.capability >= HOPPER

    def for_whole_rows(self, schedule: RowSchedule) -> RowSchedule | None:
        """Return the schedule of a variant for rows of the captured length, where that is open and all threads keep as
        many packs of it; None for small tensors, whose kernels may share a launch, and where it was slower."""
        is_narrow = schedule.evicts_late and self.widest == 2
        suits = reads_bytes(self.group) if self.group.is_column_contiguous else self.widest <= 4
        is_faster = suits or is_narrow or schedule.blocks > 1
        is_whole = is_faster and schedule.items and schedule.capacity == self.n_columns and not self.group.line
        is_large = self._n_rows * self.n_columns >= MIN_WHOLE_ELEMENTS
        return replace(schedule, is_whole=True) if is_whole and is_large else None

    def _may_evict_late(self, threads: int) -> bool:
        """Return True if late eviction of large rows was faster: of f32, and of 16 bits with one tensor of weights."""
        is_alike = self.group.is_column_contiguous and threads > WARP and self._is_large()
        has_one_weight = len(self._levels(with_weights=True)) == 2 and len(self._kept()) == 1
        return is_alike and (self.widest == 4 or (self.widest == 2 and has_one_weight))

    def _with_items(self, schedule: RowSchedule) -> RowSchedule:
        """Return the schedule with room for rows as long as the captured one, where their length is symbolic."""
        if not schedule.cached or self.group.column.extent.constant is not None:
            return schedule
        return replace(schedule, items=-(-self.n_columns // (schedule.vector * schedule.stride)))

    def _with_teams(self, schedule: RowSchedule) -> RowSchedule:
        """Return the schedule with as many concurrent rows as the GPU holds."""
        teams, n_blocks = self._teams(schedule.blocks, schedule.threads), 1
        if schedule.blocks > 1:
            n_blocks = n_blocks_per_multiprocessor(schedule.threads)
        if schedule.is_grid:
            n_blocks = -(-teams * schedule.blocks // self.workload.n_multiprocessors)
        return replace(schedule, teams=teams, resident=n_blocks)

    def _teams(self, blocks: int, threads: int) -> int:
        """Return the number of concurrent rows of a cooperative grid, with 1024 threads on each SM."""
        if blocks <= MAX_CLUSTER:
            return 1
        n_resident = self.workload.n_multiprocessors * n_blocks_per_multiprocessor(threads)
        return max(1, min(n_resident // blocks, self._n_rows))

    def _with_cache(self, schedule: RowSchedule) -> RowSchedule:
        """Return the schedule with a cache when several passes read the row and it fits the registers. Where the plan
        leaves the length open, that needs a contract, which large tensors are worth. Sums of exponentials of 16-bit
        elements are faster in one pass, and of long rows of f32."""
        if self._is_long_in_16_bits():
            return replace(schedule, threads=min(schedule.threads, ONLINE_THREADS))
        is_open = self.group.column.extent.constant is None
        is_faster_online = (self._is_online_sum() and self._kept_bytes() < 4) or self._is_long_read_once()
        is_crowded = schedule.threads == 1024 and len(self._kept()) > 1  # two rows, and work, in 64 registers
        if n_passes(self.group) == 1 or (is_open and not self._is_large()) or is_faster_online or is_crowded:
            return schedule
        cached = self._with_items(replace(schedule, cached=True, evicts_late=self._may_evict_late(schedule.threads)))
        return cached if self._is_possible(cached) else schedule

    def _default_width(self) -> int:
        """Return 16 bytes' worth of the widest element of a row, where no contract is needed or the row tensors are
        large."""
        in_a_load = (width for width in self.widths() if self.widest * width <= MAX_PACK_BYTES)
        return max((w for w in in_a_load if divides(w, self.group.column.extent) or self._is_large()), default=1)

    @property
    def _n_rows(self) -> int:
        return self.workload.size(self.group.row.extent)

    @property
    def n_columns(self) -> int:
        """Return the length of the captured row."""
        return self.workload.size(self.group.column.extent)

    def _is_large(self, n_bytes: int = LARGE_ROW_BYTES) -> bool:
        """Return True if a tensor has so many bytes, or would have in 32 bits: loads of 16 bits cost as much."""
        tensors = [access.tensor for access in self._varying() if self.group.row in access.variables]
        sizes = (self.workload.size(tensor.n_elements) * max(tensor.dtype.itemsize, 4) for tensor in tensors)
        return max(sizes, default=0) >= n_bytes

    def _is_online_sum(self) -> bool:
        """Return True if one pass over memory reads the row and no result has its length."""
        return bool(find_pairs(self.group)) and not self.group.stores

    def _is_plain_sum(self) -> bool:
        """Return True if one pass finds sums alone, without pairs."""
        return not self.group.stores and n_passes(self.group) == 1

    def _is_read_once(self) -> bool:
        """Return True if one pass over memory finds everything, where passes over registers would be several."""
        return self._is_online_sum() and n_passes(self.group, online=True) == 1

    def _is_long_read_once(self) -> bool:
        return self.n_columns >= MIN_READ_ONCE_COLUMNS and self._is_read_once()

    def takes_exponentials(self) -> bool:
        """Return True if the row's sums need an exponential of each element; a maximum may have been kept."""
        return self._takes("exp")

    def _takes(self, name: str) -> bool:
        """Return True if the row's sums need this operation on each element."""
        found = nodes(*(reduction.scalar for reduction in self.group.reductions))
        column = self.group.column
        return any(isinstance(node, Operation) and node.name == name and column in node.variables for node in found)

    def _is_long_in_16_bits(self) -> bool:
        """Return True if a thread would keep many exponentials of tensors of 16 bits, which leaves too few registers
        for a second block beside its own."""
        is_narrow = self.takes_exponentials() and all(access.dtype.itemsize == 2 for access in self._kept())
        return is_narrow and bool(self.group.stores) and self.n_columns > MAX_KEPT_EXPONENTIALS

    def _accesses(self) -> list[Access]:
        scalars = [entry.scalar for entry in self.group.reductions] + [store.scalar for _, store in self.group.stores]
        return list(accesses(*scalars))

    def _varying(self) -> list[Access]:
        return [access for access in self._accesses() if self.group.column in access.variables]

    def _kept(self) -> list[Access]:
        """Return the reads of the row itself that several passes make, each tensor once."""
        return [access for access, levels in self._levels() if len(levels) > 1]

    def _reads_again(self) -> bool:
        """Return True if several passes read several tensors."""
        return n_passes(self.group) > 1 and len(self._kept()) > 1

    def reads_of_row(self) -> list[Access]:
        """Return the reads of the row itself, each tensor once."""
        return [access for access, _ in self._levels()]

    def _levels(self, *, with_weights: bool = False) -> list[tuple[Access, set[int]]]:
        """Return the reads of the row itself, or also those that all rows make, with the passes that make them."""
        group = self.group
        levels: dict[object, set[int]] = {}
        found: dict[object, Access] = {}
        entries = [(entry.level, entry.scalar) for entry in group.reductions]
        entries += [(level, store.scalar) for level, store in group.stores]
        entries += [(entry.level, entry.scalar) for entry in group.column_sums]
        for level, scalar in entries:
            for access in accesses(scalar):
                is_row = with_weights or group.row in access.variables or group.row.extent.constant == 1
                if group.column in access.variables and is_row and may_keep(access, group):
                    levels.setdefault(access.digest, set()).add(level)
                    found[access.digest] = access
        return [(access, levels[digest]) for digest, access in found.items()]

    def _kept_bytes(self) -> int:
        """Return the bytes per column that a cached schedule keeps."""
        return sum(access.dtype.itemsize for access in self._kept()) or 4

    def _kept_per_block(self, schedule: RowSchedule) -> int:
        return -(-self.n_columns // schedule.blocks) * self._kept_bytes()
