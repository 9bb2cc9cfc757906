"""Compute results from blocks: each subject's times with their intervals, and when a difference from a baseline may be
claimed.

A round measures every subject twice, the second time in reverse order (A-B-B-A), so that a drift that is linear over
the round cancels. Rounds are the units: samples within a block are dependent, rounds almost independent. They share the
buffers, though: more rounds say nothing of how fast the same code is on others, which is an error of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from typing import Any

import numpy as np

from kernel_lsp.core.measurement import Claim, ClockSummary, Comparison, Measurement, Ratio
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.verdict import Crashed, Unsupported
from kernel_lsp.process.case_files import CaseFiles
from kernel_lsp.process.worker_client import OperationName
from kernel_lsp.verify.timing.rounds import (
    FAR_APART,
    GRAPH,
    MIN_KEPT_ROUNDS,
    MIN_ROUNDS,
    Block,
    Round,
    Rounds,
    Subject,
)

FACTS = ("gpu", "gpu_uuid", "driver", "torch_version", "date", "tf32", "cudnn_benchmark")
"""Facts of a preparation that every measurement carries."""


def measurement(subject: Subject, rounds: Rounds, bound: BoundOperation, seed: int) -> Measurement:
    """Return the median of a subject's cold samples, its interval, and the other samples' medians."""
    blocks = rounds.blocks(subject.name)
    time_us = median_interval([block.cold_us for block in blocks], seed)
    visible = [tensor for tensor in bound.tensors if tensor.role != "scratch"]
    return Measurement(
        time_us=time_us.value,
        low_us=time_us.low,
        high_us=time_us.high,
        n_samples=sum(len(block.cold_us) for block in blocks),
        cache="cold",
        interval="bootstrap",
        warm_us=_median_of(block.warm_us for block in blocks),
        operator_us=_median_of(block.operator_us for block in blocks),
        n_calls_per_sample=subject.n_calls,
        method=GRAPH if subject.method == GRAPH else "stream",
        resolution_us=float(subject.facts["resolution_us"]) / subject.n_calls,
        shapes={tensor.name: tensor.shape for tensor in visible},
        dtypes={tensor.name: tensor.dtype.value for tensor in visible},
        clocks=clock_summary(blocks),
        **{name: subject.facts[name] for name in FACTS},
    )


def ratio(ours: Subject, theirs: Subject, rounds: Rounds, measured_noise: float, seed: int) -> Ratio:
    """Return theirs over ours, of the rounds that both were in. The interval covers other rounds and other buffers.
    `measured_noise` is the relative noise of A-A pairs on this GPU. A baseline with too few rounds to be compared with
    itself differs only where it is far from ours."""
    shared = rounds.of(theirs.name, ours.name)
    their_pairs, our_pairs = _pairs(theirs, shared), _pairs(ours, shared)
    placement = placement_noise(*(_times_by_place(subject, rounds) for subject in (ours, theirs)))
    found = widened(log_ratio_interval(their_pairs, our_pairs, seed), placement)
    own = [
        self_ratio_interval(pairs, seed)
        for pairs in (their_pairs, _pairs(ours, rounds.kept))
        if len(pairs) >= MIN_KEPT_ROUNDS
    ]
    if len(shared) < MIN_KEPT_ROUNDS:
        measured_noise = max(measured_noise, math.expm1(FAR_APART))
    resolution = max(_relative_resolution(subject) for subject in (ours, theirs))
    floor = noise_floor(own, measured_noise, resolution)
    return Ratio(
        value=math.exp(found.value),
        low=math.exp(found.low),
        high=math.exp(found.high),
        noise_floor=floor,
        claim=claim(found, floor),
        n_rounds=len(shared),
        throttled_share=rounds.throttled_share,
    )


def self_noise(subject: Subject, again: Subject, rounds: Rounds, seed: int) -> float:
    """Return the relative difference between a subject and the same on other buffers, at the far end of its
    interval."""
    found: Interval = log_ratio_interval(_pairs(again, rounds.kept), _pairs(subject, rounds.kept), seed)
    return math.expm1(found.largest_magnitude)


def clock_summary(blocks: Sequence[Block]) -> ClockSummary:
    """Return the range of NVML's readings during the blocks."""
    known = [block.clocks for block in blocks if "reason" not in block.clocks]
    if not known:
        reasons = [str(block.clocks["reason"]) for block in blocks if "reason" in block.clocks]
        return ClockSummary(reason=reasons[0] if reasons else "not logged")
    throttled = sorted(set(chain.from_iterable(clocks.get("throttled", ()) for clocks in known)))
    return ClockSummary(
        is_known=True,
        reason="",
        low_sm_mhz=int(min(_readings(known, "sm_mhz"))),
        high_sm_mhz=int(max(_readings(known, "sm_mhz"))),
        low_memory_mhz=int(min(_readings(known, "memory_mhz"))),
        high_memory_mhz=int(max(_readings(known, "memory_mhz"))),
        highest_temperature_c=int(max(_readings(known, "temperature_c"))),
        highest_power_w=max(_readings(known, "power_w")),
        throttle_reasons=tuple(throttled),
    )


