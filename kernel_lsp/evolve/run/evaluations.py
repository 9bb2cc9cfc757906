"""Obtain a run's verdicts: from the archive if available, else from the device, each once, by priority. A verdict is
committed before it is published."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal, Protocol

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.event import CandidateEvaluated
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.process.async_tasks import end_tasks

Depth = Literal["precheck", "rank", "screen", "full"]


class CandidateVerifier(Protocol):
    """Interface that produces verdicts for a run; `evaluate.verifier.Verifier` implements it."""

    n_slots: int

    @property
    def baseline_wait_s(self) -> float:
        """Return the longest time that a full verdict waits for PyTorch's compiled modes; 0 where nothing is timed."""
        ...

    def is_on_gpu(self, candidate_id: str) -> bool:
        """Check whether the candidate occupies a GPU: ending it there would cost the GPU's worker."""
        ...

    async def verify(self, candidate: Candidate, depth: Literal["rank", "screen", "full"]) -> Verdict:
        """Return the verdict; never raise for what a candidate does."""
        ...


class Evaluations:
    """The verdicts of one run. `executor`, if there is one, runs the prechecks: the PTX executor before a GPU."""

    def __init__(
        self, run_id: str, archive: Archive, verifier: CandidateVerifier, executor: CandidateVerifier | None = None
    ) -> None:
        self._run_id, self._archive = run_id, archive
        self._verifier, self._executor = verifier, executor
        self._slots = PrioritySlots(verifier.n_slots)
        self._executor_slots = PrioritySlots(executor.n_slots if executor is not None else 1)
        self._under_way: dict[tuple[str, Depth], asyncio.Task[tuple[Verdict, CandidateEvaluated]]] = {}

    @property
    def has_precheck(self) -> bool:
        return self._executor is not None

    @property
    def baseline_wait_s(self) -> float:
        """Return the verifier's."""
        return self._verifier.baseline_wait_s

    async def evaluate(
        self, candidate: Candidate, depth: Depth, priority: float = 0.0
    ) -> tuple[Verdict, CandidateEvaluated]:
        """Return the verdict and its event. Concurrent requests for the same verdict share one evaluation. Higher
        priorities go first."""
        return await asyncio.shield(self.begin(candidate, depth, priority))

    def begin(
        self, candidate: Candidate, depth: Depth, priority: float = 0.0
    ) -> asyncio.Task[tuple[Verdict, CandidateEvaluated]]:
        """Begin an evaluation unless that has begun; `evaluate` has its result."""
        key = (candidate.id, depth)
        if key not in self._under_way:
            self._under_way[key] = asyncio.create_task(self._evaluate(candidate, depth, priority))
        return self._under_way[key]

    def abandon(self, candidate: Candidate, depth: Depth) -> bool:
        """Cancel an evaluation whose verdict gains nothing, unless it occupies a GPU; return True if it was."""
        task = self._under_way.get((candidate.id, depth))
        return task is not None and not self._verifier.is_on_gpu(candidate.id) and task.cancel()

    async def close(self) -> None:
        """Cancel running evaluations and wait for their end."""
        await end_tasks(*self._under_way.values())

    async def _evaluate(
        self, candidate: Candidate, depth: Depth, priority: float
    ) -> tuple[Verdict, CandidateEvaluated]:
        known = self._archive.verdict(self._run_id, candidate.id, depth)
        if known is not None:
            return known, evaluated_event(known, candidate.origin.generation, from_archive=True)
        if depth == "precheck":
            assert self._executor is not None, "only a run with an executor of its own prechecks"
            async with self._executor_slots.taken(priority):
                verdict = await self._executor.verify(candidate, "screen")
            verdict = verdict.model_copy(update={"depth": "precheck"})
        else:
            async with self._slots.taken(priority):
                verdict = await self._verifier.verify(candidate, depth)
        event = evaluated_event(verdict, candidate.origin.generation, from_archive=False)
        self._archive.save_verdict(self._run_id, verdict, event)
        return verdict, event


class PrioritySlots:
    """A semaphore whose waiters are served by priority, then by arrival."""

    def __init__(self, n_slots: int) -> None:
        self._n_free = n_slots
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()

    @asynccontextmanager
    async def taken(self, priority: float) -> AsyncIterator[None]:
        await self._acquire(priority)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, priority: float) -> None:
        if self._n_free > 0 and not self._waiting:
            self._n_free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (-priority, next(self._arrivals), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release()  # the slot was granted at the moment of the cancellation
            raise

    def _release(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._n_free += 1


def score_us(verdict: Verdict) -> float | None:
    """Return the search's objective: the measured time if there is one, else the estimate; None without either."""
    if verdict.measurement is not None:
        return verdict.measurement.time_us
    return verdict.estimate.time_us if verdict.estimate is not None else None


def score_kind(verdict: Verdict) -> Literal["measured", "estimated"]:
    """Return the kind of a verdict's score."""
    return "measured" if verdict.measurement is not None else "estimated"


def outcome_message(verdict: Verdict) -> str:
    """Summarise the outcome in one line."""
    outcome = verdict.outcome
    if outcome.kind == "correct":
        return f"passed {len(outcome.cases)} test cases"
    if outcome.kind == "build_failed":
        return outcome.findings[0].message if outcome.findings else "it does not compile"
    return outcome.message


def evaluated_event(verdict: Verdict, generation: int, *, from_archive: bool) -> CandidateEvaluated:
    """Return a verdict's event for listeners."""
    score = score_us(verdict)
    return CandidateEvaluated(
        candidate_id=verdict.candidate_id,
        generation=generation,
        depth=verdict.depth,
        outcome=verdict.outcome.kind,
        message=outcome_message(verdict),
        score_us=score,
        score_kind="none" if score is None else score_kind(verdict),
        from_archive=from_archive,
    )
