"""Measure the noise of a time against itself: on other buffers, and in another process.

Both are measured once or twice a session and kept. Launches on a stream have a constant cost per process. Two processes
that ran the same kernel were 0.10 to 0.12 us per call apart, for any kernel and for their whole lifetime. As parts of
CUDA graphs they were 0.01 us apart (measured on one H200, 2026-11-21, kernels of 1.5 to 520 us).
"""

from __future__ import annotations

import math

from kernel_lsp.verify.timing.result import self_noise
from kernel_lsp.verify.timing.rounds import (
    Rounds,
    Subject,
    SubjectFailed,
    TimingPlan,
    end,
    measure_in_turn,
    prepare,
)

OURS, AGAIN = "ours", "ours again"
N_SELF_PAIRS = 2
"""A-A pairs with other buffers, per GPU and order of magnitude of the time. The larger noise counts."""
PROBE_DEADLINE_S = 60.0
PROBE_PLAN = TimingPlan(max_rounds=8, n_warm_samples=0)
SAMPLE_OVERHEAD_US = 3.0
"""Microseconds of a graph's launch and two events, divided among a sample's calls: 2.9 us on one H200, 2026-11-21.
Where the two sides have different numbers of calls, so much of it may look like a difference."""
ENQUEUE_US_PER_LAUNCH = 5.0
"""Approximate host time of one launch, in microseconds. It gives the number of launches of a call that is not ours."""


class TimingNoise:
    """The known noise of this session. `device` is an index, or ``cpu``."""

    def __init__(self, device: int | str, seed: int) -> None:
        self._device, self._seed = device, seed
        self._of_buffers: dict[tuple[str, int], list[float]] = {}
        self._of_processes: dict[tuple[int, str, int, str], float] = {}

    def needs_self_pair(self, ours: Subject) -> bool:
        """Check whether the candidate should be measured against itself."""
        return len(self._of_buffers.get(_magnitude(ours), ())) < N_SELF_PAIRS

    def add_self_pair(self, ours: Subject, again: Subject, rounds: Rounds) -> None:
        """Record the noise of a candidate against itself on other buffers."""
        self._of_buffers.setdefault(_magnitude(ours), []).append(self_noise(ours, again, rounds, self._seed))

    async def between(self, ours: Subject, theirs: Subject) -> float:
        """Return the relative difference between these two that may be noise."""
        of_buffers = max(self._of_buffers.get(_magnitude(ours), [0.0]))
        offset_us = await self._offset_us(ours, theirs)
        unequal_us = SAMPLE_OVERHEAD_US * abs(1 / ours.n_calls - 1 / theirs.n_calls)
        extra_us = [unequal_us + offset_us * _n_launches(subject) for subject in (ours, theirs)]
        return max(of_buffers, *(us / subject.time_us for us, subject in zip(extra_us, (ours, theirs), strict=True)))

    async def _offset_us(self, ours: Subject, theirs: Subject) -> float:
        """Return the difference between the two processes' times of one small kernel, each by the method of its
        subject. A process that cannot be probed fails in its next block; until then the offset counts as 0."""
        key = (int(ours.facts["pid"]), ours.method, int(theirs.facts["pid"]), theirs.method)
        if key not in self._of_processes:
            found = await self._probe(ours, theirs)
            if isinstance(found, SubjectFailed):
                return 0.0
            self._of_processes[key] = found
        return self._of_processes[key]

    async def _probe(self, ours: Subject, theirs: Subject) -> float | SubjectFailed:
        probes = []
        for name, subject in (("probe of ours", ours), ("probe of theirs", theirs)):
            request = {"device": self._device, "method": subject.method}
            found = await prepare(name, "probe", subject.worker, "prepare_probe", request, PROBE_DEADLINE_S)
            if isinstance(found, SubjectFailed):
                return found
            probes.append(found)
        rounds = await measure_in_turn(probes, (), PROBE_PLAN, self._seed)
        if isinstance(rounds, SubjectFailed):
            return rounds
        for probe in probes:
            await end(probe)
        return self_noise(probes[0], probes[1], rounds, self._seed) * probes[0].time_us


def _magnitude(subject: Subject) -> tuple[str, int]:
    """Return the GPU, and the time's order of magnitude by factors of four."""
    return str(subject.facts.get("gpu_uuid", "")), int(math.log(max(subject.time_us, 1e-3), 4))


def _n_launches(subject: Subject) -> int:
    return max(1, round(float(subject.facts["enqueue_us"]) / ENQUEUE_US_PER_LAUNCH))
