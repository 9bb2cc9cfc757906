"""Blocks of samples, alternating between processes: every subject twice a round, A-B-B-A, in an order drawn anew.

While one process runs a block the others are idle. The preparation of each sample is the same for all.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, Protocol

from kernel_lsp.errors import ConnectionLostError, KernelLspError

MIN_ROUNDS = 4
"""Minimum rounds for an interval: fewer do not show their own spread."""
BLOCK_DEADLINE_S = 60.0
BLOCK_US = 3000.0
"""Cold samples of a block, in microseconds: short against clock changes, long against a request to a process."""
MIN_SAMPLES, MAX_SAMPLES = 3, 8
MAX_SAMPLE_US = 2000.0
"""Maximum sample of a baseline with as many calls as the candidate, in microseconds: much slower baselines need no such
precision."""
OPERATOR_US = 1000.0
"""Calls from Python per round, in microseconds."""
MAX_OPERATOR_CALLS = 16
FLUSH_US = 60.0
"""Flush of L2, in microseconds: 120 MB read and written at 4.3 TB/s."""
GRAPH: Final = "graph"
GRAPH_ENQUEUE_US = 50.0
"""Wait for the host to launch a graph, in microseconds."""
MIN_KEPT_ROUNDS = 2 * MIN_ROUNDS
"""Minimum rounds to keep, so that the noise of a subject against itself has an interval, too."""
FAR_APART, ALIKE = math.log(1.1), 0.01
"""Log ratios of times: beyond the first, or inside the second, in every round, more rounds would not change the claim.
The second is smaller than any claimed difference (`verify.timing.result.MIN_NOISE_FLOOR`)."""
N_FIRST_ROUNDS = MIN_ROUNDS
"""Rounds without throttling after which a baseline that was far slower than another in each is dropped."""


class Refusal(Protocol):
    """The reason why there is no answer."""

    @property
    def message(self) -> str: ...


class Asker(Protocol):
    """The part of a conversation with a worker that timing needs."""

    async def ask(self, command: str, arguments: Mapping[str, Any], *, deadline_s: float) -> dict[str, Any] | Refusal:
        """Send one request and return its answer. Returns a refusal or raises KernelLspError when the worker is at
        fault or gone."""
        ...


@dataclass(frozen=True)
class TimingPlan:
    """The amount of measurement. `budget_s` and the first round's duration determine the number of rounds between the
    bounds. Clear results need fewer."""

    min_rounds: int = MIN_KEPT_ROUNDS
    max_rounds: int = 12
    n_warm_samples: int = 3
    has_operator_calls: bool = True
    budget_s: float = 0.45


@dataclass(frozen=True)
class Subject:
    """A subject to time, prepared in a worker under `subject_id`. `facts` is the answer of its preparation."""

    name: str
    subject_id: str
    worker: Asker
    facts: Mapping[str, Any] = field(repr=False)

    @property
    def time_us(self) -> float:
        """Return the time of one call, from a probe."""
        return float(self.facts["time_us"])

    @property
    def n_calls(self) -> int:
        """Return the calls per sample."""
        return int(self.facts["n_calls"])

    @property
    def method(self) -> str:
        """Return the launch method: `GRAPH` or ``stream``."""
        return str(self.facts["method"])

    @property
    def n_samples(self) -> int:
        """Return the cold samples per block."""
        if self.is_long:
            return 1
        return max(MIN_SAMPLES, min(MAX_SAMPLES, int(BLOCK_US / self.sample_us)))

    @property
    def is_long(self) -> bool:
        """Check whether one call is a block. Its preparation has then woken the clocks, so that the first round
        counts."""
        return bool(self.facts["is_long"])

    @property
    def n_operator_calls(self) -> int:
        """Return the calls from Python per round."""
        per_call = max(self.time_us, float(self.facts["enqueue_us"]), 1e-3)
        return max(1, min(int(OPERATOR_US / per_call), MAX_OPERATOR_CALLS))

    @property
    def sample_us(self) -> float:
        """Return the approximate time of one cold sample with its preparation."""
        enqueue_us = GRAPH_ENQUEUE_US if self.method == GRAPH else 2 * self.n_calls * float(self.facts["enqueue_us"])
        return FLUSH_US + enqueue_us + self.n_calls * self.time_us


@dataclass(frozen=True)
class Block:
    """Samples of one subject in microseconds per call, and the clocks meanwhile. `places` has the set of buffers at
    which each cold sample began."""

    cold_us: tuple[float, ...]
    places: tuple[int, ...]
    warm_us: tuple[float, ...]
    operator_us: tuple[float, ...]
    clocks: Mapping[str, Any]

    @property
    def is_throttled(self) -> bool:
        """Check whether the GPU throttled."""
        return bool(self.clocks.get("throttled"))


@dataclass(frozen=True)
class Round:
    """The two blocks of each subject of the round, by name."""

    blocks: Mapping[str, tuple[Block, Block]]

    @property
    def is_throttled(self) -> bool:
        return any(block.is_throttled for pair in self.blocks.values() for block in pair)

    def log_ratio(self, theirs: str, ours: str) -> float:
        """Return the log ratio of the medians of their blocks to ours."""
        return math.fsum(
            math.log(median(their.cold_us) / median(our.cold_us)) / 2
            for their, our in zip(self.blocks[theirs], self.blocks[ours], strict=True)
        )


@dataclass(frozen=True)
class Rounds:
    """All measured rounds. Throttled rounds are not among the `kept`, for any subject, unless too few were left."""

    all: tuple[Round, ...]

    @property
    def kept(self) -> tuple[Round, ...]:
        calm = tuple(found for found in self.all if not found.is_throttled)
        return calm if len(calm) >= MIN_KEPT_ROUNDS else self.all

    @property
    def throttled_share(self) -> float:
        return sum(found.is_throttled for found in self.all) / len(self.all)

    def of(self, *names: str) -> list[Round]:
        """Return the kept rounds that all of these subjects were in, in order."""
        return [found for found in self.kept if found.blocks.keys() >= set(names)]

    def blocks(self, name: str) -> list[Block]:
        """Return the kept blocks of one subject, in order."""
        return [block for found in self.of(name) for block in found.blocks[name]]


class SubjectFailed(Exception):
    """A subject could not be prepared, or failed while it was timed. `is_gone`: its process ended, timed out or lost
    its device, and is unusable; `is_disconnected`: it was on another machine, and the connection was lost."""

    def __init__(self, name: str, message: str, *, is_gone: bool = False, is_disconnected: bool = False) -> None:
        super().__init__(message)
        self.name, self.message = name, message
        self.is_gone, self.is_disconnected = is_gone, is_disconnected


async def measure_in_turn(
    subjects: Sequence[Subject], baselines: Sequence[Subject], plan: TimingPlan, seed: int
) -> Rounds:
    """Measure rounds of all subjects until each compares clearly with the first. A baseline is dropped once another is
    clearly faster. The first round wakes the clocks and is discarded, unless each call takes long. This and all other
    requests raise SubjectFailed."""
    draw, started, racing = random.Random(seed), time.monotonic(), list(baselines)
    rounds: list[Round] = []
    woken = await _round([*subjects, *racing], plan, draw)
    if all(subject.is_long for subject in (*subjects, *racing)):
        rounds.append(woken)
    n_at_most = _n_rounds(time.monotonic() - started, plan)
    while len(rounds) < n_at_most:
        rounds.append(await _round([*subjects, *racing], plan, draw))
        racing = [each for each in racing if not _is_beaten(each, racing, rounds)]
        if len(rounds) >= plan.min_rounds and len(rounds) % 2 == 0 and _is_clear(rounds, [*subjects, *racing]):
            break
    return Rounds(tuple(rounds))


async def prepare(
    name: str, subject_id: str, worker: Asker, command: str, request: Mapping[str, Any], deadline_s: float
) -> Subject:
    """Have a worker prepare a subject."""
    answer = await _ask(name, worker, command, {"subject": subject_id, **request}, deadline_s)
    return Subject(name, subject_id, worker, answer)


async def aligned(theirs: Subject, ours: Subject) -> Subject:
    """Give theirs as many calls per sample as ours, as far as its samples stay short, and enqueue them as ours are. The
    overhead of a sample then weighs the same on both sides. A stream and a CUDA graph differ by microseconds per
    launch, whatever they compute."""
    longest = max(1, int(MAX_SAMPLE_US / max(theirs.time_us, 1e-3)))
    wanted = min(ours.n_calls, longest, int(theirs.facts["max_calls"]))
    has_calls = theirs.n_calls == wanted or theirs.facts.get("asked_calls") == wanted
    if has_calls and ours.method in (theirs.method, theirs.facts.get("asked_method")):
        return theirs
    request = {"subject": theirs.subject_id, "n_calls": wanted, "method": ours.method}
    answer = await _ask(theirs.name, theirs.worker, "set_calls", request, BLOCK_DEADLINE_S)
    # On a stream it may have fewer than requested, and some have graphs of their own: another request would not help.
    asked = {"asked_calls": wanted, "asked_method": ours.method}
    return Subject(theirs.name, theirs.subject_id, theirs.worker, {**answer, **asked})


async def end(subject: Subject) -> Mapping[str, Any]:
    """Free a subject's buffers; return its process's view of its results."""
    return await _ask(
        subject.name, subject.worker, "end_timing", {"subject": subject.subject_id}, deadline_s=BLOCK_DEADLINE_S
    )


def _n_rounds(round_s: float, plan: TimingPlan) -> int:
    """Return the rounds within the budget, an even number, since two make one round of a subject against itself."""
    affordable = int(plan.budget_s / max(round_s, 1e-9))
    return max(plan.min_rounds, min(plan.max_rounds, affordable)) // 2 * 2


def _is_clear(rounds: Sequence[Round], subjects: Sequence[Subject]) -> bool:
    """Check whether each subject is far from the first, or equal to it, in all of enough rounds without throttling."""
    calm = [found for found in rounds if not found.is_throttled]
    ratios = [[found.log_ratio(other.name, subjects[0].name) for found in calm] for other in subjects[1:]]
    return len(calm) >= MIN_KEPT_ROUNDS and all(
        min(each) > FAR_APART or max(each) < -FAR_APART or max(map(abs, each)) < ALIKE for each in ratios
    )


def _is_beaten(baseline: Subject, racing: Sequence[Subject], rounds: Sequence[Round]) -> bool:
    """Check whether the baseline was far slower than some other in each of enough rounds without throttling."""
    calm = [found for found in rounds if not found.is_throttled]
    return len(calm) >= N_FIRST_ROUNDS and any(
        all(found.log_ratio(baseline.name, other.name) > FAR_APART for found in calm)
        for other in racing
        if other is not baseline
    )


async def _round(subjects: Sequence[Subject], plan: TimingPlan, draw: random.Random) -> Round:
    order = list(subjects)
    draw.shuffle(order)
    found: dict[str, list[Block]] = {subject.name: [] for subject in subjects}
    for subject, is_second in _there_and_back(order):
        found[subject.name].append(await _block(subject, plan, is_second))
    return Round({name: (blocks[0], blocks[1]) for name, blocks in found.items()})


def _there_and_back(order: Sequence[Subject]) -> Iterator[tuple[Subject, bool]]:
    yield from ((subject, False) for subject in order)
    yield from ((subject, True) for subject in reversed(order))


async def _block(subject: Subject, plan: TimingPlan, is_second: bool) -> Block:
    """Request cold samples. Samples that are reported but never compared are taken once a round."""
    n_warm_samples = min(plan.n_warm_samples, 1) if subject.is_long else plan.n_warm_samples
    request = {
        "subject": subject.subject_id,
        "n_samples": subject.n_samples,
        "n_warm_samples": 0 if is_second else n_warm_samples,
        "n_operator_calls": subject.n_operator_calls if plan.has_operator_calls and not is_second else 0,
    }
    answer = await _ask(subject.name, subject.worker, "time_block", request, BLOCK_DEADLINE_S)
    return Block(
        cold_us=tuple(answer["cold_us"]),
        places=tuple(answer["places"]),
        warm_us=tuple(answer["warm_us"]),
        operator_us=tuple(answer["operator_us"]),
        clocks=answer["clocks"],
    )


async def _ask(
    name: str, worker: Asker, command: str, request: Mapping[str, Any], deadline_s: float
) -> Mapping[str, Any]:
    """Return a good answer. Raises SubjectFailed for any other."""
    try:
        answer = await worker.ask(command, request, deadline_s=deadline_s)
    except KernelLspError as error:
        is_disconnected = isinstance(error, ConnectionLostError)
        raise SubjectFailed(name, error.message, is_gone=True, is_disconnected=is_disconnected) from error
    if not isinstance(answer, dict):
        raise SubjectFailed(name, answer.message, is_gone=True)
    if "error" in answer:
        raise SubjectFailed(name, str(answer["error"]["message"]))
    if answer["status"] not in GOOD:
        raise SubjectFailed(name, str(answer["message"]), is_gone=answer["status"] == "crashed")
    return answer


GOOD = ("ready", "timed", "ended")
"""States of good answers; others explain the failure in `message`."""