def _pairs(subject: Subject, rounds: Sequence[Round]) -> list[Pair]:
    return [Pair(*(median(block.cold_us) for block in found.blocks[subject.name])) for found in rounds]


def _times_by_place(subject: Subject, rounds: Rounds) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for block in rounds.blocks(subject.name):
        for time_us, place in zip(block.cold_us, block.places, strict=True):
            found.setdefault(place, []).append(time_us)
    return found


def _relative_resolution(subject: Subject) -> float:
    """Return the relative size of one timer tick in a sample: smaller differences are not resolved."""
    return float(subject.facts["tick_us"]) / subject.n_calls / subject.time_us


def _median_of(samples: Any) -> float | None:
    found = list(chain.from_iterable(samples))
    return median(found) if found else None


def _readings(known: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [float(clocks[name]) for clocks in known if name in clocks] or [0.0]


@dataclass(frozen=True)
class TimedOperation:
    """An operation to time: a candidate that its worker has loaded, bound to the shapes of a case's files. `expected`
    are the fingerprints of judged outputs, by name. `is_ranking` asks for few rounds, beside one baseline, once every
    mode of `torch.compile` that is ready has a time; an operation with the same `code` and launches is not timed again
    then. Empty `code` is like no other."""

    candidate_id: str
    bound: BoundOperation
    direction: OperationName
    files: CaseFiles = field(repr=False)
    expected: Mapping[str, int] = field(default_factory=dict)
    is_ranking: bool = False
    code: str = ""


@dataclass(frozen=True)
class Timed:
    """The time with its baselines."""

    comparison: Comparison


@dataclass(frozen=True)
class NotTimed:
    """PyTorch itself could not be timed, through no fault of the candidate."""

    reason: str


@dataclass(frozen=True)
class TimingFailure:
    """No time, through a fault of the candidate or of the evaluation."""

    message: str


class CandidateBroke(TimingFailure):
    """The candidate's process crashed, hung or ran out of memory while it was timed: replace it."""


class WrongWhileTimed(TimingFailure):
    """Timed calls differed from judged calls: outputs or inputs changed, or a guard was overwritten."""


class ImpossibleTime(TimingFailure):
    """The time is shorter than the hardware allows: an error of the evaluation, not a speedup."""


TimingOutcome = Timed | CandidateBroke | WrongWhileTimed | ImpossibleTime | NotTimed


def verdict_of(failure: TimingFailure, operation: str, device: str) -> Crashed | Unsupported:
    """Convert a failure into a verdict."""
    if isinstance(failure, ImpossibleTime):
        return Unsupported(message=f"{operation}: {failure.message}")
    return Crashed(message=f"{operation}, while timed on {device}: {failure.message}")


N_RESAMPLES = 2000
TRIM = 0.2
"""Trimmed share of the rounds at each end. The percentile bootstrap of the 20 % trimmed mean holds its level for small
samples and heavy tails (Wilcox, Introduction to Robust Estimation and Hypothesis Testing)."""
T_QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228,
               12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000}  # fmt: skip
"""97.5 % points of Student's t by degrees of freedom."""
MIN_NOISE_FLOOR = 0.015
"""Minimum relative noise. A kernel against itself in another process was within 0.4 % of 1 on an H200, for five kernels
of 5 to 520 us. A transpose, whose time depends on its buffers' addresses, was within 1.8 %
(benchmarks/results/gpu_repeatability-*)."""


