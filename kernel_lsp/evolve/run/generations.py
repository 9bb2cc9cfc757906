"""The generations of a run: propose, screen, rank, repeat; then full checks of the best until one passes. The best two
are not measured once more before that: it changed the winner of 3 of 20 searches, by at most 0.1 %, in 1.4 to 12 s each
(H200, 2026-11-29).

Every decision is a function of the request, the task and the archived verdicts, unless drawing schedules or the search
runs out of time. A killed run resumes by repeating the same steps, with the archive supplying finished results.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.event import (
    CandidateProposed,
    CandidateVerified,
    Event,
    GenerationStarted,
    NewBest,
    StageStarted,
)
from kernel_lsp.core.recommendation import recommend
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.run.evaluations import CandidateVerifier, Evaluations, score_kind, score_us
from kernel_lsp.evolve.run.final_verification import (
    MIN_NOISE,
    Ending,
    Finalist,
    SearchResult,
    TimeLimit,
    device_seconds,
    is_at_limit,
    is_clearly_ahead,
    why_stop_tuning,
)
from kernel_lsp.evolve.run.reuse import TunedSchedule
from kernel_lsp.evolve.run.search import LARGE_TEXT, LIBRARY, Order, Proposal, Proposer, Scored
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.training.features import SchedulableProgram

MAX_DRAWING_S = 10.0
"""Seconds of drawing, after which a generation has the schedules drawn so far. Between the two generations of ResNet18
119 s passed on a busy host (H200, 2026-11-29), and its full check no longer ended."""
PROGRESS_S = 0.2
"""Seconds between two looks for a first correct candidate, once the time for candidates is over."""
N_WITH_TUNED = 2
"""Proposals of the first generation where an earlier search was complete: the default, and its winner."""


@dataclass(frozen=True)
class SearchSettings:
    """Limits of the search."""

    n_generations: int
    n_proposals: int
    seed: int
    given: tuple[Candidate, ...] = ()
    """Kernels to start from, evaluated with the first generation."""
    early_stop: bool = False
    tuned: TunedSchedule | None = None
    """The winner of an earlier search for the same computation, sizes and GPU."""
    limit: TimeLimit | None = None
    """Time after which the search is cut short: its best candidate gets the full check at once."""
    taken: asyncio.Event | None = None
    """Set once the user takes the candidate that was verified early, which ends the search. None: none is."""

    @property
    def is_tuned(self) -> bool:
        """Return True when the earlier search tried at least as many candidates as this one may."""
        return self.tuned is not None and self.tuned.n_tried >= self.n_generations * self.n_proposals


class Search:
    """The generations of one run, then full checks of the best until one passes."""

    def __init__(
        self,
        run_id: str,
        program: SchedulableProgram,
        verifier: CandidateVerifier,
        archive: Archive,
        settings: SearchSettings,
        order: Order | None = None,
    ) -> None:
        """`order` is a trained order of schedules."""
        self._run_id, self._n_slots = run_id, verifier.n_slots
        self._archive, self._settings = archive, settings
        self._evaluations = Evaluations(run_id, archive, verifier)
        self._proposer = Proposer(program, settings.seed, order)
        self._proposals: dict[str, Proposal] = {}
        self._candidates: dict[str, Candidate] = {}
        self._screened: dict[str, Verdict] = {}
        self._default: Candidate | None = None
        self._ranked: list[Scored] = []
        self._abandoned: set[str] = set()
        self._best_us: list[float] = []
        self._is_cut_short, self._is_ended, self._started = False, False, 0.0
        self._early: Finalist | None = None
        """The candidate that passed the full check before the search ended."""
        self.result: SearchResult | None = None

    async def run(self) -> AsyncIterator[Event]:
        """Yield the events of the whole search; afterwards `result` is set."""
        stopped, self._started = "", time.monotonic()
        try:
            for generation in range(self._settings.n_generations):
                if generation == 0:
                    self._begin_default()
                batch = await asyncio.to_thread(self._propose, generation)
                if not batch:
                    self._is_over()
                    break
                yield GenerationStarted(
                    generation=generation, n_generations=self._settings.n_generations, n_proposals=len(batch)
                )
                async for event in self._evaluate_generation(batch, generation):
                    yield event
                is_last = generation + 1 == self._settings.n_generations
                stopped = "" if is_last else self._why_stop(generation + 1)
                if is_last or stopped or self._is_cut_short:
                    break
                async for event in self._verify_early():
                    yield event
            if self._is_cut_short and self._settings.limit is not None:
                stopped = f"time limit for candidates ({self._settings.limit.seconds:.0f} s)"
            if self._is_taken:
                stopped = "the verified kernel was taken"
            verdicts = tuple(self._screened.values())
            given = frozenset(candidate.id for candidate in self._settings.given)
            n_proposed = len(self._candidates)
            ending = Ending(self._in_order(), verdicts, n_proposed, self._evaluations, stopped, given_ids=given)
            async for event in ending.run():
                yield event
            assert ending.result is not None, "an ending has a result"
            self.result = replace(ending.result, is_cut_short=self._is_cut_short)
        finally:
            self._is_ended = True
            await self._evaluations.close()

    async def _verify_early(self) -> AsyncIterator[Event]:
        """Check the best so far in full, once one passes: a person who waits can use it while the search goes on."""
        finalists = self._finalists()
        if self._settings.taken is None or self._early is not None or not finalists:
            return
        best = finalists[0]
        yield StageStarted(message=f"full check of the best candidate so far: {best.candidate.id}")
        verdict, _ = await self._evaluations.evaluate(best.candidate, "full")
        if verdict.is_correct:
            self._early = best
            kind = score_kind(best.screened)
            found = recommend(verdict.times)
            advice = found.headline if found is not None else ""
            yield CandidateVerified(
                candidate_id=best.candidate.id, score_us=best.time_us, score_kind=kind, advice=advice
            )

    @property
    def _is_taken(self) -> bool:
        """Check whether the user waits for no other than the candidate that was verified early."""
        return self._early is not None and self._settings.taken is not None and self._settings.taken.is_set()

    def _in_order(self) -> list[Finalist]:
        """Return the finalists in the order of their full checks. The one that passed comes first where it was taken,
        or where the best is not faster by more than noise."""
        finalists, early = self._finalists(), self._early
        if early is None or not (self._is_taken or finalists[0].time_us > early.time_us * (1.0 - MIN_NOISE)):
            return finalists
        return [early, *(each for each in finalists if each.candidate.id != early.candidate.id)]

    def _begin_default(self) -> None:
        """Begin to evaluate the default schedule: drawing and rendering the others takes up to 4 s."""
        if (default := self._proposer.default) is not None:
            self._default = candidate = _candidate(default, 0)
            self._archive.save_candidate(self._run_id, candidate)
            self._evaluations.begin(candidate, self._depth)

    def _propose(self, generation: int) -> list[Candidate]:
        """Return a generation's candidates. Runs in a thread: candidates are evaluated meanwhile."""
        batch = []
        tuned = self._settings.tuned
        n = N_WITH_TUNED if self._settings.is_tuned and generation == 0 else self._settings.n_proposals
        known = tuned.schedule if tuned is not None else None
        end = time.monotonic() + MAX_DRAWING_S
        is_over = partial(self._is_drawn, end)
        for proposal in self._proposer.propose(n, generation, self._ranked, known, is_over, self._measures):
            candidate = _candidate(proposal, generation)
            self._candidates[candidate.id], self._proposals[candidate.id] = candidate, proposal
            batch.append(candidate)
        return self._with_given(batch) if generation == 0 else batch

    def _is_drawn(self, end: float) -> bool:
        """Check whether drawing schedules took its time, the time for candidates is over, or the run was cancelled."""
        limit = self._settings.limit
        return self._is_ended or self._is_taken or time.monotonic() > end or (limit is not None and limit.is_over)

    def _with_given(self, batch: Sequence[Candidate]) -> list[Candidate]:
        """Put the given kernels first; the generator's own copy of one is the same candidate."""
        given = {candidate.id: candidate for candidate in self._settings.given}
        self._candidates.update(given)
        return [*given.values(), *(candidate for candidate in batch if candidate.id not in given)]

    async def _evaluate_generation(self, batch: Sequence[Candidate], generation: int) -> AsyncIterator[Event]:
        finalists = self._finalists()
        best = finalists[0].time_us if finalists else None
        for candidate in batch:
            self._archive.save_candidate(self._run_id, candidate)
            yield CandidateProposed(
                candidate_id=candidate.id, generation=generation, description=candidate.origin.description
            )
        ending = asyncio.create_task(self._abandon_at_end(batch))
        try:
            async for verdict, event in _as_completed(self._screen, batch, self._n_slots, self._is_enough):
                self._screened[verdict.candidate_id] = verdict
                yield event
                score = score_us(verdict)
                if verdict.is_correct and score is not None and (best is None or score < best):
                    best = score
                    yield NewBest(candidate_id=verdict.candidate_id, score_us=score, score_kind=score_kind(verdict))
                if self._is_at_limit():
                    self._abandon(batch)
        finally:
            await end_tasks(ending)
        self._rank()

    async def _abandon_at_end(self, batch: Sequence[Candidate]) -> None:
        """Abandon what is under way at the end of the time for candidates, once there is one to check in full: an
        executor may still load a network for minutes."""
        limit = self._settings.limit
        if limit is None:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._until_taken(), limit.started + limit.seconds - time.monotonic())
        while not self._finalists():
            await asyncio.sleep(PROGRESS_S)
        self._is_cut_short |= self._abandon(batch)

    async def _until_taken(self) -> None:
        taken = self._settings.taken or asyncio.Event()
        while not self._is_taken:
            await taken.wait()
            await asyncio.sleep(PROGRESS_S)

    def _abandon(self, batch: Sequence[Candidate]) -> bool:
        """Abandon the candidates of a generation that have no verdict; return True if there were any."""
        waiting = (candidate for candidate in batch if candidate.id not in self._screened)
        found = {each.id for each in waiting if self._evaluations.abandon(each, self._depth)}
        self._abandoned |= found
        return bool(found)

    async def _screen(self, candidate: Candidate) -> tuple[Verdict, Event] | None:
        """Return the verdict with its event, or None for a candidate that was abandoned meanwhile, itself or with the
        default that it waits for."""
        waited_for = {candidate.id}
        try:
            if self._default is not None and self._gives_way(candidate):
                waited_for.add(self._default.id)
                default, _ = await self._evaluations.evaluate(self._default, self._depth)
                self._screened[default.candidate_id] = default
                if self._is_enough():
                    return None
            return await self._evaluations.evaluate(candidate, self._depth)
        except asyncio.CancelledError:
            if waited_for & self._abandoned:
                return None
            raise

    def _gives_way(self, candidate: Candidate) -> bool:
        """Check whether a candidate is to reach the GPU behind the default schedule. One that calls libraries in its
        place compiles at once: attention by PyTorch was measured first, and where the time for candidates then ended,
        it was the result (48 ms instead of 11, H200, 2026-11-29). A network's default may take a minute to compile."""
        default = self._default
        if default is None or not self._measures or len(default.text) >= LARGE_TEXT:
            return False
        usual = default.origin.schedule
        return any(value == LIBRARY != usual.get(name) for name, value in candidate.origin.schedule.items())

    @property
    def _depth(self) -> Literal["rank", "screen"]:
        """Return the depth of a first verdict."""
        return "rank" if self._measures else "screen"

    @property
    def _measures(self) -> bool:
        """Return True where times are measured, not estimated."""
        return self._evaluations.baseline_wait_s > 0

    def _is_over(self) -> bool:
        """Check before a candidate starts whether the time limit keeps it from that. The first ones always start."""
        limit = self._settings.limit
        if self._is_taken or (limit is not None and self._screened and limit.is_over):
            self._is_cut_short = True
        return self._is_cut_short

    def _is_enough(self) -> bool:
        """Check before a candidate starts whether it is over, or can gain nothing."""
        return self._is_over() or self._is_at_limit()

    def _is_at_limit(self) -> bool:
        """Check whether a candidate was measured near the speed of light."""
        best = self._finalists()[:1] if self._settings.early_stop and self._measures else ()
        return any(is_at_limit(each.screened, each.time_us) for each in best)

    def _why_stop(self, n_generations: int) -> str:
        """Return the reason to end the search, or empty. The best so far is recorded."""
        finalists = self._finalists()
        if self._is_over():
            return ""
        if not finalists:
            screened = self._screened.values()
            is_untimed = self._measures and bool(screened) and all(each.is_correct for each in screened)
            return "no candidate can be timed" if is_untimed else ""
        if not self._settings.early_stop:
            return ""
        best, tuned = finalists[0], self._settings.tuned
        self._best_us.append(best.time_us)
        if tuned is not None and self._settings.is_tuned and tuned.is_confirmed_by(best.candidate.text, best.time_us):
            return f"the schedule was chosen from {tuned.n_tried} candidates on {tuned.date}"
        device_s = sum(map(device_seconds, self._screened.values()))
        search_s = time.monotonic() - self._started if self._measures else 0.0
        is_ahead = self._measures and is_clearly_ahead(best.time_us, self._screened.values())
        return why_stop_tuning(best.screened, self._best_us, n_generations, device_s, search_s, is_ahead)

    def _rank(self) -> None:
        """Return schedules, best first; a kernel without a schedule cannot be a parent."""
        self._ranked = [
            Scored(self._proposals[finalist.candidate.id].realized, finalist.candidate.id, finalist.time_us)
            for finalist in self._finalists()
            if finalist.candidate.id in self._proposals
        ]

    def _finalists(self) -> list[Finalist]:
        """Return the finalists, best first; ties are ordered by id, independent of completion order."""
        found = [
            Finalist(self._candidates[verdict.candidate_id], verdict, score)
            for verdict in self._screened.values()
            if verdict.is_correct and (score := score_us(verdict)) is not None
        ]
        return sorted(found, key=lambda each: (each.time_us, each.candidate.id))


def _candidate(proposal: Proposal, generation: int) -> Candidate:
    origin = Origin(
        proposer="generator",
        description=proposal.description,
        schedule=dict(proposal.realized.schedule),
        parents=proposal.parents,
        generation=generation,
    )
    return Candidate(text=proposal.text, origin=origin)


async def _as_completed(
    evaluate: Callable[[Candidate], Awaitable[tuple[Verdict, Event] | None]],
    batch: Sequence[Candidate],
    n_slots: int,
    is_over: Callable[[], bool],
) -> AsyncIterator[tuple[Verdict, Event]]:
    """Yield results as they complete, with `n_slots` running. None starts once `is_over`. Leaving early cancels the
    rest and waits for their end."""
    slots = asyncio.Semaphore(n_slots)

    async def one(candidate: Candidate) -> tuple[Verdict, Event] | None:
        async with slots:
            return None if is_over() else await evaluate(candidate)

    tasks = [asyncio.create_task(one(candidate)) for candidate in batch]
    try:
        for finished in asyncio.as_completed(tasks):
            if (found := await finished) is not None:
                yield found
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
