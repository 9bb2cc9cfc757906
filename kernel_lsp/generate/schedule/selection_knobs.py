"""Choose how the few first elements of rows are selected."""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES
from kernel_lsp.generate.codegen.routines.selection import MAX_ITEMS, WARP, SelectionSchedule, selects
from kernel_lsp.generate.fusion.groups import SortedGroup
from kernel_lsp.generate.ir.workload import AMPERE, Workload
from kernel_lsp.generate.schedule.knobs import Choices

PACKS_OF_SHORT_ROWS = (1, 2, 4, 8, 16)
LISTS = (1, 2, 4, 8)
MANY = 16
"""Elements of a row from which on a thread has twice as many lists: as many are read again."""
THREADS = (64, 128, 256, 512, 1024)
ELEMENTS_PER_THREAD = 128
"""Elements of long rows for each thread. (4096, 32000), k = 8, H200: 129 us by 256 threads of 2 lists, 142 by 128."""
THREADS_PER_SM = 1024
"""Minimum threads of an SM that keep enough loads in flight."""


def choose_selection(choices: Choices, name: str, rows: SortedGroup, workload: Workload) -> SelectionSchedule | None:
    """Pick the schedule of a selection; None where rows are to be sorted."""
    if not selects(rows) or workload.capability < AMPERE:
        return None
    if not choices.pick_int(f"{name}.selects", (0, 1), 1, "read rows once for their first elements, without a sort"):
        return None
    default = default_selection(rows, workload)
    lists = PACKS_OF_SHORT_ROWS if default.is_short else LISTS
    schedule = SelectionSchedule(
        choices.pick_int(f"{name}.threads", THREADS, default.threads, "threads per block"),
        choices.pick_int(f"{name}.vector", _widths(rows, workload), default.vector, "neighbouring elements per load"),
        choices.pick_int(f"{name}.lists", lists, default.lists, "lists or packs per thread"),
    )
    n_items = schedule.vector * schedule.lists
    is_short = n_items <= MAX_ITEMS and workload.size(rows.length) <= WARP * n_items
    return replace(schedule, is_short=is_short, lists=schedule.lists if is_short else min(schedule.lists, LISTS[-1]))


def default_selection(rows: SortedGroup, workload: Workload) -> SelectionSchedule:
    """Return a warp for each row that its registers hold, else a block of as many threads as its lists need."""
    length, n_rows = workload.size(rows.length), workload.size(rows.n_rows)
    widths = _widths(rows, workload)
    if length <= WARP * MAX_ITEMS:
        shapes = [(vector * lists, lists, vector) for vector in widths for lists in PACKS_OF_SHORT_ROWS]
        _, lists, vector = min(shape for shape in shapes if shape[0] * WARP >= length)
        return SelectionSchedule(128, vector, lists, is_short=True)
    lists = 2 if (rows.count.constant or 0) <= MANY else 4
    threads = THREADS[0]
    while threads < THREADS[-1] and (
        threads * ELEMENTS_PER_THREAD < length
        or (n_rows * threads < THREADS_PER_SM * workload.n_multiprocessors and threads * lists * max(widths) < length)
    ):
        threads *= 2
    return SelectionSchedule(threads, max(widths), lists)


def _widths(rows: SortedGroup, workload: Workload) -> tuple[int, ...]:
    """Return the elements per load that divide the captured rows."""
    length, most = workload.size(rows.length), MAX_PACK_BYTES // rows.source.dtype.itemsize
    return tuple(width for width in (1, 2, 4, 8, 16) if width <= most and length % width == 0)
