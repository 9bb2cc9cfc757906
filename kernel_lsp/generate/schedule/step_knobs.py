"""Pick the schedules of kernels whose steps need each other: scans, recurrent layers and rolled loops."""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.errors import TargetError
from kernel_lsp.generate.codegen.kernel import KernelWriter, RenderedKernel
from kernel_lsp.generate.codegen.routines.recurrence import Recurrence
from kernel_lsp.generate.codegen.routines.step_loop import (
    LoopRenderer,
    comment_of,
    default_threads,
    numbers_of_blocks,
)
from kernel_lsp.generate.codegen.rows.row_schedule import WARP
from kernel_lsp.generate.codegen.scans.scan_schedule import (
    SCAN_THREADS,
    ScanSchedule,
    ScanState,
    default_scan_schedule,
    is_valid_scan_schedule,
    scan_widths,
)
from kernel_lsp.generate.fusion.groups import LoopGroup, ScanGroup
from kernel_lsp.generate.ir.workload import HOPPER, Workload
from kernel_lsp.generate.schedule.knobs import Choices

LOOP_THREADS = (32, 64, 128, 256, 512, 1024)


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


def choose_recurrence(choices: Choices, name: str, layer: Recurrence, workload: Workload) -> tuple[int, int]:
    """Return blocks per sequence and threads per unit. Raises TargetError where a block has too few threads."""
    values = [blocks for blocks in (8, 4, 2, 1) if layer.is_valid(blocks, 1)]
    if not values or workload.capability < HOPPER:
        values = [1]
    blocks = choices.pick_int(f"{name}.blocks", values, values[0], "blocks per sequence")
    n_parts = [parts for parts in (8, 16, 4, 32, 2, 1) if layer.is_valid(blocks, parts)]
    if not n_parts:
        raise TargetError(
            f"the generator cannot do a recurrent layer of {layer.n_units} units: a block has too few threads",
            next_step="use fewer hidden units, or leave this layer outside the target",
        )
    default = next((parts for parts in n_parts if layer.keeps_weights(blocks, parts)), n_parts[0])
    return blocks, choices.pick_int(f"{name}.parts", n_parts, default, "threads per unit")


def render_loop(kernel: KernelWriter, group: LoopGroup, choices: Choices, workload: Workload) -> RenderedKernel:
    """Render the kernel of a loop with the blocks and threads that the schedule says."""
    numbers = tuple(n for n in numbers_of_blocks(group.loop) if n <= 1 or workload.capability >= HOPPER)
    blocks = choices.pick_int(f"{kernel.name}.blocks", sorted(numbers), numbers[0], "blocks per place along the batch")
    default = default_threads(group.loop, blocks)
    threads = choices.pick_int(f"{kernel.name}.threads", LOOP_THREADS, default, "threads per block")
    return LoopRenderer(kernel, group, threads, blocks).render(comment_of(group.loop, blocks))
