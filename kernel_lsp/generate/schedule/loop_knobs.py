"""Choose the blocks and threads of a loop's kernel."""

from __future__ import annotations

from kernel_lsp.generate.codegen.kernel import KernelWriter, RenderedKernel
from kernel_lsp.generate.codegen.routines.step_loop import (
    LoopRenderer,
    comment_of,
    default_threads,
    numbers_of_blocks,
)
from kernel_lsp.generate.fusion.groups import LoopGroup
from kernel_lsp.generate.ir.workload import HOPPER, Workload
from kernel_lsp.generate.schedule.knobs import Choices

THREADS = (32, 64, 128, 256, 512, 1024)


def render_loop(kernel: KernelWriter, group: LoopGroup, choices: Choices, workload: Workload) -> RenderedKernel:
    """Render the kernel of a loop with the blocks and threads that the schedule says."""
    numbers = tuple(n for n in numbers_of_blocks(group.loop) if n <= 1 or workload.capability >= HOPPER)
    blocks = choices.pick_int(f"{kernel.name}.blocks", sorted(numbers), numbers[0], "blocks per place along the batch")
    default = default_threads(group.loop, blocks)
    threads = choices.pick_int(f"{kernel.name}.threads", THREADS, default, "threads per block")
    return LoopRenderer(kernel, group, threads, blocks).render(comment_of(group.loop, blocks))
