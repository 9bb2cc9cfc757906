"""Decide what the executor can afford of a case: all blocks, a sample of them, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from kernel_lsp.core.expression import ExpressionError
from kernel_lsp.core.plan import BoundLaunch, BoundOperation
from kernel_lsp.core.task import Task
from kernel_lsp.gpu.eager import eager_run
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.ptx.executor import BlockSample
from kernel_lsp.verify.cpu.prepared import Limits, Profile
from kernel_lsp.verify.devices.device import Skipped
from kernel_lsp.verify.model.cases import Case, captured_sizes, graph_of
from kernel_lsp.verify.model.progress import Plan
from kernel_lsp.verify.probes.finder import n_largest

MAX_OPERATIONS = 2_000_000_000
"""Maximum operations of PyTorch for a case that needs all blocks: half a minute of a plain kernel's instructions."""
MAX_INSTRUCTIONS = 4_000_000_000
"""Maximum instructions of the kernel for such a case, by its profile."""
MIN_SAMPLED_BLOCKS = 12
FAR_TOO_MANY_INSTRUCTIONS = 2_000_000_000
"""Instructions of a complete case from which the work per block counts as grown since the captured sizes."""


def growth_of(task: Task, captured: BoundOperation, case: Case, bound: BoundOperation) -> float:
    """Return the growth of a block's work against the captured sizes, at least 1. It follows the block's share of the
    largest tensor, e.g. of all pairs of a sequence's elements."""
    graph = graph_of(task, case.operation)
    shares = [
        n_largest(graph, sizes) / max(sum(step.n_blocks for step in at.steps if isinstance(step, BoundLaunch)), 1)
        for sizes, at in ((captured_sizes(task), captured), (dict(case.sizes), bound))
    ]
    return max(1.0, shares[1] / max(shares[0], 1.0))


def sample_of(
    bound: BoundOperation, profile: Profile | Skipped, limits: Limits, seed: int, growth: Callable[[], float]
) -> BlockSample | None:
    """Return the sample of blocks to run, None for all blocks. Only an operation of one launch can be sampled: later
    launches need all blocks of earlier ones. A block's work is that of the profile, and counts as grown where the total
    would be far too much."""
    launches = [step for step in bound.steps if isinstance(step, BoundLaunch)]
    if isinstance(profile, Skipped) or len(bound.steps) != 1 or len(launches) != 1:
        return None
    n_instructions = max(profile.instructions_per_block, 1.0)
    if launches[0].n_blocks * n_instructions * growth() > FAR_TOO_MANY_INSTRUCTIONS:
        n_instructions *= growth()
    n_affordable = int(limits.complete_instructions / n_instructions)
    if launches[0].n_blocks <= max(n_affordable, MIN_SAMPLED_BLOCKS):
        return None
    return BlockSample(n_blocks=max(n_affordable, MIN_SAMPLED_BLOCKS), seed=seed)


def n_operations(task: Task, case: Case, gpu: GpuSpec) -> int:
    """Return the operations that the case requires of PyTorch, independent of the kernel; 0 where that depends on
    values."""
    with suppress(ExpressionError):
        kernels = eager_run(graph_of(task, case.operation), dict(case.sizes), gpu).kernels
        return sum(kernel.n_operations for kernel in kernels)
    return 0


def n_instructions(profile: Profile, bound: BoundOperation) -> float:
    """Return the instructions of all blocks, if each has as many as the profiled ones."""
    n_blocks = sum(step.n_blocks for step in bound.steps if isinstance(step, BoundLaunch))
    n_profiled = sum(counters.n_blocks for counters in profile.counters)
    total = sum(c.n_instructions / max(c.n_blocks_run, 1) * c.n_blocks for c in profile.counters)
    return total * n_blocks / max(n_profiled, 1)


def said_of_vast(vast: Plan) -> list[str]:
    """Return one note on the cases left to a GPU."""
    if not vast:
        return []
    (case, bound), n_more = vast[0], len(vast) - 1
    more = f" and in {n_more} more cases" if n_more else ""
    return [f"{bound.name}: not run {sizes_of(case)}{more}: all blocks would have to, and only a GPU has the time"]


def sizes_of(case: Case) -> str:
    """Return the case's sizes in words."""
    sizes = ", ".join(f"{name} = {size:,}" for name, size in case.sizes)
    return f"at {sizes}" if sizes else "at the captured sizes"