@dataclass(frozen=True)
class Interval:
    """A statistic with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def largest_magnitude(self) -> float:
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True)
class Pair:
    """Block medians of one subject in one round, in microseconds: its first and its second block."""

    first_us: float
    second_us: float

    @property
    def log_mean(self) -> float:
        return (math.log(self.first_us) + math.log(self.second_us)) / 2


def log_ratio_interval(theirs: Sequence[Pair], ours: Sequence[Pair], seed: int) -> Interval:
    """Return the interval of log(theirs / ours), paired by round. Raises ValueError for fewer than `MIN_ROUNDS`
    rounds."""
    return bootstrap([their.log_mean - our.log_mean for their, our in zip(theirs, ours, strict=True)], seed)


def self_ratio_interval(pairs: Sequence[Pair], seed: int) -> Interval:
    """Return the interval of a subject's log ratio with itself, from its existing rounds.

    Two consecutive rounds hold its blocks 1 2 3 4; 1 and 4 against 2 and 3 form an A-B-B-A round of it alone. Raises
    ValueError for fewer than twice `MIN_ROUNDS` rounds.
    """
    values = []
    for earlier, later in zip(pairs[0::2], pairs[1::2], strict=False):
        outer = math.log(earlier.first_us) + math.log(later.second_us)
        inner = math.log(earlier.second_us) + math.log(later.first_us)
        values.append((outer - inner) / 2)
    return bootstrap(values, seed)


def placement_noise(*sides: Mapping[int, Sequence[float]]) -> float:
    """Return the uncertainty of a log ratio for the sets of buffers that were drawn on either side: a 95 % half width.

    Each side has a subject's times by set. The means over the sets' medians are compared as in Welch's test. A single
    set does not show how others differ, and counts as none.
    """
    medians = [np.log([np.median(times_us) for times_us in side.values()]) for side in sides if len(side) > 1]
    variances = [float(logs.var(ddof=1)) / len(logs) for logs in medians]
    total = sum(variances)
    if total == 0:
        return 0.0
    degrees = total**2 / sum(each**2 / (len(logs) - 1) for each, logs in zip(variances, medians, strict=True))
    return _t_quantile(int(degrees)) * math.sqrt(total)


def widened(interval: Interval, half_width: float) -> Interval:
    """Return the interval with the half width of an independent error added to each side, in quadrature."""
    low, high = (math.hypot(end - interval.value, half_width) for end in (interval.low, interval.high))
    return Interval(interval.value, interval.value - low, interval.value + high)


def noise_floor(self_ratios: Sequence[Interval], measured: float, resolution: float) -> float:
    """Return the relative difference that counts as noise: the largest difference of anything here from itself.

    `measured` comes from A-A pairs on this GPU, with other buffers and in another process. `resolution` is the timer's,
    relative to the time.
    """
    own = [math.expm1(interval.largest_magnitude) for interval in self_ratios]
    return max([MIN_NOISE_FLOOR, measured, resolution, *own])


def claim(log_ratio: Interval, floor: float) -> Claim:
    """Return the claim of ours against theirs: only a difference beyond the noise."""
    threshold = math.log1p(floor)
    if log_ratio.low > threshold:
        return "faster"
    return "slower" if log_ratio.high < -threshold else "no difference"


def bootstrap(values: Sequence[float], seed: int) -> Interval:
    """Return the trimmed mean and its percentile interval, expanded for small samples as in Hesterberg ("What Teachers
    Should Know About the Bootstrap", 2015, section 5.2). Raises ValueError for fewer than `MIN_ROUNDS` values."""
    given = np.asarray(values, dtype=np.float64)
    _need(len(given))
    draw = np.random.default_rng(seed)
    resampled = given[draw.integers(0, len(given), size=(N_RESAMPLES, len(given)))]
    low, high = np.quantile(_trimmed_mean(resampled), _expanded_quantiles(len(given)))
    return Interval(float(_trimmed_mean(given[None])[0]), float(low), float(high))


def median_interval(blocks: Sequence[Sequence[float]], seed: int) -> Interval:
    """Return the median of all samples, and its interval from resampling whole blocks. Raises ValueError for fewer than
    `MIN_ROUNDS` blocks."""
    medians = np.array([np.median(block) for block in blocks], dtype=np.float64)
    _need(len(medians))
    draw = np.random.default_rng(seed)
    resampled = np.median(medians[draw.integers(0, len(medians), size=(N_RESAMPLES, len(medians)))], axis=1)
    low, high = np.quantile(resampled, _expanded_quantiles(len(medians)))
    value = float(np.median(np.concatenate([np.asarray(block, dtype=np.float64) for block in blocks])))
    return Interval(value, min(float(low), value), max(float(high), value))


def _need(n: int) -> None:
    if n < MIN_ROUNDS:
        raise ValueError(f"{n} rounds say nothing about their own spread: {MIN_ROUNDS} are needed")


def _trimmed_mean(rows: np.ndarray) -> np.ndarray:
    """Return the mean of each row, without `TRIM` of its values at each end. Shape (rows, n) to (rows,)."""
    n = rows.shape[1]
    n_cut = int(TRIM * n)
    return np.sort(rows, axis=1)[:, n_cut : n - n_cut].mean(axis=1)


def _expanded_quantiles(n: int) -> tuple[float, float]:
    """Return the percentiles that stand for 2.5 % and 97.5 % with `n` values: Phi(-sqrt(n / (n - 1)) t)."""
    degrees = n - 1
    tail = 0.5 * math.erfc(math.sqrt(n / degrees) * _t_quantile(degrees) / math.sqrt(2))
    return tail, 1 - tail


def _t_quantile(degrees: int) -> float:
    """Return the quantile of the table's next lower degrees of freedom, which is slightly too wide."""
    return T_QUANTILES[max((known for known in T_QUANTILES if known <= degrees), default=min(T_QUANTILES))]
