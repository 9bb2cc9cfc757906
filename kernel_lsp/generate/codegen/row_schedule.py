"""How threads share the rows of a reduction."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.generate.fusion.groups import RowGroup

WARP = 32
COLUMN_WIDTH = 32
"""Rows per block where neighbouring threads take different rows: one warp wide, for coalescing."""
MAX_CACHED_PACKS = 8
"""Packs of one row that a thread keeps in registers: 32 floats at most, half of what 256 threads can have each."""


@dataclass(frozen=True)
class RowSchedule:
    """`threads` share a row; `rows` rows per block; `vector` neighbouring elements move together; `cached` keeps the
    row in registers between passes."""

    threads: int
    rows: int
    vector: int
    cached: bool


def is_valid_row_schedule(group: RowGroup, schedule: RowSchedule) -> bool:
    """Whether the template can do it: what fits a block, and what the layout allows."""
    if schedule.threads * schedule.rows > 1024 or (group.wholes and schedule.threads * schedule.rows % WARP):
        return False
    if not group.is_column_contiguous:
        return schedule.rows == COLUMN_WIDTH and schedule.vector == 1 and not schedule.cached and schedule.threads <= 32
    if schedule.threads > WARP and (schedule.rows != 1 or schedule.threads % WARP):
        return False
    n_columns = group.column.extent.constant
    if schedule.vector > 1 and n_columns is not None and n_columns % schedule.vector:
        return False
    if schedule.cached:
        return n_columns is not None and n_columns <= schedule.threads * schedule.vector * MAX_CACHED_PACKS
    return True
