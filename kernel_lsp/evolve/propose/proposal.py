"""The life of one proposal: requested, parsed, compiled and run on the executor, judged, measured, and repaired if
incorrect."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.event import CandidateJudged, CandidateProposed, Event, ProposalDropped
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.core.words import fitted
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.model_records import ProposalEnd, ProposalRecord, Round
from kernel_lsp.evolve.propose.conversation import Conversation
from kernel_lsp.evolve.propose.feedback import Profiler, describe_failure
from kernel_lsp.evolve.propose.population import Member, Plan
from kernel_lsp.evolve.propose.prompt_builder import Question, Questions, assemble
from kernel_lsp.evolve.run.evaluations import Evaluations, outcome_message, score_us
from kernel_lsp.llm.ensemble import Arms, gain_of
from kernel_lsp.llm.judges.calibration import Judgement
from kernel_lsp.llm.judges.judges import Case, Panel, passes, probability_right
from kernel_lsp.llm.prompts import PROMPTS_FOLDER
from kernel_lsp.llm.replies import BadReply, ParsedReply
from kernel_lsp.llm.request import ModelFailed, Purpose, Replied

N_REPAIRS_IN_EVOLUTION = 1
"""Repairs of a proposal that has a correct parent: a new proposal is worth more than a third attempt."""
N_MESSAGE_CHARACTERS = 300


@dataclass(frozen=True)
class Workshop:
    """Services shared by all proposals of a run. `task_target` is the text of candidates' `task:` line; `panel` is None
    without judges."""

    run_id: str
    archive: Archive
    conversation: Conversation
    questions: Questions
    evaluations: Evaluations
    task_target: str
    repair_rounds: int
    profiler: Profiler
    panel: Panel | None
    judge_threshold: float
    tell: Callable[[Event], None]


@dataclass(frozen=True)
class Draw:
    """Result of the draw for a proposal."""

    slot: int
    generation: int
    plan: Plan
    arms: Arms
    hint: Hint | None
    profile: str
    known_programs: frozenset[str]
    best_us: float | None


@dataclass(frozen=True)
class Outcome:
    """The record of a proposal, and its member if it is correct and new."""

    record: ProposalRecord
    member: Member | None
    verdicts: tuple[Verdict, ...]
    n_candidates: int


@dataclass(frozen=True)
class Ended:
    """Reason why there is no candidate to repair further."""

    end: ProposalEnd
    message: str = ""
    cause: str = ""


class Proposal:
    """One proposal. `live` runs it to its end; it raises only errors that end the run."""

    def __init__(self, workshop: Workshop, draw: Draw) -> None:
        self._shop, self._draw = workshop, draw
        self._rounds: list[Round] = []
        self._verdicts: list[Verdict] = []
        self._cost_usd = 0.0

    async def live(self) -> Outcome:
        draw = self._draw
        hint_text = draw.hint.text if draw.hint is not None else ""
        question = self._shop.questions.first(draw.plan, hint_text, draw.profile, draw.slot, draw.arms.temperature)
        for n_left in range(self._n_repairs(), -1, -1):
            found = await self._attempt(question)
            if isinstance(found, Ended):
                return self._outcome(found, None)
            candidate, verdict = found
            if verdict.is_correct:
                return self._outcome(Ended("right"), self._member(candidate, verdict))
            if n_left:
                problem = describe_failure(verdict, candidate.text)
                question = self._shop.questions.repair(candidate.text, problem, draw.slot, draw.arms.temperature)
        return self._outcome(Ended("wrong", _short(outcome_message(verdict))), None)

    def _n_repairs(self) -> int:
        allowed = self._shop.repair_rounds
        return allowed if self._draw.plan.operator == "translate" else min(allowed, N_REPAIRS_IN_EVOLUTION)

    async def _attempt(self, question: Question) -> tuple[Candidate, Verdict] | Ended:
        keys, found = await self._ask(question)
        base = Round(
            operator=question.operator,
            prompt=question.prompt.name,
            prompt_version=question.prompt.version,
            prompt_hash=question.prompt.hash,
            request_keys=keys,
        )
        if isinstance(found, Ended):
            self._rounds.append(base.model_copy(update={"message": found.message}))
            return found
        parsed, model = found
        candidate = self._candidate(parsed, question, model, keys[-1])
        if any(earlier.candidate_id == candidate.id for earlier in self._rounds):
            return Ended("wrong", "the correction changed nothing")
        return await self._assess(candidate, base.model_copy(update={"name": parsed.name, "thought": parsed.thought}))

    async def _ask(self, question: Question) -> tuple[tuple[str, ...], tuple[ParsedReply, str] | Ended]:
        """Return the parsed reply and its model, with one more round for an unreadable reply."""
        reply = await self._reply(question)
        keys: tuple[str, ...] = (question.request.key,)
        if isinstance(reply, ModelFailed):
            return keys, Ended("failed", reply.message, reply.cause)
        parsed = question.read(reply)
        if isinstance(parsed, ParsedReply):
            return keys, (parsed, reply.model)
        again = self._shop.questions.reformat(question, reply, parsed, self._draw.slot)
        second = await self._reply(again)
        keys = (*keys, again.request.key)
        if isinstance(second, ModelFailed):
            return keys, Ended("failed", second.message, second.cause)
        reparsed = again.read(second)
        if isinstance(reparsed, BadReply):
            return keys, Ended("unreadable", f"{reparsed.problem} (before: {parsed.problem})")
        return keys, (reparsed, second.model)

    async def _reply(self, question: Question) -> Replied | ModelFailed:
        outcome = await self._shop.conversation.ask(question.request, self._draw.arms.model, self._draw.slot)
        self._cost_usd += outcome.usage.cost_usd or 0.0
        return outcome

    def _candidate(self, parsed: ParsedReply, question: Question, model: str, key: str) -> Candidate:
        draw = self._draw
        origin = Origin(
            proposer="model",
            description=parsed.name,
            parents=tuple(member.candidate.id for member in draw.plan.members),
            generation=draw.generation,
            model=model,
            operator=question.operator,
            temperature=draw.arms.temperature,
            hint=draw.hint.id if draw.hint is not None else "",
            thought=parsed.thought,
            prompt=f"{question.prompt.name} {question.prompt.version}",
            prompt_hash=question.prompt.hash,
            request_key=key,
        )
        return Candidate(text=assemble(parsed.text, self._shop.task_target), origin=origin)

    async def _assess(self, candidate: Candidate, base: Round) -> tuple[Candidate, Verdict] | Ended:
        """Run compiler and executor, then the judges, then the hardware; each stage only after the previous one
        passed."""
        shop = self._shop
        shop.archive.save_candidate(shop.run_id, candidate)
        shop.tell(
            CandidateProposed(
                candidate_id=candidate.id,
                generation=candidate.origin.generation,
                description=candidate.origin.description,
            )
        )
        verdict, event = await shop.evaluations.evaluate(
            candidate, "precheck" if shop.evaluations.has_precheck else "screen"
        )
        shop.tell(event)
        self._note(base, candidate, verdict)
        if not verdict.is_correct:
            return candidate, verdict
        if (verdict.program_hash or candidate.id) in self._draw.known_programs:
            return Ended("duplicate", "it compiles to a program that is known already")
        if not shop.evaluations.has_precheck:
            return candidate, verdict
        judged = await self._judge(candidate, verdict)
        if isinstance(judged, Ended):
            return judged
        measured, event = await shop.evaluations.evaluate(candidate, "screen", judged)
        shop.tell(event)
        self._rounds.pop()
        self._note(base, candidate, measured)
        return candidate, measured

    async def _judge(self, candidate: Candidate, verdict: Verdict) -> float | Ended:
        """Return the priority on the hardware, or the decision to skip it."""
        shop = self._shop
        if shop.panel is None:
            return 0.0
        case = Case(
            task=shop.questions.task,
            text=candidate.text,
            compiler=compiler_report(verdict),
            checks=f"{outcome_message(verdict)} (small sizes, PTX executor)",
        )
        judgements = await shop.panel.judge(case, self._draw.slot)
        given = tuple(judgement for judgement in judgements if isinstance(judgement, Judgement))
        is_passed = passes(judgements, shop.judge_threshold)
        shop.tell(
            CandidateJudged(
                candidate_id=candidate.id,
                generation=self._draw.generation,
                probabilities={f"{j.judge} ({j.model})": round(j.probability, 4) for j in given},
                is_passed=is_passed,
            )
        )
        self._rounds[-1] = self._rounds[-1].model_copy(update={"judgements": given})
        return probability_right(judgements) if is_passed else Ended("held_back", "the judges hold it back")

    def _note(self, base: Round, candidate: Candidate, verdict: Verdict) -> None:
        self._verdicts.append(verdict)
        self._rounds.append(
            base.model_copy(
                update={
                    "candidate_id": candidate.id,
                    "program_hash": verdict.program_hash,
                    "outcome": verdict.outcome.kind,
                    "message": _short(outcome_message(verdict)),
                }
            )
        )

    def _member(self, candidate: Candidate, verdict: Verdict) -> Member | None:
        time_us = score_us(verdict)
        if time_us is None:
            return None
        return Member(self._draw.slot, self._draw.plan.island, candidate, verdict, time_us)

    def _outcome(self, ended: Ended, member: Member | None) -> Outcome:
        draw, shop = self._draw, self._shop
        if ended.end in ("failed", "unreadable", "duplicate", "held_back"):
            reason = ended.end
            shop.tell(
                ProposalDropped(
                    slot=draw.slot, generation=draw.generation, reason=reason, message=_short(ended.message)
                )
            )
        time_us = member.time_us if member is not None else None
        record = ProposalRecord(
            slot=draw.slot,
            generation=draw.generation,
            island=draw.plan.island,
            operator=draw.plan.operator,
            model=self._model_name(),
            model_index=draw.arms.model,
            temperature=draw.arms.temperature,
            hint_kind=draw.arms.hint_kind,
            hint=draw.hint.id if draw.hint is not None else "",
            parents=tuple(parent.candidate.id for parent in draw.plan.members),
            rounds=tuple(self._rounds),
            end=ended.end,
            message=_short(ended.message),
            cause=ended.cause,
            candidate_id=self._rounds[-1].candidate_id if self._rounds else None,
            time_us=time_us,
            parent_us=draw.best_us,
            gain=gain_of(time_us, draw.best_us),
            cost_usd=self._cost_usd,
        )
        n_candidates = sum(round_.candidate_id is not None for round_ in self._rounds)
        return Outcome(record, member, tuple(self._verdicts), n_candidates)

    def _model_name(self) -> str:
        purpose: Purpose = "translate" if self._draw.plan.operator == "translate" else "propose"
        names = self._shop.conversation.names(purpose)
        return names[self._draw.arms.model % len(names)]


def compiler_report(verdict: Verdict) -> str:
    """Return the compiler's report for the judges."""
    kernels = (
        f"{kernel.kernel}: {kernel.n_registers} registers, {kernel.shared_bytes} bytes shared, "
        f"{kernel.spill_store_bytes + kernel.spill_load_bytes} bytes spilled"
        for kernel in verdict.kernels
    )
    findings = (f"{finding.severity}: {_short(finding.message)}" for finding in verdict.findings)
    return "\n".join(["it compiles", *kernels, *findings])


