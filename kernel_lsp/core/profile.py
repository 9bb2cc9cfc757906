"""Performance counters of a launch on the PTX executor, and the profile of a kernel by kernel and by line of the `.cu`
file, with advice."""

from __future__ import annotations

from typing import Literal

from kernel_lsp.core.finding import Finding
from kernel_lsp.core.model import SCHEMA_VERSION, Noun

LAUNCH_US = 2.2
"""Duration of a nearly empty kernel in microseconds (one H200, measured)."""
FULL_WARP = 31.5
"""Threads per warp request below which some are inactive; 32, allowing for rounding."""
ProfileKind = Literal["measured", "events", "executor"]
"""``measured``: by Nsight Compute. ``events``: lines counted by the PTX executor, times by events on the GPU.
``executor``: counted, and times estimated."""
KernelBound = Literal["memory", "cache", "compute", "latency", "launch"]
"""``memory``: device memory is saturated. ``cache``: L1, shared memory or L2 is. ``latency``: nothing is; warps
wait."""


class LineProfile(Noun):
    """Profile of one line. `line` is 1-based; `share` is its fraction of the kernel's samples (measured) or
    instructions (executor).

    Sectors are of global memory, 32 bytes each; coalesced access would need `n_sectors_needed`. Wavefronts are of
    shared memory; those beyond `n_wavefronts_needed` are bank conflicts. `stall` is the most frequent stall reason of
    the line, empty without samples.
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
    """Active threads of 32 per global memory request; 0 when not counted."""

    @property
    def wasted_sectors(self) -> float:
        """Return the fraction of the line's sectors that coalescing would save."""
        return 1 - self.n_sectors_needed / self.n_sectors if self.n_sectors else 0.0

    @property
    def wasted_wavefronts(self) -> float:
        """Return the fraction of the line's wavefronts that are bank conflicts."""
        return 1 - self.n_wavefronts_needed / self.n_wavefronts if self.n_wavefronts else 0.0

    def in_words(self) -> str:
        """Summarise the line in a few words, for an inlay hint."""
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
    """One launch. `share` is its fraction of the operation's time; fractions of peak rates are None when not
    measured."""

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
    """Resident warps per SM, as a fraction of the maximum."""
    occupancy_limit: str = ""
    achieved_occupancy: float | None = None
    n_waves: float = 0.0
    """Waves: the grid's blocks over the blocks resident on the GPU."""
    bytes_moved: int | None = None
    """Measured device-memory traffic in bytes."""
    compulsory_bytes: int = 0
    device_memory_busy: float | None = None
    l2_busy: float | None = None
    l1_busy: float | None = None
    compute_busy: float | None = None
    stalls: dict[str, float] = {}
    """Stall reasons of warps, as fractions that sum to 1."""
    lines: tuple[LineProfile, ...] = ()


class EagerKernel(Noun):
    """A kernel that PyTorch launches for the same task, as seen by the torch profiler."""

    name: str
    n_calls: int
    time_us: float
    """Total time of all calls in one run of the task, in microseconds."""


class Advice(Noun):
    """A change worth trying. `gain` bounds the fraction of the operation's time that it can save, 0 to 1; `evidence` is
    what was observed."""

    title: str
    evidence: str
    gain: float
    kernel: str
    line: int | None = None


class ToolRun(Noun):
    """Status of one profiling tool. `reason` says why it did not run, `sandbox` how it was confined."""

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
    """The measured GPU, and where it is when that is another machine; for the executor, the GPU of its estimates."""
    date: str
    shapes: dict[str, tuple[int, ...]]
    time_us: float
    """Total time of all launches in microseconds: measured with cold caches, or estimated."""
    floor_us: float
    floor_basis: str
    kernels: tuple[KernelProfile, ...]
    advice: tuple[Advice, ...] = ()
    """At most three, the largest gain first."""
    findings: tuple[Finding, ...] = ()
    eager: tuple[EagerKernel, ...] = ()
    tools: tuple[ToolRun, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def times_the_floor(self) -> float:
        return self.time_us / self.floor_us if self.floor_us else 0.0

    @property
    def hottest(self) -> KernelProfile | None:
        """Return the kernel with the largest share of the time."""
        return max(self.kernels, key=lambda kernel: kernel.share, default=None)

    def lines(self) -> tuple[LineProfile, ...]:
        """Return the profile of every line, by line and then by kernel."""
        found = [line for kernel in self.kernels for line in kernel.lines]
        return tuple(sorted(found, key=lambda line: (line.line, line.kernel)))

    def summary(self) -> str:
        """Summarise the main facts, for people and prompts."""
        how = f"estimated for {self.device}" if self.kind == "executor" else f"measured on {self.device}"
        floor = (
            f", {self.times_the_floor:.1f} times the speed of light of {self.floor_us:.3g} us" if self.floor_us else ""
        )
        text = [f"{self.time_us:.4g} us {how}{floor} ({self.floor_basis})."]
        if self.hottest is not None and self.hottest.bound == "launch":
            text.append(f"About {LAUNCH_US} us of this is the launch: little is the kernel's work.")
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


class LineCounters(Noun):
    """Counters of one line of the `.cu` file, inlined calls included. `line` is 1-based.

    `n_instructions` is per thread, over the blocks that ran. The others cover the traced blocks: `n_global_requests`
    warp requests touched `n_global_sectors` sectors of 32 bytes, through `n_global_accesses` accesses by single threads
    of `n_global_bytes` bytes in total.
    """

    line: int
    n_instructions: int
    n_global_requests: int = 0
    n_global_sectors: int = 0
    n_global_accesses: int = 0
    n_global_bytes: int = 0

    @property
    def threads_per_request(self) -> float:
        """Return the active threads per request, at most 32; divergence lowers it. 0 without requests."""
        return self.n_global_accesses / self.n_global_requests if self.n_global_requests else 0.0


class LaunchCounters(Noun):
    """Totals over the `n_blocks_run` of `n_blocks` blocks that ran; scale by their ratio for the whole launch.

    Counts are per thread unless the name says warp. `n_global_sectors` counts 32-byte sectors per warp request, as
    Nsight Compute's ``l1tex__t_sectors`` does; it and `n_global_requests` cover the `n_blocks_traced` traced blocks.
    """

    kernel: str
    n_blocks: int
    n_blocks_run: int
    n_blocks_traced: int
    n_threads_per_block: int
    n_instructions: int
    n_floating_operations: int
    """Arithmetic operations in f16, f32 and f64; a fused multiply-add counts as two."""
    n_special_operations: int
    """Approximate functions (ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh) and divisions."""
    n_f64_operations: int
    global_load_bytes: int
    global_store_bytes: int
    shared_load_bytes: int
    shared_store_bytes: int
    n_global_requests: int
    n_global_sectors: int
    n_atomics: int
    n_barriers: int
    n_shuffles: int
    max_instructions_per_thread: int
    n_polled_instructions: int = 0
    """Instructions of loops that only wait for another thread, in no other count: their number depends on the order in
    which the executor runs threads."""
    n_matrix_operations: int = 0
    """Multiplications and additions on tensor cores, per thread: an `mma` of m16n8k16 counts 4096 for a warp. They are
    not included in the floating-point operations."""
    lines: tuple[LineCounters, ...] = ()
    """Counters by line, if blocks were traced."""
