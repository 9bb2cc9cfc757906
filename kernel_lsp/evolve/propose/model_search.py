"""Search with models: proposals overlap, and each knows a fixed set of earlier results.

Proposal number n knows the results of the proposals up to n - W, no more and no less, where W is a generation's size.
So W proposals are requested, compiled, checked and timed concurrently, and a slow model never keeps the device waiting
for one reply. Every prompt is still a function of replies and verdicts alone: the same replies give the same run,
independent of their timing, and a killed run resumes as if it had not been killed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.event import CandidateProposed, Event, GenerationStarted, NewBest
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.errors import RepliesAwaited
from kernel_lsp.evolve.agent.multi_turn import AgentProposal
from kernel_lsp.evolve.archive.model_records import ModelRecords
from kernel_lsp.evolve.propose.feedback import ProfileDigest, facts_of_kernel
from kernel_lsp.evolve.propose.population import SEED_SLOT, Member, Plan, plan_proposal, ranked
from kernel_lsp.evolve.propose.proposal import Draw, Outcome, Proposal, Workshop, applicable, kinds, pick
from kernel_lsp.evolve.run.evaluations import score_kind, score_us
from kernel_lsp.evolve.run.final_verification import Ending, Finalist, SearchResult, why_give_up, why_stop
from kernel_lsp.evolve.run.request import ModelChoices
from kernel_lsp.evolve.run.search import Proposer
from kernel_lsp.llm.ensemble import Ensemble, Pull
from kernel_lsp.llm.patience import Spending
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.training.features import SchedulableProgram

N_SEEDS = 4
"""Schedules of the generator that the search starts from: the default and neighbours."""

UNPROFILED = ("translate", "agent")
"""Operators whose prompts begin without a profile and a hint: agents ask for them."""


@dataclass(frozen=True)
class ModelSearchSettings:
    """Budget of a search, and facts about the task. `floor_bytes` and `floor_us` are lower bounds of any kernel."""

    n_generations: int
    n_proposals: int
    seed: int
    choices: ModelChoices
    task_facts: frozenset[str]
    floor_us: float
    floor_bytes: int
    deadline_s: float
    given: tuple[Candidate, ...] = ()
    """Kernels to begin from. They take the places of the generator's schedules, the default of which stays."""


