"""Choose the threads and blocks of a row reduction by its knobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kernel_lsp.generate.codegen.rows.row_schedule import (
    COLUMN_WIDTHS,
    WARP,
    RowSchedule,
    n_blocks_per_multiprocessor,
)
from kernel_lsp.generate.fusion.groups import RowGroup
from kernel_lsp.generate.fusion.row_patterns import find_pairs
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.generate.schedule.knobs import Choices
from kernel_lsp.generate.schedule.next_rows import AHEAD
from kernel_lsp.generate.schedule.row_defaults import RowDefaults
from kernel_lsp.generate.schedule.row_fit import RowFit
from kernel_lsp.generate.schedule.row_limits import (
    HELD,
    LATE,
    MAX_SERIAL_SUM,
)
from kernel_lsp.generate.schedule.row_traits import RowTraits


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

    @cached_property
    def rows(self) -> RowTraits:
        return RowTraits(self.workload, self.group)

    @cached_property
    def fit(self) -> RowFit:
        return RowFit(self.rows, self.threads)

    @cached_property
    def defaults(self) -> RowDefaults:
        return RowDefaults(self.fit)

    def choose(self, kernel: str) -> ChosenRows:
        """Read the knobs of `kernel`; return its schedule, or the default one where they are impossible."""
        default = self._in_block(self.defaults.schedule())
        schedule = self._fitted(self._in_block(self._picked(kernel, default)))
        is_valid = self._is_valid(schedule)
        chosen = schedule if is_valid else default
        return ChosenRows(replace(chosen, reads_first=self._reads_first(chosen)), is_valid)

    def _picked(self, kernel: str, default: RowSchedule) -> RowSchedule:
        """Return the schedule that the knobs request, each given those before it."""
        picked = RowSchedule(1, 1, 1, False)
        for knob in KNOBS:
            picked = self.fit.sized(picked)
            values = knob.values(self, picked)
            wanted = knob.default(default, picked, values) if knob.default else knob.value(default)
            chosen = self.choices.pick_int(f"{kernel}.{knob.name}", values, wanted, knob.description)
            picked = knob.with_value(picked, chosen)
        return picked

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
        if schedule.cached and not self.fit.is_possible(replace(schedule, staged=False)):
            schedule = replace(schedule, cached=False, items=0, held=False)
        if schedule.threads == 1 or schedule.cached:
            schedule = replace(schedule, online=False)
        is_possible = schedule.meanwhile in self.fit.next_row_values(schedule)
        return schedule if is_possible else replace(schedule, staged=False, ahead=False)

    def _is_valid(self, schedule: RowSchedule) -> bool:
        most = self.workload.n_multiprocessors * n_blocks_per_multiprocessor(schedule.threads)
        is_resident = not schedule.is_grid or schedule.blocks <= most
        return is_resident and self.fit.is_possible(schedule) and self._is_accurate(schedule)

    def _reads_first(self, schedule: RowSchedule) -> bool:
        """Return True if a thread has at most one element of the captured row."""
        is_single = schedule.vector == 1 and 0 < self.rows.n_columns <= schedule.threads
        return is_single and self.group.is_column_contiguous and schedule.blocks == 1 and not schedule.cached

    def _is_accurate(self, schedule: RowSchedule) -> bool:
        """Return True if no thread adds up so many elements that rounding errors accumulate."""
        return self.rows.n_columns <= schedule.stride * MAX_SERIAL_SUM

    def thread_values(self) -> Sequence[int]:
        return (1, 8, 16, 32, 64, 128, 256, 512, 1024) if self.group.is_column_contiguous else (1, 2, 4, 8, 16, 32)

    def row_values(self) -> Sequence[int]:
        return (1, 2, 4, 8, 32, 64, 128, 256) if self.group.is_column_contiguous else COLUMN_WIDTHS

    def eviction_values(self, schedule: RowSchedule) -> Sequence[int]:
        return (0, 1, LATE) if self.fit.may_evict_late(schedule.threads) else (0, 1)

    def online_values(self) -> Sequence[int]:
        return (0, 1) if find_pairs(self.group) else (0,)

    def batch_values(self, schedule: RowSchedule) -> Sequence[int]:
        is_online = schedule.online and not schedule.cached and schedule.blocks == 1
        return (1, 2, 4) if is_online and schedule.vector > 1 else (1,)


@dataclass(frozen=True)
class RowKnob:
    """A knob of row kernels: its values, given the knobs picked before; its value in a schedule, and a schedule with
    another one. `default` returns the default value where that depends on more than the default schedule."""

    name: str
    values: Callable[[RowChooser, RowSchedule], Sequence[int]]
    value: Callable[[RowSchedule], int]
    with_value: Callable[[RowSchedule, int], RowSchedule]
    description: str
    default: Callable[[RowSchedule, RowSchedule, Sequence[int]], int] | None = None


def _default_next_row(default: RowSchedule, picked: RowSchedule, values: Sequence[int]) -> int:
    wanted = default.meanwhile if picked.blocks == default.blocks else 1
    return max(value for value in values if value <= wanted)


KNOBS = (
    RowKnob(
        "cached",
        lambda chooser, _: chooser.fit.cache_values(),
        lambda schedule: schedule.cached + schedule.held,
        lambda schedule, value: replace(schedule, cached=value > 0, held=value == HELD),
        "keep the row in registers; 2: on chip",
    ),
    RowKnob(
        "threads",
        lambda chooser, _: chooser.thread_values(),
        lambda schedule: schedule.threads,
        lambda schedule, value: replace(schedule, threads=value),
        "threads of a block that share a row",
    ),
    RowKnob(
        "rows",
        lambda chooser, _: chooser.row_values(),
        lambda schedule: schedule.rows,
        lambda schedule, value: replace(schedule, rows=value),
        "rows per block",
    ),
    RowKnob(
        "vector",
        lambda chooser, _: chooser.rows.widths(),
        lambda schedule: schedule.vector,
        lambda schedule, value: replace(schedule, vector=value),
        "neighbouring elements per load",
    ),
    RowKnob(
        "blocks",
        lambda chooser, _: chooser.fit.block_values(),
        lambda schedule: schedule.blocks,
        lambda schedule, value: replace(schedule, blocks=value),
        "blocks that share a row",
    ),
    RowKnob(
        "streaming",
        RowChooser.eviction_values,
        lambda schedule: LATE if schedule.evicts_late else int(schedule.streaming),
        lambda schedule, value: replace(schedule, streaming=value == 1, evicts_late=value == LATE),
        "evict early what is used once; 2: rows late",
    ),
    RowKnob(
        "online",
        lambda chooser, _: chooser.online_values(),
        lambda schedule: int(schedule.online),
        lambda schedule, value: replace(schedule, online=bool(value)),
        "dependent reductions in one pass",
    ),
    RowKnob(
        "batch",
        RowChooser.batch_values,
        lambda schedule: schedule.batch,
        lambda schedule, value: replace(schedule, batch=value),
        "packs that are loaded before any is used",
        lambda default, _, values: min(default.batch, values[-1]),
    ),
    RowKnob(
        "staged",
        lambda chooser, schedule: chooser.fit.next_row_values(schedule),
        lambda schedule: schedule.meanwhile,
        lambda schedule, value: replace(schedule, staged=value == 1, ahead=value == AHEAD),
        "copy the next row to shared memory; 2: load it ahead",
        _default_next_row,
    ),
)
"""The knobs in the order in which they are picked."""
