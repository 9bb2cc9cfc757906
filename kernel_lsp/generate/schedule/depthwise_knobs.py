"""Pick the threads of a block of a depthwise convolution's gradients, and the rows of each."""

from __future__ import annotations

from kernel_lsp.generate.codegen.kernel import KernelWriter, RenderedKernel
from kernel_lsp.generate.codegen.routines.depthwise_gradients import (
    MAX_LOADS,
    DepthwiseRenderer,
    PlaneSchedule,
    loaded_first,
)
from kernel_lsp.generate.codegen.routines.depthwise_planes import MAX_THREADS, PlaneShape
from kernel_lsp.generate.fusion.groups import RoutineGroup
from kernel_lsp.generate.ir.scalar import Scalar
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.generate.schedule.knobs import Choices

ROWS = (1, 2, 4, 7, 8, 14, 16)
"""Rows that a thread walks down one column."""


def render_depthwise(choices: Choices, kernel: KernelWriter, group: RoutineGroup, workload: Workload) -> RenderedKernel:
    """Pick the knobs, and render the kernel."""
    routine, (parts,) = group.routine, group.others
    assert routine.body is not None
    strips, pad_h, pad_w, _ = routine.settings
    source, weight = routine.operands[:2]
    kernel_h, kernel_w = (size.constant or 0 for size in weight.shape[2:])
    out_shape = [variable.extent for variable in routine.variables[2:]]
    shape = PlaneShape(kernel_h, kernel_w, pad_h, pad_w, *source.shape[2:], *out_shape)
    default = default_schedule(shape, strips, routine.body, workload)
    values = tuple(range(32, MAX_THREADS + 1, 32))
    threads = choices.pick_int(f"{kernel.name}.threads", values, default.threads, "threads per block")
    rows = choices.pick_int(f"{kernel.name}.rows", ROWS, default.rows, "rows of a column per thread and turn")
    schedule = PlaneSchedule(threads, rows)
    return DepthwiseRenderer(kernel, group.tensor, parts, routine, shape, schedule, workload).render()


def default_schedule(shape: PlaneShape, strips: int, body: Scalar, workload: Workload) -> PlaneSchedule:
    """Return the threads and rows for which the fewest places of a block have no element."""
    n_rows = min(workload.size(shape.out_height), shape.rows_of(strips, workload.size(shape.height))[1])
    width = workload.size(shape.out_width)
    n_loads = max(1, len(loaded_first(body)))
    found: list[tuple[int, int, PlaneSchedule]] = []
    for rows in ROWS:
        if rows * n_loads > MAX_LOADS:
            continue
        of_thread = rows * (2 * shape.kernel_w + 3 * shape.n_taps + 16) + 2 * shape.kernel_h * shape.kernel_w + 16
        n_items = width * -(-n_rows // rows)
        for threads in range(32, MAX_THREADS + 1, 32):
            found.append((-(-n_items // threads) * threads * of_thread, -threads, PlaneSchedule(threads, rows)))
    return min(found, key=lambda entry: entry[:2])[2]
