"""Compute results from blocks: each subject's times, and ours against each baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from typing import Any

from kernel_lsp.core.measurement import ClockSummary, Comparison, Measurement, Ratio
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.verdict import Crashed, Unsupported
from kernel_lsp.process.worker_client import CaseFiles, OperationName
from kernel_lsp.verify.timing.rounds import (
    FAR_APART,
    GRAPH,
    MIN_KEPT_ROUNDS,
    Block,
    Round,
    Rounds,
    Subject,
)
from kernel_lsp.verify.timing.statistics import (
    Interval,
    Pair,
    claim,
    log_ratio_interval,
    median_interval,
    noise_floor,
    placement_noise,
    self_ratio_interval,
    widened,
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
