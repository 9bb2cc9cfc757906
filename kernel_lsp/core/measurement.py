"""Times shown to a user. Each carries its kind, GPU, shapes, dtype and date."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field

from kernel_lsp.core.model import Noun

EAGER = "eager"
"""The baseline that every kernel has: the user's code in eager PyTorch."""
COMPILE = "compile"
"""The default mode of `torch.compile`, and the prefix of the other modes' names."""
Bound = Literal["memory", "compute", "latency", "launch", "library"]
Claim = Literal["faster", "slower", "no difference", "not compared"]
"""``not compared``: the measurements were not interleaved, so their ratio supports no claim."""
Switch = Literal["on", "off", "not said"]


def is_pytorch(baseline: str) -> bool:
    """Return True for eager and the modes of `torch.compile`; other baselines are other libraries."""
    return baseline == EAGER or baseline.startswith(COMPILE)


class Estimate(Noun):
    """A predicted time with its interval, always labelled as an estimate."""

    kind: Literal["estimated"] = "estimated"
    time_us: float
    low_us: float
    high_us: float
    gpu: str
    bound: Bound
    bytes_moved: int
    """Compulsory device-memory traffic in bytes: each input read once and each output written once, per step."""
    n_operations: int
    """Floating-point operations."""
    n_launches: int
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    date: str
    method: str
    """Method of the estimate, e.g. ``roofline over ATen ops`` or ``executor counters``."""


class LineEstimate(Noun):
    """Eager-mode cost of one line of the user's code. `share` is its fraction of the target's time, 0 to 1."""

    file: str
    line: int
    text: str
    operations: tuple[str, ...]
    time_us: float
    low_us: float
    high_us: float
    floor_us: float
    """Speed of light of the line in microseconds: memory traffic or arithmetic at peak rate on the same GPU."""
    bound: Bound
    share: float
    bytes_moved: int
    n_operations: int
    n_launches: int

    def place(self, target_file: str) -> str:
        """Return the line's number, after the path of its file as seen from `target_file` where it is another one."""
        name = os.path.relpath(self.file, os.path.dirname(target_file))
        return str(self.line) if name == os.path.basename(target_file) else f"{name}:{self.line}"


class ClockSummary(Noun):
    """GPU state from NVML during timing. `is_known` is false without NVML; `reason` says why."""

    is_known: bool = False
    reason: str = "not logged"
    low_sm_mhz: int = 0
    high_sm_mhz: int = 0
    low_memory_mhz: int = 0
    high_memory_mhz: int = 0
    highest_temperature_c: int = 0
    highest_power_w: float = 0.0
    throttle_reasons: tuple[str, ...] = ()
    """Reasons for throttling, if any, e.g. ``software power cap``."""


class Measurement(Noun):
    """Device time measured on a GPU, with its interval."""

    kind: Literal["measured"] = "measured"
    time_us: float
    """Median device time per call, in microseconds."""
    low_us: float
    high_us: float
    n_samples: int
    gpu: str
    driver: str
    torch_version: str
    cache: Literal["cold", "warm"]
    """L2 state before each sample of `time_us`."""
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    date: str
    interval: Literal["percentiles", "bootstrap"] = "percentiles"
    """Type of the interval `low_us` to `high_us`: the 10th to 90th percentile of the samples, or a 95 % confidence
    interval of the median, bootstrapped over blocks."""
    warm_us: float | None = None
    """Median device time in microseconds with a warm L2, for inputs that fit; None when not measured."""
    operator_us: float | None = None
    """Median time per call from Python in microseconds, for consecutive calls with fresh outputs: the larger of host
    and device time. None when not measured."""
    n_calls_per_sample: int = 1
    """Calls between two time stamps, each on separate buffers."""
    method: Literal["graph", "stream", "not said"] = "not said"
    """Submission of a sample's calls: as one CUDA graph captured by the harness, or one by one on a stream. Modes of
    `torch.compile` with graphs of their own are run as they are, on a stream."""
    resolution_us: float = 0.0
    """Time per call of an empty interval between two time stamps; shorter times are not resolved."""
    tf32: Switch = "not said"
    cudnn_benchmark: Switch = "not said"
    gpu_uuid: str = ""
    clocks: ClockSummary = ClockSummary()

    @property
    def is_resolved(self) -> bool:
        """Return True when the time exceeds the timer's resolution."""
        return self.time_us > self.resolution_us


class Ratio(Noun):
    """PyTorch's time over ours with a 95 % confidence interval, from interleaved blocks."""

    value: float
    low: float
    high: float
    noise_floor: float
    """Deviation from 1 of the ratio of identical code in this setup, e.g. 0.012 for 1.2 %."""
    claim: Claim
    """``faster`` means that ours is, with the interval beyond the noise floor."""
    n_rounds: int
    """Number of interleaved blocks in the ratio."""
    throttled_share: float = 0.0
    """Share of all rounds in which the GPU throttled. They are excluded, unless too few others remain."""


class TimedBaseline(Noun):
    """A PyTorch baseline with its time. `ratio` is None when it was not interleaved with ours: the time then comes from
    an earlier measurement, whose date it names."""

    kind: Literal["timed"] = "timed"
    name: str
    measurement: Measurement
    ratio: Ratio | None = None

    @property
    def time_us(self) -> float:
        return self.measurement.time_us


class EstimatedBaseline(Noun):
    """A PyTorch baseline with a predicted time."""

    kind: Literal["estimated"] = "estimated"
    name: str
    estimate: Estimate

    @property
    def time_us(self) -> float:
        return self.estimate.time_us


class MissingBaseline(Noun):
    """A PyTorch baseline without a time. `is_final` is false while one may still follow."""

    kind: Literal["missing"] = "missing"
    name: str
    reason: str
    is_final: bool


BaselineResult = Annotated[TimedBaseline | EstimatedBaseline | MissingBaseline, Field(discriminator="kind")]


class TimeFloor(Noun):
    """Speed of light (roofline bound) on this GPU, for the same shapes."""

    time_us: float
    """The largest of compulsory bytes at the best known bandwidth, arithmetic at peak rate, and an empty kernel; in
    microseconds."""
    impossible_below_us: float
    """Shorter measured times are measurement errors. Computed from the datasheet's bandwidth and the fastest unit, with
    a margin, without traffic that may stay in L2."""
    basis: str
    """The binding limit, e.g. ``134 MB at 4.3 TB/s (measured)``."""


class Comparison(Noun):
    """Our time and PyTorch's, of the same kind and on the same GPU.

    `baseline` is the fastest PyTorch baseline with a time; `baselines` lists all that were tried.
    """

    baseline_name: str
    baseline: Estimate | Measurement
    ours: Estimate | Measurement
    ratio: Ratio | None = None
    """Ratio against `baseline`; None for estimates and measurements that were not interleaved."""
    baselines: tuple[BaselineResult, ...] = ()
    floor: TimeFloor | None = None
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        """Return PyTorch's time over ours."""
        return self.ratio.value if self.ratio is not None else self.baseline.time_us / self.ours.time_us

    @property
    def baselines_us(self) -> dict[str, float]:
        """Return PyTorch's times by baseline. Results of older versions name one."""
        found = {each.name: each.time_us for each in self.baselines if not isinstance(each, MissingBaseline)}
        return found or {self.baseline_name: self.baseline.time_us}
