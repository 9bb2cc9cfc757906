"""Ratios of times that were measured in turn: their intervals, and when a difference may be claimed.

A round measures every subject twice, the second time in reverse order (A-B-B-A), so that a drift that is linear over
the round cancels. Rounds are the units: samples within a block are dependent, rounds almost independent. They share the
buffers, though: more rounds say nothing of how fast the same code is on others, which is an error of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernel_lsp.core.measurement import Claim

N_RESAMPLES = 2000
TRIM = 0.2
"""Trimmed share of the rounds at each end. The percentile bootstrap of the 20 % trimmed mean holds its level for small
samples and heavy tails (Wilcox, Introduction to Robust Estimation and Hypothesis Testing)."""
MIN_ROUNDS = 4
"""Minimum rounds for an interval: fewer do not show their own spread."""
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
