"""The generations of a run: propose, screen, rank, again; then the full check of the best until one holds.

Everything decided here is a function of the request, the task and the archived verdicts, so a killed run resumes by
doing the same again with the archive answering for what had finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.event import (
    CandidateEvaluated,
    CandidateProposed,
    Event,
    GenerationStarted,
    NewBest,
)
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.evolve.archive import Archive
from kernel_lsp.evolve.search import Proposal, Proposer, SchedulableProgram, Scored

Depth = Literal["screen", "full"]

N_VERIFICATION_ATTEMPTS = 6
"""Full checks before a run gives up: candidates share their structure, so what fails six of them fails the rest."""


class Evaluator(Protocol):
    """What a run needs of a device."""

    n_slots: int

    async def evaluate(self, candidate: Candidate, depth: Depth) -> Verdict:
        """The verdict; never an exception for what a candidate does."""
        ...


@dataclass(frozen=True)
class SearchSettings:
    """How long to search."""

    n_generations: int
    n_proposals: int
    seed: int


@dataclass(frozen=True)
class SearchResult:
    """What the search ended with. `winner` is fully verified, or None. `n_built` counts those that compiled."""

    winner: Candidate | None
    verdict: Verdict | None
    reason: str
    n_proposed: int
    n_built: int
    n_correct: int


class Search:
    """The generations of one run, then the full check of the best until one holds."""

    def __init__(
        self, run_id: str, program: SchedulableProgram, evaluator: Evaluator, archive: Archive, settings: SearchSettings
    ) -> None:
        self._run_id, self._evaluator = run_id, evaluator
        self._archive, self._settings = archive, settings
        self._proposer = Proposer(program, settings.seed)
        self._proposals: dict[str, Proposal] = {}
        self._candidates: dict[str, Candidate] = {}
        self._screened: dict[str, Verdict] = {}
        self._ranked: list[Scored] = []
        self.result: SearchResult | None = None

    async def run(self) -> AsyncIterator[Event]:
        """The events of the whole search; afterwards `result` holds its end."""
        for generation in range(self._settings.n_generations):
            batch = self._propose(generation)
            if not batch:
                break
            yield GenerationStarted(
                generation=generation, n_generations=self._settings.n_generations, n_proposals=len(batch)
            )
            async for event in self._evaluate_generation(batch, generation):
                yield event
        async for event in self._verify_best():
            yield event

    # --- below: a generation

    def _propose(self, generation: int) -> list[Candidate]:
        batch = []
        for proposal in self._proposer.propose(self._settings.n_proposals, generation, self._ranked):
            origin = Origin(
                proposer="generator",
                description=proposal.description,
                schedule=dict(proposal.realized.schedule),
                parents=proposal.parents,
                generation=generation,
            )
            candidate = Candidate(text=proposal.text, origin=origin)
            self._candidates[candidate.id], self._proposals[candidate.id] = candidate, proposal
            batch.append(candidate)
        return batch

    async def _evaluate_generation(self, batch: Sequence[Candidate], generation: int) -> AsyncIterator[Event]:
        best = self._ranked[0].score_us if self._ranked else None
        for candidate in batch:
            self._archive.save_candidate(self._run_id, candidate)
            yield CandidateProposed(
                candidate_id=candidate.id, generation=generation, description=candidate.origin.description
            )
        async for verdict, event in _as_completed(self._screen, batch, self._evaluator.n_slots):
            self._screened[verdict.candidate_id] = verdict
            yield event
            score = score_us(verdict)
            if verdict.is_correct and score is not None and (best is None or score < best):
                best = score
                yield NewBest(candidate_id=verdict.candidate_id, score_us=score, score_kind=_score_kind(verdict))
        self._rank()

    async def _screen(self, candidate: Candidate) -> tuple[Verdict, Event]:
        return await self._evaluate(candidate, "screen")

    async def _evaluate(self, candidate: Candidate, depth: Depth) -> tuple[Verdict, Event]:
        """The verdict from the archive, or a new one, committed before anyone hears of it."""
        known = self._archive.verdict(self._run_id, candidate.id, depth)
        if known is not None:
            return known, _evaluated(known, candidate.origin.generation, from_archive=True)
        verdict = await self._evaluator.evaluate(candidate, depth)
        event = _evaluated(verdict, candidate.origin.generation, from_archive=False)
        self._archive.save_verdict(self._run_id, verdict, event)
        return verdict, event

    def _rank(self) -> None:
        """Best first; ties by id, so that the order in which evaluations finish changes nothing."""
        correct = [v for v in self._screened.values() if v.is_correct]
        scored = [
            Scored(self._proposals[v.candidate_id].realized, v.candidate_id, score)
            for v in correct
            if (score := score_us(v)) is not None
        ]
        self._ranked = sorted(scored, key=lambda s: (s.score_us, s.candidate_id))

    # --- below: the end

    async def _verify_best(self) -> AsyncIterator[Event]:
        refused: list[str] = []
        for scored in self._ranked[:N_VERIFICATION_ATTEMPTS]:
            candidate = self._candidates[scored.candidate_id]
            verdict, event = await self._evaluate(candidate, "full")
            yield event
            if verdict.is_correct:
                self._finish(candidate, verdict, self._why(scored, len(refused)))
                return
            refused.append(outcome_message(verdict))
        self._finish(None, None, self._why_none(refused))

    def _finish(self, winner: Candidate | None, verdict: Verdict | None, reason: str) -> None:
        built = [v for v in self._screened.values() if v.outcome.kind != "build_failed"]
        correct = [v for v in self._screened.values() if v.is_correct]
        self.result = SearchResult(winner, verdict, reason, len(self._candidates), len(built), len(correct))

    def _why(self, winner: Scored, n_refused: int) -> str:
        kind = _score_kind(self._screened[winner.candidate_id])
        others = [scored for scored in self._ranked if scored.candidate_id != winner.candidate_id]
        text = f"lowest {kind} time of {len(self._ranked)} right candidates ({winner.score_us:.3g} us"
        text += f"; the next {others[0].score_us:.3g} us, the slowest {others[-1].score_us:.3g} us)" if others else ")"
        if n_refused:
            text += f"; {n_refused} faster ones failed the full check"
        return text

    def _why_none(self, refused: Iterable[str]) -> str:
        messages = [*refused] or [outcome_message(v) for v in self._screened.values() if not v.is_correct]
        first = messages[0] if messages else "the generator proposed nothing"
        return f"no candidate passed; the first failure: {first}"


def score_us(verdict: Verdict) -> float | None:
    """What the search minimizes: the measured time when there is one, else the estimate; None without either."""
    if verdict.measurement is not None:
        return verdict.measurement.time_us
    return verdict.estimate.time_us if verdict.estimate is not None else None


def outcome_message(verdict: Verdict) -> str:
    """The outcome in one line."""
    outcome = verdict.outcome
    if outcome.kind == "correct":
        return f"right in {len(outcome.cases)} cases"
    if outcome.kind == "build_failed":
        return outcome.findings[0].message if outcome.findings else "it does not compile"
    return outcome.message


def _score_kind(verdict: Verdict) -> Literal["measured", "estimated"]:
    return "measured" if verdict.measurement is not None else "estimated"


def _evaluated(verdict: Verdict, generation: int, *, from_archive: bool) -> CandidateEvaluated:
    score = score_us(verdict)
    return CandidateEvaluated(
        candidate_id=verdict.candidate_id,
        generation=generation,
        depth=verdict.depth,
        outcome=verdict.outcome.kind,
        message=outcome_message(verdict),
        score_us=score,
        score_kind="none" if score is None else _score_kind(verdict),
        from_archive=from_archive,
    )


async def _as_completed(
    evaluate: Callable[[Candidate], Awaitable[tuple[Verdict, Event]]], batch: Sequence[Candidate], n_slots: int
) -> AsyncIterator[tuple[Verdict, Event]]:
    """Each result as it comes, `n_slots` at a time. Leaving early cancels the rest and waits until they are gone."""
    slots = asyncio.Semaphore(n_slots)

    async def one(candidate: Candidate) -> tuple[Verdict, Event]:
        async with slots:
            return await evaluate(candidate)

    tasks = [asyncio.create_task(one(candidate)) for candidate in batch]
    try:
        for finished in asyncio.as_completed(tasks):
            yield await finished
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