def _short(message: str) -> str:
    return fitted(message, N_MESSAGE_CHARACTERS)


CATALOGUE_NAME = "hints.toml"


@dataclass(frozen=True)
class Hint:
    """`when` are the facts that must all hold. `kind` is the category whose value the ensemble learns."""

    id: str
    kind: str
    when: frozenset[str]
    text: str


@cache
def catalogue() -> tuple[Hint, ...]:
    """Return every hint, in the order of the file."""
    entries = tomllib.loads((PROMPTS_FOLDER / CATALOGUE_NAME).read_text(encoding="utf-8"))["hint"]
    return tuple(Hint(entry["id"], entry["kind"], frozenset(entry["when"]), entry["text"]) for entry in entries)


def applicable(facts: frozenset[str], hints: Sequence[Hint] | None = None) -> tuple[Hint, ...]:
    """Return the hints whose facts all hold."""
    return tuple(hint for hint in (catalogue() if hints is None else hints) if hint.when <= facts)


def kinds(hints: Sequence[Hint]) -> tuple[str, ...]:
    """Return each kind once, in order."""
    return tuple(dict.fromkeys(hint.kind for hint in hints))


def pick(hints: Sequence[Hint], kind: str, draw: random.Random) -> Hint | None:
    """Pick one hint of that kind; None without any."""
    of_kind = [hint for hint in hints if hint.kind == kind]
    return draw.choice(of_kind) if of_kind else None
