"""Fit schedules of a row reduction to its rows: registers, blocks that share a row, and lengths that are open."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernel_lsp.generate.codegen.rows.register_values import can_hold
from kernel_lsp.generate.codegen.rows.row_reads import reads_bytes
from kernel_lsp.generate.codegen.rows.row_schedule import (
    MAX_CLUSTER,
    WARP,
    RowSchedule,
    can_share,
    is_valid_row_schedule,
    n_blocks_per_multiprocessor,
)
from kernel_lsp.generate.fusion.groups import RowGroup
from kernel_lsp.generate.fusion.row_patterns import find_pairs
from kernel_lsp.generate.ir.workload import HOPPER, Workload
from kernel_lsp.generate.schedule.next_rows import next_row_values
from kernel_lsp.generate.schedule.row_limits import (
    HELD,
    MIN_SHARED_COLUMNS,
    MIN_WHOLE_ELEMENTS,
    power_of_two,
)
from kernel_lsp.generate.schedule.row_traits import RowTraits


@dataclass(frozen=True)
class RowFit:
    """The schedules that suit the rows of one group. `threads` is the size of every block of a shared launch."""

    rows: RowTraits
    threads: int | None = None

    @property
    def group(self) -> RowGroup:
        return self.rows.group

    @property
    def workload(self) -> Workload:
        return self.rows.workload

    def is_possible(self, schedule: RowSchedule) -> bool:
        in_registers = replace(schedule, cached=schedule.cached and not schedule.held)
        is_valid = is_valid_row_schedule(self.group, in_registers, self.rows.kept_bytes())
        return is_valid and (not schedule.held or can_hold(self.group, schedule))

    def cache_values(self) -> tuple[int, ...]:
        is_held = self.rows.reads_again() and len(self.block_values()) > 1 and not find_pairs(self.group)
        return (0, 1, HELD) if is_held and self.group.line is None else (0, 1) if self.rows.n_columns else (0,)

    def block_values(self) -> tuple[int, ...]:
        if self.threads is not None or not can_share(self.group) or self.rows.n_columns < MIN_SHARED_COLUMNS // 4:
            return (1,)
        most = self.workload.n_multiprocessors
        in_grid = {32, 64, power_of_two(most), most, 2 * power_of_two(most)}
        clusters = (2, 4, 8, MAX_CLUSTER) if self.workload.capability >= HOPPER else ()
        return (1, *clusters, *sorted(n for n in in_grid if n > MAX_CLUSTER))

    def next_row_values(self, schedule: RowSchedule) -> tuple[int, ...]:
        is_open = self.group.column.extent.constant is None and self.for_whole_rows(schedule) is None
        return next_row_values(self.group, schedule, self.rows.kept(), self.rows.n_columns, is_open=is_open)

    def for_whole_rows(self, schedule: RowSchedule) -> RowSchedule | None:
        """Return the schedule of a variant for rows of the captured length, where that is open and all threads keep as
        many packs of it; None for small tensors, whose kernels may share a launch, and where it was slower."""
        is_narrow = schedule.evicts_late and self.rows.widest == 2
        suits = reads_bytes(self.group) if self.group.is_column_contiguous else self.rows.widest <= 4
        is_faster = suits or is_narrow or schedule.blocks > 1
        is_whole = is_faster and schedule.items and schedule.capacity == self.rows.n_columns and not self.group.line
        is_large = self.rows.n_rows * self.rows.n_columns >= MIN_WHOLE_ELEMENTS
        return replace(schedule, is_whole=True) if is_whole and is_large else None

    def may_evict_late(self, threads: int) -> bool:
        """Return True if late eviction of large rows was faster: of f32, and of 16 bits with one tensor of weights."""
        is_alike = self.group.is_column_contiguous and threads > WARP and self.rows.is_large()
        has_one_weight = len(self.rows.levels(with_weights=True)) == 2 and len(self.rows.kept()) == 1
        return is_alike and (self.rows.widest == 4 or (self.rows.widest == 2 and has_one_weight))

    def sized(self, schedule: RowSchedule) -> RowSchedule:
        """Return the schedule with as many concurrent rows, and packs per thread, as its blocks need."""
        return self.with_items(self.with_teams(schedule))

    def with_items(self, schedule: RowSchedule) -> RowSchedule:
        """Return the schedule with room for rows as long as the captured one, where their length is symbolic."""
        if not schedule.cached or self.group.column.extent.constant is not None:
            return schedule
        return replace(schedule, items=-(-self.rows.n_columns // (schedule.vector * schedule.stride)))

    def with_teams(self, schedule: RowSchedule) -> RowSchedule:
        """Return the schedule with as many concurrent rows as the GPU holds."""
        teams, n_blocks = self.teams(schedule.blocks, schedule.threads), 1
        if schedule.blocks > 1:
            n_blocks = n_blocks_per_multiprocessor(schedule.threads)
        if schedule.is_grid:
            n_blocks = -(-teams * schedule.blocks // self.workload.n_multiprocessors)
        return replace(schedule, teams=teams, resident=n_blocks)

    def teams(self, blocks: int, threads: int) -> int:
        """Return the number of concurrent rows of a cooperative grid, with 1024 threads on each SM."""
        if blocks <= MAX_CLUSTER:
            return 1
        n_resident = self.workload.n_multiprocessors * n_blocks_per_multiprocessor(threads)
        return max(1, min(n_resident // blocks, self.rows.n_rows))
