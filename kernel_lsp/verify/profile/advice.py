"""Advise the few changes that a profile makes promising, each with its evidence and its maximum gain.

Gains are bounds from what is wasted, not predictions: a kernel that waits for wasted sectors cannot save more than
their share of its time. The thresholds are judgements from this project's own measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil

from kernel_lsp.core.profile import LAUNCH_US, Advice, KernelProfile, LineProfile

MAX_ADVICE = 3
MIN_GAIN = 0.02
MIN_WASTE = 0.1
AT_THE_FLOOR = 1.15
"""Factor above the roofline bound within which no change is worthwhile."""
LOW_OCCUPANCY = 0.5
FEW_WAVES = 8
"""Waves of blocks from which the last, partial wave is negligible."""
MUCH_TRAFFIC = 1.3
BARRIER, GLOBAL_MEMORY = "other warps at a barrier", "global memory"
MIN_BARRIER_STALL, MIN_MEMORY_STALL = 0.15, 0.35
MAX_SPILL_GAIN, BYTES_OF_BAD_SPILLS = 0.3, 512
"""Maximum share of a kernel's time to gain from spills, and the spilled bytes that would gain all of it: a few bytes
stay in L1 and cost next to nothing."""
MAX_FUSED_US = 50.0
"""Maximum duration of all launches in which one launch more or less is noticeable."""
UNKNOWN_WEIGHT = 0.5
"""Weight of a waste in a unit of unknown utilisation."""

Rule = Callable[[KernelProfile], Iterator[Advice]]


def advise(kernels: Sequence[KernelProfile], time_us: float, floor_us: float) -> tuple[Advice, ...]:
    """Return at most three, the most promising first; none at the roofline bound. No gain goes below that bound."""
    if floor_us and time_us <= AT_THE_FLOOR * floor_us:
        return ()
    most = 1 - floor_us / time_us if time_us else 1.0
    found = [advice for kernel in kernels for rule in _RULES for advice in rule(kernel)]
    found += list(_fusion(kernels, time_us))
    capped = [advice.model_copy(update={"gain": min(advice.gain, most)}) for advice in found]
    return tuple(sorted((a for a in capped if a.gain >= MIN_GAIN), key=lambda a: -a.gain)[:MAX_ADVICE])


def _advice(kernel: KernelProfile, title: str, evidence: str, gain: float, line: int | None) -> Advice:
    return Advice(title=title, evidence=evidence, gain=max(0.0, gain), kernel=kernel.kernel, line=line)


def _coalescing(kernel: KernelProfile) -> Iterator[Advice]:
    n_sectors = sum(line.n_sectors for line in kernel.lines)
    excess = sum(line.n_sectors - line.n_sectors_needed for line in kernel.lines)
    if not n_sectors or excess / n_sectors < MIN_WASTE or kernel.bound == "launch":
        return
    worst = max(kernel.lines, key=lambda line: line.n_sectors - line.n_sectors_needed)
    evidence = (
        f"its global accesses touch {worst.n_sectors / max(1, worst.n_sectors_needed):.1f} times the sectors that the "
        f"same bytes need, {excess / n_sectors:.0%} of the kernel's sectors are wasted."
    )
    weight = {"memory": 1.0, "cache": 1.0, "latency": 0.8}.get(kernel.bound, 0.3)
    gain = kernel.share * weight * excess / n_sectors
    yield _advice(kernel, "Let neighbouring threads access neighbouring elements", evidence, gain, worst.line)


def _bank_conflicts(kernel: KernelProfile) -> Iterator[Advice]:
    n_wavefronts = sum(line.n_wavefronts for line in kernel.lines)
    excess = sum(line.n_wavefronts - line.n_wavefronts_needed for line in kernel.lines)
    if not n_wavefronts or excess / n_wavefronts < MIN_WASTE:
        return
    worst = max(kernel.lines, key=lambda line: line.n_wavefronts - line.n_wavefronts_needed)
    evidence = (
        f"shared memory is passed {worst.n_wavefronts / max(1, worst.n_wavefronts_needed):.0f} times per access "
        f"instead of once: {excess / n_wavefronts:.0%} of the kernel's passes are bank conflicts."
    )
    weight = kernel.l1_busy if kernel.l1_busy is not None else UNKNOWN_WEIGHT
    gain = kernel.share * weight * excess / n_wavefronts
    yield _advice(kernel, "Pad or swizzle the shared tile", evidence, gain, worst.line)


def _spills(kernel: KernelProfile) -> Iterator[Advice]:
    if not kernel.spill_bytes:
        return
    evidence = f"ptxas spills {kernel.spill_bytes} bytes per thread at {kernel.n_registers} registers."
    gain = kernel.share * min(MAX_SPILL_GAIN, kernel.spill_bytes / BYTES_OF_BAD_SPILLS)
    yield _advice(kernel, "Keep fewer values alive, or allow more registers", evidence, gain, kernel.launch_line)


def _occupancy(kernel: KernelProfile) -> Iterator[Advice]:
    if not 0 < kernel.occupancy < LOW_OCCUPANCY or kernel.bound not in ("latency", "memory"):
        return
    evidence = f"{kernel.occupancy:.0%} of an SM's warps fit, limited by {kernel.occupancy_limit}."
    gain = kernel.share * (LOW_OCCUPANCY - kernel.occupancy)
    yield _advice(kernel, "Let more warps fit on an SM", evidence, gain, kernel.launch_line)


def _waves(kernel: KernelProfile) -> Iterator[Advice]:
    n_blocks = kernel.grid[0] * kernel.grid[1] * kernel.grid[2]
    if not kernel.n_waves or kernel.bound == "launch":
        return
    if kernel.n_waves < 1:
        evidence = f"{n_blocks} blocks fill {kernel.n_waves:.0%} of what the GPU runs at once."
        gain = kernel.share * (1 - kernel.n_waves) * UNKNOWN_WEIGHT
        yield _advice(kernel, "Split the work over more blocks", evidence, gain, kernel.launch_line)
    elif kernel.n_waves < FEW_WAVES:
        idle = 1 - kernel.n_waves / ceil(kernel.n_waves)
        evidence = f"{n_blocks} blocks are {kernel.n_waves:.2f} waves: the last one leaves SMs idle."
        yield _advice(
            kernel, "Choose a grid of whole waves", evidence, kernel.share * idle * UNKNOWN_WEIGHT, kernel.launch_line
        )


def _traffic(kernel: KernelProfile) -> Iterator[Advice]:
    if not kernel.bytes_moved or not kernel.compulsory_bytes or (kernel.device_memory_busy or 0) < 0.3:
        return
    ratio = kernel.bytes_moved / kernel.compulsory_bytes
    if ratio < MUCH_TRAFFIC:
        return
    evidence = f"it moves {ratio:.1f} times the bytes of its tensors ({kernel.bytes_moved / 1e6:.3g} MB)."
    yield _advice(kernel, "Read every element once: keep it in registers or shared memory", evidence,
                  kernel.share * (1 - 1 / ratio), _hottest_line(kernel))  # fmt: skip


def _stalls(kernel: KernelProfile) -> Iterator[Advice]:
    barrier = kernel.stalls.get(BARRIER, 0.0)
    if barrier >= MIN_BARRIER_STALL:
        evidence = f"warps spend {barrier:.0%} of their waiting at barriers."
        line = _line_of(kernel, BARRIER)
        yield _advice(
            kernel, "Replace barriers by warp shuffles, or make blocks smaller", evidence, kernel.share * barrier, line
        )
    memory = kernel.stalls.get(GLOBAL_MEMORY, 0.0)
    if memory >= MIN_MEMORY_STALL and kernel.bound == "latency":
        evidence = f"warps wait for global memory {memory:.0%} of the time, and no unit is busy."
        line = _line_of(kernel, GLOBAL_MEMORY)
        yield _advice(
            kernel,
            "Keep more loads in flight: wider loads, unrolling, several elements per thread",
            evidence,
            kernel.share * memory * UNKNOWN_WEIGHT,
            line,
        )


def _hottest_line(kernel: KernelProfile) -> int | None:
    hottest = max(kernel.lines, key=lambda line: line.share, default=None)
    return hottest.line if hottest is not None else None


def _line_of(kernel: KernelProfile, stall: str) -> int | None:
    def samples(line: LineProfile) -> float:
        return line.share * line.stall_share if line.stall == stall else 0.0

    most = max(kernel.lines, key=samples, default=None)
    return most.line if most is not None and samples(most) > 0 else None


_RULES: tuple[Rule, ...] = (_coalescing, _bank_conflicts, _spills, _occupancy, _waves, _traffic, _stalls)


def _fusion(kernels: Sequence[KernelProfile], time_us: float) -> Iterator[Advice]:
    if len(kernels) < 2 or not 0 < time_us < MAX_FUSED_US:
        return
    shortest = min(kernels, key=lambda kernel: kernel.share)
    evidence = f"{len(kernels)} launches share {time_us:.3g} us, and each costs about {LAUNCH_US} us to start and end."
    gain = (len(kernels) - 1) * LAUNCH_US / time_us
    yield _advice(shortest, "Fuse launches", evidence, gain, shortest.launch_line)
