"""Describe a row kernel in the comment above it."""

from __future__ import annotations

from kernel_lsp.generate.codegen.rows.row_schedule import WARP, RowSchedule
from kernel_lsp.generate.fusion.groups import RowGroup
from kernel_lsp.generate.fusion.row_patterns import n_passes


def row_comment(group: RowGroup, schedule: RowSchedule) -> str:
    """Return the comment above the kernel: the threads of a row, and the number of reads of it."""
    found = [entry.tensor for entry in group.reductions] or [store.tensor for _, store in group.stores]
    results = ", ".join(dict.fromkeys(tensor.name for tensor in found))
    shared = schedule.blocks > 1
    is_online = (schedule.online or shared) and not schedule.cached
    passes = n_passes(group, online=is_online, shared=shared)
    text = f"{passes} passes over the row" if passes > 1 else "one pass over the row"
    kept = "; registers and shared memory keep what the second needs" if schedule.held else ""
    kept = kept or ", which stays in registers between them" if schedule.cached and passes > 1 else ""
    ahead = " The next row is copied to shared memory meanwhile." if schedule.staged else ""
    if schedule.ahead:
        ahead = " The next row is loaded as this one is stored; shared memory keeps what all rows read."
    return f"{_who(group, schedule)}: {results} in {text}{kept}.{ahead}"


def _who(group: RowGroup, schedule: RowSchedule) -> str:
    threads = schedule.threads
    if schedule.is_grid:
        return f"{schedule.blocks} blocks of {threads} threads per row in one cooperative grid"
    if schedule.blocks > 1:
        return f"A cluster of {schedule.blocks} blocks of {threads} threads per row"
    if schedule.vector > 1 and not group.is_column_contiguous:
        return f"Threads take packs of {schedule.vector} neighbouring rows, {threads} threads the columns of each"
    if threads == 1:
        return "One thread per row"
    if not group.is_column_contiguous:
        return f"{threads} threads per row, neighbouring threads on neighbouring rows so that reads coalesce"
    if threads <= WARP:
        return f"One warp per row, {schedule.rows} rows per block" if schedule.rows > 1 else "One warp per row"
    return f"One block of {threads} threads per row"
