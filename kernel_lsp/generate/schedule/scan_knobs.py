"""Pick the schedule of a scan."""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.generate.codegen.rows.row_schedule import WARP
from kernel_lsp.generate.codegen.scans.scan_schedule import (
    SCAN_THREADS,
    ScanSchedule,
    ScanState,
    default_scan_schedule,
    is_valid_scan_schedule,
    scan_widths,
)
from kernel_lsp.generate.fusion.groups import ScanGroup
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.generate.schedule.knobs import Choices


def choose_scan(choices: Choices, name: str, group: ScanGroup, workload: Workload) -> tuple[ScanSchedule, bool]:
    """Return the schedule to render, and True if it is exactly what the knobs requested."""
    default = default_scan_schedule(group, workload)
    pick = choices.pick_int
    is_row = group.is_column_contiguous
    schedule = ScanSchedule(
        pick(f"{name}.threads", SCAN_THREADS[is_row], default.threads, "threads that share a row"),
        pick(f"{name}.rows", (1, 4, 8) if is_row else (8, 16, 32), default.rows, "rows per block"),
        pick(f"{name}.vector", scan_widths(group, workload), default.vector, "elements per load"),
        pick(f"{name}.items", (1, 2, 4, 8, 16), default.items, "loads per thread and tile"),
        bool(pick(f"{name}.chained", (0, 1), int(default.chained), "a block for each tile of a row")),
    )
    schedule = replace(schedule, rows=1) if is_row and schedule.threads > WARP else schedule
    is_valid = is_valid_scan_schedule(group, schedule, ScanState.of(group).n_tile_words)
    return (schedule if is_valid else default), is_valid
