"""Choose the threads and the cluster of a row reduction that also sums over the rows, or over the lines of a row, as
gradients of norms do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES
from kernel_lsp.generate.codegen.rows.row_schedule import (
    COLUMN_SUM_THREADS,
    MAX_CACHED_BYTES,
    MAX_CACHED_BYTES_PER_BLOCK,
    MAX_STAGED_BYTES,
    WARP,
    RowSchedule,
)
from kernel_lsp.generate.fusion.groups import RowGroup
from kernel_lsp.generate.schedule.row_knobs import ChosenRows, RowChooser
from kernel_lsp.generate.schedule.row_limits import power_of_two

MAX_KEPT = 96
"""Maximum values of rows and sums per thread, in registers: with as many others, an SM fits four blocks of 256
threads."""
STAGED_VECTOR = 4
"""Neighbouring elements per load of a staged row. On an H100 the gradients of LayerNorm in bf16 took 89 us so, and 98
in packs of 8."""
MAX_SUMMED_PACK_BYTES = 8
MAX_RESIDENT_THREADS = 1024


def choose_column_sums(chooser: RowChooser, kernel: str) -> ChosenRows:
    """Read the knobs of `kernel`; return its schedule, or the default one where they are impossible."""
    group, pick = chooser.group, chooser.choices.pick_int
    widths = [width for width in chooser.rows.widths() if chooser.rows.n_columns % width == 0] or [1]
    default = _default(chooser, widths)
    threads = chooser.threads or pick(
        f"{kernel}.threads", (64, 128, 256, 512), default.threads, "threads that share a row"
    )
    default = _schedule(chooser, replace(default, threads=threads, staged=default.staged and chooser.threads is None))
    vector = pick(f"{kernel}.vector", widths, default.vector, "neighbouring elements per load")
    can_stage = chooser.threads is None and vector > 1
    default_staged = int(default.staged) if can_stage else 0
    staged = pick(
        f"{kernel}.staged", (0, 1) if can_stage else (0,), default_staged, "copy the next row to shared memory"
    )
    schedule = _schedule(chooser, RowSchedule(threads, 1, vector, True, staged=bool(staged)))
    is_valid = _is_valid(group, schedule, chooser)
    return ChosenRows(schedule if is_valid else default, is_valid)


def column_sum_comment(schedule: RowSchedule, names: Sequence[str]) -> str:
    """Return the comment above the kernel."""
    ahead = ", while the next one is copied to shared memory" if schedule.staged else ""
    return (
        f"One block of {schedule.threads} threads takes the rows of a part one after the other; each row stays in "
        f"registers{ahead}, and so do the sums over rows of the thread's columns, which become one row of "
        f"{' and '.join(names)}."
    )


def _schedule(chooser: RowChooser, schedule: RowSchedule) -> RowSchedule:
    """Return the schedule with room for the captured length where the plan leaves it open, and without a stage that is
    too small."""
    is_open = chooser.group.column.extent.constant is None
    items = -(-chooser.rows.n_columns // (schedule.threads * schedule.vector)) if is_open else 0
    n_blocks = min(_n_parts(chooser) // chooser.workload.n_multiprocessors, MAX_RESIDENT_THREADS // schedule.threads)
    found = replace(schedule, items=items, resident=max(1, n_blocks) if schedule.staged else 1)
    return found if not found.staged or _can_stage(chooser, found) else replace(found, staged=False, resident=1)


def _n_parts(chooser: RowChooser) -> int:
    return chooser.group.column_sums[0].part.extent.constant or 1


def _is_valid(group: RowGroup, schedule: RowSchedule, chooser: RowChooser) -> bool:
    """Check that the row and the sums fit the registers."""
    n_items = -(-chooser.rows.n_columns // (schedule.threads * schedule.vector))
    n_kept = n_items * schedule.vector * (2 + len(group.column_sums))
    return schedule.threads >= 32 and n_kept <= MAX_KEPT


def _can_stage(chooser: RowChooser, schedule: RowSchedule) -> bool:
    """Return True if shared memory holds a row of every block, and its packs can be copied."""
    sizes = [access.dtype.itemsize * schedule.vector for access in chooser.rows.reads_of_row()]
    n_items = -(-chooser.rows.n_columns // (schedule.threads * schedule.vector))
    n_bytes = n_items * schedule.threads * sum(sizes) * schedule.resident
    return 0 < n_bytes <= MAX_STAGED_BYTES and all(size in (4, 8, MAX_PACK_BYTES) for size in sizes)


def _default(chooser: RowChooser, widths: Sequence[int]) -> RowSchedule:
    """Return the default schedule: the next row staged, by as many threads as the number of parts leaves to each block;
    else as few items per thread as blocks of 64 to 512 threads allow, in packs of at most 8 bytes."""
    if STAGED_VECTOR in widths:
        per_block = COLUMN_SUM_THREADS * chooser.workload.n_multiprocessors // _n_parts(chooser)
        threads = max(64, power_of_two(min(per_block, COLUMN_SUM_THREADS, chooser.rows.n_columns // STAGED_VECTOR)))
        staged = _schedule(chooser, RowSchedule(threads, 1, STAGED_VECTOR, True, staged=True))
        if staged.staged and _is_valid(chooser.group, staged, chooser):
            return staged
    threads = 64
    while threads < 512 and threads * max(widths) < chooser.rows.n_columns:
        threads *= 2
    width = max(width for width in widths if width * chooser.rows.widest <= MAX_SUMMED_PACK_BYTES or width == 1)
    return _schedule(chooser, RowSchedule(threads, 1, width, True))


SIDE_SUM_THREADS = 1024
"""Threads per SM that sum over rows side by side: 64 registers each, for a row, the sums and the computation. Gradients
of a norm over 96 channels took 85.7 us on an H200 so, 144.2 with 512 threads."""
MAX_SIDE_ITEMS = 8


def lanes_of_tile(n_columns: int) -> int:
    """Return the threads that share a row side by side with others, with at most `MAX_SIDE_ITEMS` columns of it."""
    lanes = 4
    while n_columns > MAX_SIDE_ITEMS * lanes:
        lanes *= 2
    return lanes


def choose_side_sums(chooser: RowChooser, kernel: str) -> ChosenRows:
    """Read the knobs of `kernel`, of rows side by side; return its schedule, or the default one where they are
    impossible."""
    n_columns, n_parts = chooser.rows.n_columns, _n_parts(chooser)
    lanes = chooser.threads // WARP if chooser.threads else lanes_of_tile(n_columns)
    picked = chooser.choices.pick_int(f"{kernel}.threads", (4, 8, 16, 32), lanes, "threads that share a row")
    threads = lanes if chooser.threads else picked
    n_kept = -(-n_columns // threads) * (2 + len(chooser.group.column_sums))
    is_valid = n_kept <= MAX_KEPT and threads * WARP <= MAX_RESIDENT_THREADS
    threads = threads if is_valid else lanes
    n_blocks = min(-(-n_parts // chooser.workload.n_multiprocessors), MAX_RESIDENT_THREADS // (threads * WARP))
    return ChosenRows(RowSchedule(threads, WARP, 1, True, resident=max(1, n_blocks)), is_valid)


def side_sum_comment(schedule: RowSchedule, names: Sequence[str]) -> str:
    """Return the comment above the kernel."""
    return (
        f"Blocks of {schedule.threads} threads per row take tile after tile of {schedule.rows} rows side by side, "
        "which stay in registers, and so do the sums over rows of each thread's columns: a part of "
        f"{' and '.join(names)}."
    )


CLUSTERS = (2, 4, 8)
THREADS = (128, 256, 512)
RESIDENT = (2, 3, 4)
DEFAULT_THREADS = 128
"""Threads of a default block: in bf16 the gradients of a group norm took 72.7 us on an H200 with 4 blocks of 128
threads per group, 85.3 us with 4 of 256 and 92.3 us with 2 of 256; in f32 104.6 us with 8 of 128, 106.9 with 4 of
256."""


def clusters_of_lines(n_lines: int, length: int, element_bytes: int, threads: int = DEFAULT_THREADS) -> list[int]:
    """Return the numbers of blocks that share the lines of a row evenly and keep them on chip. `element_bytes` is the
    total size of what they keep of one element."""

    def fits(blocks: int) -> bool:
        per_thread = n_lines // blocks * -(-length // threads) * element_bytes
        return per_thread <= MAX_CACHED_BYTES and per_thread * threads <= MAX_CACHED_BYTES_PER_BLOCK // 2

    is_wide = length * element_bytes >= threads * MAX_PACK_BYTES  # every thread has a pack of each line
    return [blocks for blocks in CLUSTERS if is_wide and n_lines % blocks == 0 and fits(blocks)]


def choose_lines(chooser: RowChooser, kernel: str) -> ChosenRows:
    """Read the knobs of `kernel`; return its schedule, or the default one where they are impossible."""
    group, pick = chooser.group, chooser.choices.pick_int
    assert group.line is not None
    assert group.line_number is not None
    length, n_lines = chooser.workload.size(group.line), group.line_number.extent.constant or 1
    n_elements = chooser.workload.size(group.row.extent) * chooser.rows.n_columns
    of_row = [
        read for read in chooser.rows.reads_of_row() if chooser.workload.size(read.tensor.n_elements) >= n_elements
    ]
    element_bytes = sum(access.dtype.itemsize for access in of_row)
    widths = [width for width in chooser.rows.widths() if length % width == 0] or [1]
    default_width = max(width for width in widths if width * chooser.rows.widest <= MAX_PACK_BYTES or width == 1)
    even = [blocks for blocks in CLUSTERS if n_lines % blocks == 0]
    possible = clusters_of_lines(n_lines, length, element_bytes)
    blocks = possible[0] if possible else even[-1]
    default = RowSchedule(DEFAULT_THREADS, 1, default_width, True, blocks, resident=RESIDENT[0])
    picked = replace(
        default,
        threads=pick(f"{kernel}.threads", THREADS, default.threads, "threads of a block"),
        vector=pick(f"{kernel}.vector", widths, default.vector, "neighbouring elements per load"),
        blocks=pick(f"{kernel}.blocks", even, default.blocks, "blocks that share a row"),
        resident=pick(f"{kernel}.resident", RESIDENT, default.resident, "blocks per multiprocessor, at least"),
    )
    is_possible = picked.blocks in clusters_of_lines(n_lines, length, element_bytes, picked.threads)
    is_valid = is_possible and picked.threads * picked.resident <= MAX_RESIDENT_THREADS
    return ChosenRows(_filled(picked if is_valid else default, n_lines, length), is_valid)


def _filled(schedule: RowSchedule, n_lines: int, length: int) -> RowSchedule:
    """Return the schedule with the lines of a block, and room for a line as long as the captured one."""
    items = -(-length // (schedule.vector * schedule.threads))
    return replace(schedule, lines=n_lines // schedule.blocks, items=items)


def line_comment(group: RowGroup, schedule: RowSchedule) -> str:
    """Return the comment above the kernel."""
    lines = "one line" if schedule.lines == 1 else f"{schedule.lines} lines"
    of_row, of_line = (
        ", ".join(dict.fromkeys(e.tensor.name for e in of)) for of in (group.reductions, group.line_sums)
    )
    return (
        f"A cluster of {schedule.blocks} blocks of {schedule.threads} threads per row, {lines} of it in the registers "
        f"of each block: {of_row} of the row, {of_line} of its lines."
    )
