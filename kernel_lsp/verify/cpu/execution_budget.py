"""What of a case the executor has time for: all blocks, a sample of them, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from kernel_lsp.core.expression import ExpressionError
from kernel_lsp.core.plan import BoundLaunch, BoundOperation
from kernel_lsp.core.task import Task
from kernel_lsp.gpu.eager import eager_run
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.ptx.executor import BlockSample
from kernel_lsp.verify.cpu.device import Limits, Profile, Skipped
from kernel_lsp.verify.model.cases import Case, captured_sizes, graph_of
from kernel_lsp.verify.model.progress import Plan
from kernel_lsp.verify.probes.wide_sizes import n_largest

MAX_OPERATIONS = 2_000_000_000
"""That a case asks PyTorch for, where all blocks have to run: half a minute of a plain kernel's instructions."""
MAX_INSTRUCTIONS = 4_000_000_000
"""Of the kernel, by its profile."""
MIN_SAMPLED_BLOCKS = 12
FAR_TOO_MANY_INSTRUCTIONS = 2_000_000_000
"""Of a complete case, where blocks may have more to do than at the captured sizes, and may have not."""


def growth_of(task: Task, captured: BoundOperation, case: Case, bound: BoundOperation) -> float:
    """How many times the work of a block at the captured sizes one may have here, at least as many times: it goes along
    with its share of the largest tensor, e.g. of all pairs of a sequence's elements."""
    graph = graph_of(task, case.operation)
    shares = [
        n_largest(graph, sizes) / max(sum(step.n_blocks for step in at.steps if isinstance(step, BoundLaunch)), 1)
        for sizes, at in ((captured_sizes(task), captured), (dict(case.sizes), bound))
    ]
    return max(1.0, shares[1] / max(shares[0], 1.0))


def sample_of(
    bound: BoundOperation, profile: Profile | Skipped, limits: Limits, seed: int, growth: Callable[[], float]
) -> BlockSample | None:
    """None to run every block. Only an operation of one launch can be sampled: later launches need all blocks of
    earlier ones. The work of a block is that of the profile, and counts as grown where all would be far too much."""
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
    """What the case asks PyTorch for, however a kernel does it; 0 where that depends on values."""
    with suppress(ExpressionError):
        kernels = eager_run(graph_of(task, case.operation), dict(case.sizes), gpu).kernels
        return sum(kernel.n_operations for kernel in kernels)
    return 0


def n_instructions(profile: Profile, bound: BoundOperation) -> float:
    """Of all blocks, if each has as much to do as those that were profiled."""
    n_blocks = sum(step.n_blocks for step in bound.steps if isinstance(step, BoundLaunch))
    n_profiled = sum(counters.n_blocks for counters in profile.counters)
    total = sum(c.n_instructions / max(c.n_blocks_run, 1) * c.n_blocks for c in profile.counters)
    return total * n_blocks / max(n_profiled, 1)


def said_of_vast(vast: Plan) -> list[str]:
    """What was left to a GPU, in one note."""
    if not vast:
        return []
    (case, bound), n_more = vast[0], len(vast) - 1
    more = f" and in {n_more} more cases" if n_more else ""
    return [f"{bound.name}: not run {sizes_of(case)}{more}: all blocks would have to, and only a GPU has the time"]


def sizes_of(case: Case) -> str:
    """In words."""
    sizes = ", ".join(f"{name} = {size:,}" for name, size in case.sizes)
    return f"at {sizes}" if sizes else "at the captured sizes"
