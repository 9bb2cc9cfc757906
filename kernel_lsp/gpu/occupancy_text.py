"""Format the occupancy of a compiled kernel at the blocks that it is launched with."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.core.verdict import KernelFacts
from kernel_lsp.gpu.launch import occupancy
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.source.launch_blocks import LaunchedBlock, blocks_of_instance

MAX_BLOCKS = 3
"""Maximum launches shown; a kernel that is launched with more block sizes is tuned by hand."""


def occupancy_text(facts: KernelFacts, launched: Sequence[LaunchedBlock], gpu: GpuSpec) -> str:
    """Return ``occupancy 100% on H200 (256 threads per block, limited by threads)``; empty without a known block."""
    blocks = [block for block in blocks_of_instance(facts.kernel, launched) if block.n_threads > 0]
    shown = "; ".join(_at(facts, block, gpu) for block in blocks[:MAX_BLOCKS])
    return f"occupancy {shown}" if shown else ""


def _at(facts: KernelFacts, block: LaunchedBlock, gpu: GpuSpec) -> str:
    found = occupancy(
        gpu.architecture,
        n_threads_per_block=block.n_threads,
        n_registers=facts.n_registers,
        shared_bytes=facts.shared_bytes + block.dynamic_bytes,
    )
    dynamic = f" and {block.dynamic_bytes} B of dynamic shared memory" if block.dynamic_bytes else ""
    limit = f"{'limited by' if found.n_blocks else 'no block fits: too many'} {found.limited_by}"
    if not found.n_blocks and found.limited_by == "shared memory":
        limit = "no block fits: too much shared memory"
    return f"{found.fraction:.0%} on {gpu.name} ({block.n_threads} threads per block{dynamic}, {limit})"
