"""Numbers shown to a user. Each carries its kind, GPU, shapes, dtype and date."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kernel_lsp.core.model import Noun

EAGER = "eager"
"""The baseline that every kernel has: PyTorch as it runs the user's code."""
Bound = Literal["memory", "compute", "latency", "launch", "library"]
Claim = Literal["faster", "slower", "no difference", "not compared"]
"""``not compared``: the two were not measured in turn, so that their ratio is a number and no claim."""
Switch = Literal["on", "off", "not said"]


class Estimate(Noun):
    """A predicted time with its interval. Never a measurement, and always said so."""

    kind: Literal["estimated"] = "estimated"
    time_us: float
    low_us: float
    high_us: float
    gpu: str
    bound: Bound
    bytes_moved: int
    """Compulsory device-memory traffic: each input read once, each output written once, per step."""
    n_operations: int
    """Floating-point operations."""
    n_launches: int
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    date: str
    method: str
    """How it was reached, e.g. ``roofline over ATen ops`` or ``executor counters``."""


class ClockSummary(Noun):
    """What NVML said of the GPU while it was timed. `is_known` is false where NVML is missing: `reason` says why."""

    is_known: bool = False
    reason: str = "not logged"
    low_sm_mhz: int = 0
    high_sm_mhz: int = 0
    low_memory_mhz: int = 0
    high_memory_mhz: int = 0
    highest_temperature_c: int = 0
    highest_power_w: float = 0.0
    throttle_reasons: tuple[str, ...] = ()
    """Why the GPU slowed down, if it did, e.g. ``software power cap``."""


class Measurement(Noun):
    """A time measured on a GPU: that of the device, with its interval."""

    kind: Literal["measured"] = "measured"
    time_us: float
    """Median of the device's time per call."""
    low_us: float
    high_us: float
    n_samples: int
    gpu: str
    driver: str
    torch_version: str
    cache: Literal["cold", "warm"]
    """State of L2 before each sample of `time_us`."""
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    date: str
    interval: Literal["percentiles", "bootstrap"] = "percentiles"
    """What `low_us` and `high_us` are: the 10th and 90th percentile of the samples, or a 95 % interval of the median,
    bootstrapped over blocks."""
    warm_us: float | None = None
    """Median of the device's time with what it reads in L2 where that fits; None where it was not taken."""
    operator_us: float | None = None
    """Median per call from Python, one call after the other with fresh outputs: the larger of what the host and the
    device need; None where it was not taken."""
    n_calls_per_sample: int = 1
    """Calls between two time stamps, each on buffers of its own."""
    method: Literal["graph", "stream", "not said"] = "not said"
    """How the calls of a sample reach the device: as one CUDA graph that the harness captured, or one after the other.
    Modes of `torch.compile` with graphs of their own are run as they are, on a stream."""
    resolution_us: float = 0.0
    """Between two time stamps with nothing between them, per call: a shorter time says nothing."""
    tf32: Switch = "not said"
    cudnn_benchmark: Switch = "not said"
    gpu_uuid: str = ""
    clocks: ClockSummary = ClockSummary()

    @property
    def is_resolved(self) -> bool:
        """Whether the time is longer than what no work takes."""
        return self.time_us > self.resolution_us


class Ratio(Noun):
    """Theirs over ours with a 95 % interval, from blocks measured in turn."""

    value: float
    low: float
    high: float
    noise_floor: float
    """How far from 1 the ratio of a thing with itself comes out here, e.g. 0.012 for 1.2 %."""
    claim: Claim
    """``faster`` says that ours is, and that the interval clears the noise floor."""
    n_rounds: int
    """Of blocks measured in turn that went into it."""
    throttled_share: float = 0.0
    """Of all rounds: those in which the GPU slowed itself down. They are left out, unless hardly any were left."""


class TimedBaseline(Noun):
    """A way to run the task in PyTorch, and its time. `ratio` is None when it was not measured in turn with ours: then
    the time comes from an earlier measurement, of the date that it names."""

    kind: Literal["timed"] = "timed"
    name: str
    measurement: Measurement
    ratio: Ratio | None = None


class MissingBaseline(Noun):
    """A way to run the task in PyTorch that has no time. `is_final` is false while it may still get one."""

    kind: Literal["missing"] = "missing"
    name: str
    reason: str
    is_final: bool


BaselineResult = Annotated[TimedBaseline | MissingBaseline, Field(discriminator="kind")]


class TimeFloor(Noun):
    """What nothing can beat on this GPU, for the same shapes."""

    time_us: float
    """Compulsory bytes at the best bandwidth known, all arithmetic at its peak rate, or a kernel that does nothing."""
    impossible_below_us: float
    """A shorter measured time is an error of measurement: the datasheet's bandwidth and the fastest unit, with margin,
    and nothing counted that might stay in L2."""
    basis: str
    """Which limit it is, e.g. ``134 MB at 4.3 TB/s (measured)``."""


class Comparison(Noun):
    """Our time beside PyTorch's, both of one kind and on one GPU.

    `baseline` is the fastest way to run it in PyTorch that has a time; `baselines` lists all that were tried."""

    baseline_name: str
    baseline: Estimate | Measurement
    ours: Estimate | Measurement
    ratio: Ratio | None = None
    """Against `baseline`; None for estimates and where the two were not measured in turn."""
    baselines: tuple[BaselineResult, ...] = ()
    floor: TimeFloor | None = None
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        """Theirs over ours."""
        return self.ratio.value if self.ratio is not None else self.baseline.time_us / self.ours.time_us