class ModelSearch:
    """One run's search. `make_workshop` is given where events go. `program` is None where the generator has no rule."""

    def __init__(
        self,
        make_workshop: Callable[[Callable[[Event], None]], Workshop],
        records: ModelRecords,
        program: SchedulableProgram | None,
        settings: ModelSearchSettings,
    ) -> None:
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._shop = make_workshop(self._events.put_nowait)
        self._records, self._program, self._settings = records, program, settings
        choices = settings.choices
        n_models = len(self._shop.conversation.names("propose"))
        self._ensemble = Ensemble(n_models, choices.temperatures, choices.ensemble, settings.seed)
        self._seeds: list[Member] = []
        self._seed_verdicts: list[Verdict] = []
        self._draws: list[Draw] = []
        self._tasks: list[asyncio.Task[Outcome]] = []
        self._best_us: float | None = None
        self._started_s = time.monotonic()
        self._stopped = ""
        self.result: SearchResult | None = None

    async def run(self) -> AsyncIterator[Event]:
        """The events of the whole search; afterwards `result` holds its end."""
        driver = asyncio.create_task(self._drive())
        driver.add_done_callback(lambda _: self._events.put_nowait(None))
        try:
            while (event := await self._events.get()) is not None:
                yield event
            await driver
        finally:
            await end_tasks(driver, *self._tasks)
            await self._shop.evaluations.close()

    @property
    def spending(self) -> Spending:
        """Return the spending of the whole run, including the time before a resume."""
        return self._shop.conversation.spending

    async def _drive(self) -> None:
        await self._evaluate_seeds()
        settings = self._settings
        for slot in range(settings.n_generations * settings.n_proposals):
            await self._settled(slot)
            self._stopped = self._why_stop(slot)
            if self._stopped:
                break
            if slot % settings.n_proposals == 0:
                self._say_generation(slot // settings.n_proposals)
            self._draws.append(await self._draw(slot))
            self._tasks.append(asyncio.create_task(self._live(self._draws[slot])))
        await self._end(await self._outcomes())

    async def _live(self, draw: Draw) -> Outcome:
        kind = AgentProposal if draw.plan.operator == "agent" else Proposal
        outcome = await kind(self._shop, draw).live()
        self._records.save_proposal(outcome.record)
        if outcome.member is not None:
            self._note_best(outcome.member)
        return outcome

    async def _settled(self, slot: int) -> None:
        """Wait for all that proposal `slot` may know. A proposal that broke the run raises here, at once; one that
        waits for a person does when the others can do nothing more either."""
        await self._done(self._tasks[: self._n_known(slot)])
        if any(_is_awaited(task) for task in self._tasks[: self._n_known(slot)]):
            await self._outcomes()

    async def _outcomes(self) -> list[Outcome]:
        """Return the outcomes of all proposals. Raises RepliesAwaited when only proposals that wait for a person are
        left."""
        await self._done(self._tasks)
        n_awaited = sum(map(_is_awaited, self._tasks))
        if n_awaited:
            raise RepliesAwaited(f"replies to {n_awaited} prompts are awaited", next_step="reply, then resume the run")
        return [task.result() for task in self._tasks]

    async def _done(self, wanted: Sequence[asyncio.Task[Outcome]]) -> None:
        while not all(task.done() for task in wanted):
            pending = [task for task in self._tasks if not task.done()]
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            self._raise_failures()
        self._raise_failures()

    def _raise_failures(self) -> None:
        for task in self._tasks:
            if task.done() and not _is_awaited(task):
                task.result()

    def _n_known(self, slot: int) -> int:
        return max(0, slot - self._settings.n_proposals + 1)

    def _known(self, slot: int) -> list[Outcome]:
        return [task.result() for task in self._tasks[: self._n_known(slot)]]

    async def _draw(self, slot: int) -> Draw:
        """Draw the plan of proposal `slot`, a function of the slot's number and of the outcomes that it knows."""
        settings, choices = self._settings, self._settings.choices
        known = self._known(slot)
        members = [*self._seeds, *(outcome.member for outcome in known if outcome.member is not None)]
        plan = plan_proposal(choices.strategy, slot, settings.n_proposals, members, choices.islands, settings.seed)
        best = ranked(members)
        profile = await self._profile(plan, best)
        facts = settings.task_facts | frozenset(profile.facts)
        if plan.parent is not None:
            facts |= facts_of_kernel(plan.parent.verdict, settings.floor_bytes)
        hints = applicable(facts) if plan.operator not in UNPROFILED else ()
        arms = self._ensemble.draw(slot, self._pulls(slot, known), kinds(hints))
        hint = pick(hints, arms.hint_kind, random.Random(f"{settings.seed}:hint:{slot}"))
        return Draw(
            slot=slot,
            generation=slot // settings.n_proposals,
            plan=plan,
            arms=arms,
            hint=hint,
            profile=profile.summary,
            known_programs=frozenset(member.identity for member in members),
            best_us=best[0].time_us if best else None,
        )

    async def _profile(self, plan: Plan, best: Sequence[Member]) -> ProfileDigest:
        """Profile the parent where it is the best so far. Profiles cost seconds, so no others are made."""
        if plan.operator in UNPROFILED or plan.parent is None or plan.parent is not best[0]:
            return ProfileDigest()
        return await self._shop.profiler.digest(plan.parent.candidate)

    def _pulls(self, slot: int, known: Sequence[Outcome]) -> list[Pull]:
        """Draws so far; those under way have no gain yet."""
        settled = [Pull(d.arms, o.record.gain, o.record.cost_usd) for d, o in zip(self._draws, known, strict=False)]
        return settled + [Pull(draw.arms) for draw in self._draws[len(known) : slot]]

    def _why_stop(self, slot: int) -> str:
        settled = (task.result().record for task in self._tasks if task.done() and not _is_awaited(task))
        spent = next((record for record in settled if record.cause == "budget"), None)
        if spent is not None:
            return f"the budget is spent: {spent.message}"
        if time.monotonic() - self._started_s > self._settings.deadline_s:
            return f"the run's {self._settings.deadline_s:.0f} s are over"
        refused = self._shop.conversation.why_refused()
        if refused:
            return f"no model can be asked: {refused}"
        known = self._known(slot)
        failed = why_give_up(*_failures(known))
        if failed or self._settings.choices.early_stop == "off":
            return failed
        best = ranked([*self._seeds, *(outcome.member for outcome in known if outcome.member is not None)])
        n_proposals, floor_us = self._settings.n_proposals, self._settings.floor_us
        return why_stop(self._history(known), best[0], floor_us, n_proposals) if best else ""

    def _history(self, known: Sequence[Outcome]) -> tuple[float | None, ...]:
        best = min((member.time_us for member in self._seeds), default=None)
        history = [best]
        for outcome in known:
            if outcome.member is not None and (best is None or outcome.member.time_us < best):
                best = outcome.member.time_us
            history.append(best)
        return tuple(history)

    async def _evaluate_seeds(self) -> None:
        """The given kernels and the generator's schedules, as members of every island."""
        given = {candidate.id: candidate for candidate in self._settings.given}
        candidates = [*given.values(), *(seed for seed in self._generated(len(given)) if seed.id not in given)]
        await asyncio.gather(*(self._evaluate_seed(candidate) for candidate in candidates))
        self._seeds.sort(key=lambda member: (member.time_us, member.candidate.id))

    def _generated(self, n_given: int) -> list[Candidate]:
        """The generator's seeds."""
        if self._program is None:
            return []
        n_seeds = 1 if self._settings.choices.strategy == "best-of-n" else max(1, N_SEEDS - n_given)
        return [
            Candidate(
                text=proposal.text,
                origin=Origin(
                    proposer="generator", description=proposal.description, schedule=dict(proposal.realized.schedule)
                ),
            )
            for proposal in Proposer(self._program, self._settings.seed).propose(n_seeds, 0, [])
        ]

    async def _evaluate_seed(self, candidate: Candidate) -> None:
        shop = self._shop
        shop.archive.save_candidate(shop.run_id, candidate)
        shop.tell(CandidateProposed(candidate_id=candidate.id, generation=0, description=candidate.origin.description))
        verdict, event = await shop.evaluations.evaluate(candidate, "screen")
        shop.tell(event)
        self._seed_verdicts.append(verdict)
        time_us = score_us(verdict)
        if verdict.is_correct and time_us is not None:
            member = Member(SEED_SLOT, 0, candidate, verdict, time_us)
            self._seeds.append(member)
            self._note_best(member)

    def _say_generation(self, generation: int) -> None:
        settings = self._settings
        event = GenerationStarted(
            generation=generation, n_generations=settings.n_generations, n_proposals=settings.n_proposals
        )
        self._shop.tell(event)

    def _note_best(self, member: Member) -> None:
        if self._best_us is None or member.time_us < self._best_us:
            self._best_us = member.time_us
            kind = score_kind(member.verdict)
            self._shop.tell(NewBest(candidate_id=member.candidate.id, score_us=member.time_us, score_kind=kind))

    async def _end(self, outcomes: Sequence[Outcome]) -> None:
        members = ranked([*self._seeds, *(outcome.member for outcome in outcomes if outcome.member is not None)])
        finalists = [Finalist(member.candidate, member.verdict, member.time_us) for member in members]
        verdicts = [*self._seed_verdicts, *(verdict for outcome in outcomes for verdict in outcome.verdicts)]
        n_proposed = len(self._seed_verdicts) + sum(outcome.n_candidates for outcome in outcomes)
        given = frozenset(candidate.id for candidate in self._settings.given)
        ending = Ending(finalists, verdicts, n_proposed, self._shop.evaluations, self._stopped, given)
        async for event in ending.run():
            self._shop.tell(event)
        self.result = ending.result


def _is_awaited(task: asyncio.Task[Outcome]) -> bool:
    """Return True if a proposal stopped because a person has not replied yet."""
    return task.done() and not task.cancelled() and isinstance(task.exception(), RepliesAwaited)


def _failures(known: Sequence[Outcome]) -> tuple[int, str]:
    """Count the most recent consecutive proposals without a reply, and return the reason of the last failure."""
    n_failed = 0
    for outcome in reversed(known):
        if outcome.record.end != "failed":
            break
        n_failed += 1
    return n_failed, known[-1].record.message if n_failed else ""
