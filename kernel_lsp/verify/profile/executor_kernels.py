"""Turn what the PTX executor counted into profiles: one per launch, with estimated times, or with times of events on a
GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from kernel_lsp.core.measurement import Estimate
from kernel_lsp.core.plan import BoundLaunch, BoundOperation
from kernel_lsp.core.profile import KernelProfile, LaunchCounters, LineCounters, LineProfile
from kernel_lsp.core.verdict import KernelFacts
from kernel_lsp.gpu.estimate import DEFAULT_REGISTERS, estimate_operation
from kernel_lsp.gpu.launch import SECTOR_BYTES, occupancy
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.verify.profile.ncu_kernels import compulsory_bytes


def executor_kernels(
    bound: BoundOperation,
    counters: Sequence[LaunchCounters],
    facts: Sequence[KernelFacts],
    symbols: Mapping[str, str],
    gpu: GpuSpec,
) -> tuple[KernelProfile, ...]:
    """Return one profile per launch, in order; `share` is of the launches' estimated time. Launches that only make what
    a backward is given of its forward have none."""
    counters, bound = counters[bound.n_launches_before :], bound.timed
    steps = bound.launches
    alone = (bound.model_copy(update={"steps": (step,)}) for step in steps)
    estimates = [
        estimate_operation(one, [counted], facts, symbols, gpu) for one, counted in zip(alone, counters, strict=True)
    ]
    total_us = sum(estimate.time_us for estimate in estimates) or 1.0
    by_symbol = {fact.symbol: fact for fact in facts}
    return tuple(
        _kernel(bound, step, one, estimate, by_symbol.get(symbols.get(step.kernel, "")), gpu, total_us)
        for step, one, estimate in zip(steps, counters, estimates, strict=True)
    )


def with_times(kernels: Sequence[KernelProfile], launches_us: Sequence[float]) -> tuple[KernelProfile, ...]:
    """Return the profiles with measured times of their launches, in order, and the shares of these."""
    total_us = sum(launches_us) or 1.0
    return tuple(
        kernel.model_copy(update={"time_us": time_us, "share": time_us / total_us})
        for kernel, time_us in zip(kernels, launches_us, strict=True)
    )


def _kernel(
    bound: BoundOperation,
    step: BoundLaunch,
    counters: LaunchCounters,
    estimate: Estimate,
    facts: KernelFacts | None,
    gpu: GpuSpec,
    total_us: float,
) -> KernelProfile:
    n_registers = facts.n_registers if facts is not None else DEFAULT_REGISTERS
    shared_bytes = step.shared_bytes + (facts.shared_bytes if facts is not None else 0)
    resident = occupancy(
        gpu.architecture,
        n_threads_per_block=step.n_threads_per_block,
        n_registers=n_registers,
        shared_bytes=shared_bytes,
    )
    at_once = resident.n_blocks * gpu.n_sms
    limit: Literal["threads", "blocks", "registers", "shared memory"] = resident.limited_by
    return KernelProfile(
        kernel=step.kernel,
        operation=bound.name,
        share=estimate.time_us / total_us,
        bound="compute" if estimate.bound == "library" else estimate.bound,
        launch_line=step.line,
        grid=step.grid,
        block=step.block,
        n_registers=n_registers,
        spill_bytes=facts.spill_store_bytes + facts.spill_load_bytes if facts is not None else 0,
        shared_bytes=shared_bytes,
        occupancy=resident.fraction,
        occupancy_limit=limit,
        n_waves=step.n_blocks / at_once if at_once else 0.0,
        compulsory_bytes=compulsory_bytes(bound, step),
        lines=_lines(step.kernel, counters.lines),
    )


def _lines(kernel: str, counted: Sequence[LineCounters]) -> tuple[LineProfile, ...]:
    total = sum(line.n_instructions for line in counted) or 1
    return tuple(
        LineProfile(
            line=line.line,
            kernel=kernel,
            share=line.n_instructions / total,
            n_instructions=line.n_instructions,
            n_sectors=line.n_global_sectors,
            n_sectors_needed=min(line.n_global_sectors, -(-line.n_global_bytes // SECTOR_BYTES)),
            threads_per_request=line.threads_per_request,
        )
        for line in counted
    )
