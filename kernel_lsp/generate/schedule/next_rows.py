"""Choose what the blocks of a cooperative grid do about their next row while they compute this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES
from kernel_lsp.generate.codegen.rows.row_reads import read_by_all_rows
from kernel_lsp.generate.codegen.rows.row_schedule import MAX_STAGED_BYTES, RowSchedule, n_blocks_per_multiprocessor
from kernel_lsp.generate.codegen.rows.rows_ahead import ends_in_results
from kernel_lsp.generate.fusion.groups import RowGroup
from kernel_lsp.generate.fusion.row_patterns import find_pairs
from kernel_lsp.generate.ir.scalar import Access
from kernel_lsp.generate.schedule.row_limits import PORTABLE_CLUSTER

AHEAD = 2
"""The knob's value for a next row that is loaded into registers as this one is stored."""

MIN_ROWS_AHEAD = 16
"""Minimum rows for the default: fewer were not timed, and the text by hand was timed for 16."""
MAX_OTHER_THREADS = 256
"""Maximum threads of a block that reads rows of other lengths: short rows would leave more of them idle."""


def next_row_values(
    group: RowGroup, schedule: RowSchedule, reused: Sequence[Access], n_columns: int, *, is_open: bool
) -> tuple[int, ...]:
    """Return the values of the knob `staged`. `reused` are the reads of a row that several passes make. Rows of a
    length that is open (`is_open`) are loaded ahead in a variant for the captured length, `n_columns`."""
    is_cached = schedule.cached and not schedule.held
    if not schedule.is_grid or not is_cached or not reused or group.row.extent.constant == 1 or schedule.vector == 1:
        return (0,)
    pack_bytes = [access.dtype.itemsize * schedule.vector for access in reused]
    n_bytes = -(-n_columns // (schedule.vector * schedule.stride)) * schedule.threads * sum(pack_bytes)
    fits = n_bytes * n_blocks_per_multiprocessor(schedule.threads) <= MAX_STAGED_BYTES
    can_stage = fits and all(size in (4, 8, MAX_PACK_BYTES) for size in pack_bytes)
    is_whole = n_columns % (schedule.vector * schedule.stride) == 0 and not group.line and not is_open
    can_go_ahead = is_whole and ends_in_results(group)
    return (0, *((1,) if can_stage else ()), *((AHEAD,) if can_go_ahead else ()))


def goes_ahead(group: RowGroup, schedule: RowSchedule, reused: Sequence[Access], n_rows: int) -> bool:
    """Return True if loading ahead is the default: where blocks take several rows of one tensor, and all rows read
    weights of their length. Two tensors of rows, as gradients read, were not measured."""
    has_weights = any(tensor.n_elements == group.column.extent for tensor in read_by_all_rows(group))
    has_many = n_rows >= max(MIN_ROWS_AHEAD, schedule.teams + 1)
    return has_many and len(reused) == 1 and has_weights


def for_other_lengths(group: RowGroup, schedule: RowSchedule, *, has_clusters: bool) -> RowSchedule:
    """Return the schedule of the variant for rows of other lengths than the captured one: where blocks load rows ahead,
    one that reads rows of any length twice. Clusters take any number of rows at once, a grid one after the other."""
    if not schedule.ahead:
        return schedule
    schedule = replace(schedule, ahead=False, cached=False, items=0, online=bool(find_pairs(group)))
    if not has_clusters:
        return schedule
    threads = min(schedule.threads, MAX_OTHER_THREADS)
    resident = n_blocks_per_multiprocessor(threads)
    return replace(schedule, threads=threads, blocks=PORTABLE_CLUSTER, teams=1, resident=resident)
