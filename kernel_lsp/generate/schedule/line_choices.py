"""Choose the cluster of a row reduction that also sums over the lines of a row."""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES
from kernel_lsp.generate.codegen.rows.row_schedule import (
    MAX_CACHED_BYTES,
    MAX_CACHED_BYTES_PER_BLOCK,
    RowSchedule,
)
from kernel_lsp.generate.fusion.groups import RowGroup
from kernel_lsp.generate.schedule.row_choices import ChosenRows, RowChooser

CLUSTERS = (2, 4, 8)
THREADS = (128, 256, 512)
RESIDENT = (2, 3, 4)
MAX_RESIDENT_THREADS = 1024
"""Maximum threads per multiprocessor that a schedule asks for: 64 registers each."""
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
    length, n_lines = chooser.captured(group.line), group.line_number.extent.constant or 1
    n_elements = chooser.captured(group.row.extent) * chooser.n_columns
    of_row = [read for read in chooser.reads_of_row() if chooser.captured(read.tensor.n_elements) >= n_elements]
    element_bytes = sum(access.dtype.itemsize for access in of_row)
    widths = [width for width in chooser.widths() if length % width == 0] or [1]
    default_width = max(width for width in widths if width * chooser.widest <= MAX_PACK_BYTES or width == 1)
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
