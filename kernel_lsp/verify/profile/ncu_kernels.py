"""Combine Nsight Compute's launches and source lines with the plan: one profile per launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernel_lsp.core.plan import BoundLaunch, BoundOperation, TensorArgument
from kernel_lsp.core.profile import KernelBound, KernelProfile, LineProfile
from kernel_lsp.core.verdict import KernelFacts
from kernel_lsp.toolchain.tools.ncu import NcuLaunch, NcuLine, NcuSource

BUSY = 0.6
"""Share of a peak rate below which Nsight Compute itself diagnoses latency (its rule SOLBottleneck)."""
LAUNCH_US = 4.0
"""Duration below which a kernel takes about as long as an empty one (2.2 us) and its first access to memory."""
STALL_WORDS = {
    "long_scoreboard": "global memory",
    "long_sb": "global memory",
    "short_scoreboard": "shared memory or a special function",
    "short_sb": "shared memory or a special function",
    "mio_throttle": "the queue to shared memory",
    "mio": "the queue to shared memory",
    "lg_throttle": "the queue to global memory",
    "lg": "the queue to global memory",
    "barrier": "other warps at a barrier",
    "drain": "its stores to be written",
    "math_pipe_throttle": "the arithmetic pipes",
    "math": "the arithmetic pipes",
    "wait": "the instruction before",
    "membar": "a fence",
    "branch_resolving": "a branch",
    "no_instruction": "instructions",
    "no_inst": "instructions",
    "imc_miss": "constants",
    "imc": "constants",
    "gmma": "the tensor cores",
    "tex_throttle": "the texture queue",
    "tex": "the texture queue",
}
NOT_WAITING = frozenset(("selected", "not_selected", "dispatch_stall", "dispatch", "misc", "sleeping", "sleep"))
LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "threads": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
}


def measured_kernels(
    bound: BoundOperation,
    launches: Sequence[NcuLaunch],
    sources: Sequence[NcuSource],
    facts: Sequence[KernelFacts],
    symbols: Mapping[str, str],
    file_name: str,
) -> tuple[KernelProfile, ...]:
    """Return one profile per launch that both the plan and the report have, in order. `share` is of these launches'
    time."""
    steps = [launch for launch in bound.launches if launch.n_blocks]
    total_us = sum(launch.metric("gpu__time_duration.sum") for launch in launches) or 1.0
    by_symbol = {fact.symbol: fact for fact in facts}
    return tuple(
        _kernel(
            bound, step, launch, _lines(step.kernel, source, file_name), by_symbol.get(symbols.get(step.kernel, ""))
        ).model_copy(update={"share": launch.metric("gpu__time_duration.sum") / total_us})
        for step, launch, source in zip(steps, launches, [*sources, *[NcuSource("", ())] * len(steps)], strict=False)
    )


def _kernel(
    bound: BoundOperation,
    step: BoundLaunch,
    launch: NcuLaunch,
    lines: tuple[LineProfile, ...],
    facts: KernelFacts | None,
) -> KernelProfile:
    limits = {name: launch.metric(metric) for name, metric in LIMITS.items() if launch.metric(metric)}
    return KernelProfile(
        kernel=step.kernel,
        operation=bound.name,
        share=1.0,
        bound=_bound(launch),
        launch_line=step.line,
        time_us=launch.metric("gpu__time_duration.sum"),
        grid=step.grid,
        block=step.block,
        n_registers=round(launch.metric("launch__registers_per_thread")),
        spill_bytes=facts.spill_store_bytes + facts.spill_load_bytes if facts is not None else 0,
        shared_bytes=round(
            launch.metric("launch__shared_mem_per_block_static") + launch.metric("launch__shared_mem_per_block_dynamic")
        ),
        occupancy=launch.metric("sm__maximum_warps_per_active_cycle_pct") / 100,
        occupancy_limit=min(limits, key=lambda name: limits[name]) if limits else "",
        achieved_occupancy=launch.metric("sm__warps_active.avg.pct_of_peak_sustained_active") / 100,
        n_waves=launch.metric("launch__waves_per_multiprocessor"),
        bytes_moved=round(launch.metric("dram__bytes_read.sum") + launch.metric("dram__bytes_write.sum")),
        compulsory_bytes=compulsory_bytes(bound, step),
        device_memory_busy=_percent(launch, "gpu__dram_throughput"),
        l2_busy=_percent(launch, "lts__throughput"),
        l1_busy=_percent(launch, "l1tex__throughput"),
        compute_busy=_percent(launch, "sm__throughput"),
        stalls={_words(name): share for name, share in launch.stalls.items() if name not in NOT_WAITING},
        lines=lines,
    )


def compulsory_bytes(bound: BoundOperation, step: BoundLaunch) -> int:
    """Return the bytes of every tensor that the launch is given, each once."""
    names = dict.fromkeys(argument.tensor for argument in step.arguments if isinstance(argument, TensorArgument))
    return sum(bound.tensor(name).n_bytes for name in names)


def _percent(launch: NcuLaunch, unit: str) -> float:
    return launch.metric(f"{unit}.avg.pct_of_peak_sustained_elapsed") / 100


def _bound(launch: NcuLaunch) -> KernelBound:
    busy: dict[KernelBound, float] = {
        "memory": _percent(launch, "gpu__dram_throughput"),
        "cache": max(_percent(launch, "lts__throughput"), _percent(launch, "l1tex__throughput")),
        "compute": _percent(launch, "sm__throughput"),
    }
    busiest = max(busy, key=lambda name: busy[name])
    if busy[busiest] >= BUSY:
        return busiest
    return "launch" if launch.metric("gpu__time_duration.sum") < LAUNCH_US else "latency"


def _lines(kernel: str, source: NcuSource, file_name: str) -> tuple[LineProfile, ...]:
    """Return the lines of the `.cu` file itself. Lines inlined from headers are left out: the user cannot change
    them."""
    own = [line for line in source.lines if line.file.rsplit("/", 1)[-1] == file_name]
    total = sum(line.n_samples for line in own) or 1
    return tuple(_line(kernel, line, total) for line in own)


def _line(kernel: str, line: NcuLine, total: int) -> LineProfile:
    waits = {name: n for name, n in line.stalls.items() if name not in NOT_WAITING}
    most = max(waits, key=lambda name: waits[name], default="")
    return LineProfile(
        line=line.line,
        kernel=kernel,
        share=line.n_samples / total,
        n_instructions=line.n_instructions,
        stall=_words(most) if most else "",
        stall_share=waits[most] / max(1, line.n_samples) if most else 0.0,
        n_sectors=line.n_sectors,
        n_sectors_needed=line.n_sectors_needed,
        n_wavefronts=line.n_wavefronts,
        n_wavefronts_needed=line.n_wavefronts_needed,
    )


def _words(stall: str) -> str:
    return STALL_WORDS.get(stall, stall.replace("_", " "))
