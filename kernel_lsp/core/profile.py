"""Where a kernel's time goes, by kernel and by line of the `.cu` file, and what would help most."""

from __future__ import annotations

from typing import Literal

from kernel_lsp.core.finding import Finding
from kernel_lsp.core.model import SCHEMA_VERSION, Noun

SECTOR_BYTES = 32
LAUNCH_US = 2.2
"""Start to end of a kernel that does next to nothing (one H200, measured)."""
FULL_WARP = 31.5
"""Threads of a warp in a request, rounded: below, some do not take part."""
ProfileKind = Literal["measured", "executor"]
KernelBound = Literal["memory", "cache", "compute", "latency", "launch"]
"""``memory``: device memory is busy. ``cache``: L1, shared memory or L2 is. ``latency``: nothing is, warps wait."""


class LineProfile(Noun):
    """What one line does. `line` is 1-based; `share` is of the kernel's samples (measured) or instructions (executor).

    Sectors are of global memory, 32 bytes each; `n_sectors_needed` would do if the threads of a warp were neighbours.
    Wavefronts are of shared memory; beyond `n_wavefronts_needed` they are bank conflicts. `stall` is what warps on the
    line wait for most often, empty where nobody sampled.
    """

    line: int
    kernel: str
    share: float
    n_instructions: int
    stall: str = ""
    stall_share: float = 0.0
    n_sectors: int = 0
    n_sectors_needed: int = 0
    n_wavefronts: int = 0
    n_wavefronts_needed: int = 0
    threads_per_request: float = 0.0
    """Of a warp's 32, how many take part in a request to global memory; 0 where that was not counted."""

    @property
    def wasted_sectors(self) -> float:
        """The part of the line's sectors that coalescing would save."""
        return 1 - self.n_sectors_needed / self.n_sectors if self.n_sectors else 0.0

    @property
    def wasted_wavefronts(self) -> float:
        """The part of the line's wavefronts that are bank conflicts."""
        return 1 - self.n_wavefronts_needed / self.n_wavefronts if self.n_wavefronts else 0.0

    def in_words(self) -> str:
        """One short sentence for the end of a line in an editor."""
        parts = [f"{self.share:.0%} of {self.kernel}"]
        if self.stall:
            parts.append(f"waits for {self.stall} ({self.stall_share:.0%})")
        if self.wasted_sectors >= 0.05:
            parts.append(f"{self.wasted_sectors:.0%} of the global sectors are wasted")
        if self.wasted_wavefronts >= 0.05:
            parts.append(f"bank conflicts: {self.n_wavefronts / max(1, self.n_wavefronts_needed):.0f} times the passes")
        if 0 < self.threads_per_request < FULL_WARP:
            parts.append(f"{self.threads_per_request:.2g} of 32 threads take part")
        return ", ".join(parts)


class KernelProfile(Noun):
    """One launch. `share` is of the operation's time; shares of peak rates are None where they were not measured."""

    kernel: str
    operation: str
    share: float
    bound: KernelBound
    launch_line: int = 1
    time_us: float | None = None
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    n_registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    occupancy: float = 0.0
    """Warps that fit on an SM, as a part of what it can hold."""
    occupancy_limit: str = ""
    achieved_occupancy: float | None = None
    n_waves: float = 0.0
    """Of blocks: the grid over what fits on the GPU at once."""
    bytes_moved: int | None = None
    """To and from device memory, as measured."""
    compulsory_bytes: int = 0
    device_memory_busy: float | None = None
    l2_busy: float | None = None
    l1_busy: float | None = None
    compute_busy: float | None = None
    stalls: dict[str, float] = {}
    """What warps wait for between two instructions, as shares that sum to 1."""
    lines: tuple[LineProfile, ...] = ()


class EagerKernel(Noun):
    """A kernel that PyTorch launches for the same task, as the torch profiler saw it."""

    name: str
    n_calls: int
    time_us: float
    """Of all calls in one run of the task."""


class Advice(Noun):
    """A change worth trying. `gain` is how much of the operation's time it could save at best, from 0 to 1, and
    `evidence` is what was seen."""

    title: str
    evidence: str
    gain: float
    kernel: str
    line: int | None = None


class ToolRun(Noun):
    """What became of one tool. `reason` says why it did not run, `sandbox` how it was confined."""

    tool: str
    status: Literal["ran", "absent", "failed", "not asked"]
    version: str = ""
    reason: str = ""
    sandbox: str = ""
    elapsed_s: float = 0.0


class ProfileReport(Noun):
    """A kernel file's profile at its task's captured sizes."""

    schema_version: int = SCHEMA_VERSION
    kind: ProfileKind
    file: str
    device: str
    """The GPU that it was measured on; for the executor the one that its times are estimated for."""
    date: str
    shapes: dict[str, tuple[int, ...]]
    time_us: float
    """Of all launches: measured under the profiler, with cold caches, or estimated."""
    floor_us: float
    floor_basis: str
    kernels: tuple[KernelProfile, ...]
    advice: tuple[Advice, ...] = ()
    """At most three, the most promising first."""
    findings: tuple[Finding, ...] = ()
    eager: tuple[EagerKernel, ...] = ()
    tools: tuple[ToolRun, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def times_the_floor(self) -> float:
        return self.time_us / self.floor_us if self.floor_us else 0.0

    @property
    def hottest(self) -> KernelProfile | None:
        """The kernel that takes the most time."""
        return max(self.kernels, key=lambda kernel: kernel.share, default=None)

    def lines(self) -> tuple[LineProfile, ...]:
        """Every line's facts, by line and then by kernel."""
        found = [line for kernel in self.kernels for line in kernel.lines]
        return tuple(sorted(found, key=lambda line: (line.line, line.kernel)))

    def summary(self) -> str:
        """The few facts that matter, in words for people and prompts."""
        how = f"measured on {self.device}" if self.kind == "measured" else f"estimated for {self.device}"
        floor = f", {self.times_the_floor:.1f} times the floor of {self.floor_us:.3g} us" if self.floor_us else ""
        text = [f"{self.time_us:.4g} us {how}{floor} ({self.floor_basis})."]
        if self.hottest is not None and self.hottest.bound == "launch":
            text.append(f"A launch that does nothing takes about {LAUNCH_US} us: little of this is the kernel's work.")
        for kernel in sorted(self.kernels, key=lambda kernel: -kernel.share)[:3]:
            text.append(f"{kernel.kernel}: {kernel.share:.0%} of the time, bound by {_bound_words(kernel)}.")
        for number, advice in enumerate(self.advice, start=1):
            place = f" (line {advice.line})" if advice.line is not None else ""
            text.append(f"{number}. {advice.title}{place}: {advice.evidence} Saves up to {advice.gain:.0%}.")
        for finding in self.findings[:3]:
            text.append(f"{finding.severity}: line {finding.line}: {finding.message}")
        return "\n".join(text)


def _bound_words(kernel: KernelProfile) -> str:
    busy = {
        "device memory": kernel.device_memory_busy,
        "L2": kernel.l2_busy,
        "L1 and shared memory": kernel.l1_busy,
        "arithmetic": kernel.compute_busy,
    }
    known = {name: share for name, share in busy.items() if share is not None}
    words = {
        "memory": "device memory",
        "cache": "the caches",
        "compute": "arithmetic",
        "latency": "waiting",
        "launch": "its launch",
    }
    shown = ", ".join(
        f"{name} {share:.0%} busy" for name, share in sorted(known.items(), key=lambda item: -item[1])[:2]
    )
    return f"{words[kernel.bound]} ({shown})" if shown else words[kernel.bound]
