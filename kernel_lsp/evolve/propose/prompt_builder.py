"""Build the prompts of proposals, by operator, parse their replies, and convert a model's code to a candidate's text
with our own target in its plan. Archived replies come first, then models within budget and rate limits; each reply is
committed before it is used."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernel_lsp.core.event import Event, ModelCalled
from kernel_lsp.errors import RepliesAwaited
from kernel_lsp.evolve.archive.model_records import SPENDING, ModelRecords
from kernel_lsp.evolve.propose.feedback import describe_profile, describe_times
from kernel_lsp.evolve.propose.population import KernelText, Member, Plan, show, shown
from kernel_lsp.evolve.run.task_text import TaskText
from kernel_lsp.llm.patience import Ledger, Pace, PatientModel, Spending
from kernel_lsp.llm.prompts import Prompts, RenderedPrompt
from kernel_lsp.llm.recording import RecordedReply
from kernel_lsp.llm.replies import BadReply, ParsedReply, parse_edits, parse_rewrite
from kernel_lsp.llm.request import Model, ModelFailed, ModelRequest, Purpose, Replied
from kernel_lsp.llm.specs import Roster


@dataclass(frozen=True)
class Question:
    """A request, and the text to which its reply's edits apply (None for a rewrite)."""

    operator: str
    prompt: RenderedPrompt
    request: ModelRequest
    edited: str | None = None

    def read(self, reply: Replied) -> ParsedReply | BadReply:
        """Parse the reply; return its proposal, or the parse error."""
        return parse_rewrite(reply) if self.edited is None else parse_edits(reply, self.edited)


@dataclass(frozen=True)
class Questions:
    """Build the prompts of one run."""

    prompts: Prompts
    task: TaskText
    related: Sequence[KernelText]
    floor_us: float
    max_tokens: int

    def first(self, plan: Plan, hint: str, profile: str, slot: int, temperature: float) -> Question:
        """Build the first prompt of a proposal. It includes the parent's measured times and its `profile`, or a summary
        of the parent's verdict."""
        make = {"translate": self._translate, "improve": self._improve, "edit": self._edit, "crossover": self._improve}
        feedback = "\n".join(filter(None, (self._times(plan.parent), profile or self._summary(plan.parent))))
        inputs, edited = make[plan.operator](plan, hint, feedback)
        purpose: Purpose = "translate" if plan.operator == "translate" else "propose"
        return self._question(plan.operator, purpose, inputs, slot, temperature, edited)

    def agent(self, plan: Plan, slot: int, temperature: float, n_turns: int) -> Question:
        """Build the first prompt of an agent's conversation."""
        inputs = {"task": self.task, "kernels": shown(plan.members), "related": self.related, "n_turns": n_turns}
        return self._question("agent", "propose", inputs, slot, temperature)

    def repair(self, attempt: str, problem: str, slot: int, temperature: float) -> Question:
        """Build the prompt after an incorrect candidate."""
        inputs = {"task": self.task, "attempt": attempt.strip(), "problem": problem}
        return self._question("repair", "repair", inputs, slot, temperature)

    def reformat(self, question: Question, reply: Replied, bad: BadReply, slot: int) -> Question:
        """Build the prompt after an unreadable reply; used once."""
        is_edit = question.edited is not None
        inputs = {"problem": bad.problem, "reply": reply.text, "is_edit": is_edit}
        again = self._question("reformat", "reformat", inputs, slot, question.request.temperature, question.edited)
        return replace(again, operator=question.operator)

    def _translate(self, plan: Plan, hint: str, feedback: str) -> tuple[dict[str, Any], str | None]:
        return {"task": self.task, "kernels": shown(plan.members), "related": self.related}, None

    def _improve(self, plan: Plan, hint: str, feedback: str) -> tuple[dict[str, Any], str | None]:
        inputs = {
            "task": self.task,
            "kernels": shown(plan.members),
            "hint": hint,
            "feedback": feedback,
        }
        return inputs | ({"related": self.related} if plan.operator == "improve" else {}), None

    def _edit(self, plan: Plan, hint: str, feedback: str) -> tuple[dict[str, Any], str | None]:
        parent = plan.members[0]
        base = show(parent)
        inputs = {
            "task": self.task,
            "kernels": shown(plan.members[1:]),
            "base": base,
            "hint": hint,
            "feedback": feedback,
        }
        return inputs, base.code + "\n"

    def _times(self, member: Member | None) -> str:
        return "" if member is None else describe_times(member.verdict)

    def _summary(self, member: Member | None) -> str:
        return "" if member is None else describe_profile(member.verdict, self.floor_us)

    def _question(
        self,
        name: str,
        purpose: Purpose,
        inputs: dict[str, Any],
        slot: int,
        temperature: float,
        edited: str | None = None,
    ) -> Question:
        prompt = self.prompts.render(name, inputs)
        request = ModelRequest(
            purpose=purpose,
            messages=prompt.messages,
            sample=slot,
            temperature=temperature,
            max_tokens=self.max_tokens,
            prompt=name,
            prompt_hash=prompt.hash,
        )
        return Question(name, prompt, request, edited)


_VERSION = re.compile(r"^//[ \t]*kernel-lsp[ \t]*:[^\n]*\n", re.MULTILINE)
_TASK = re.compile(r"^//[ \t]*task[ \t]*:[^\n]*\n(?://[ ]{3,}[^\n]*\n)*", re.MULTILINE)
_CODE = re.compile(r"^(?!//)", re.MULTILINE)


def assemble(code: str, target: str) -> str:
    """Return the file's text with `target` on its `task:` line, and one newline at the end. Code without a plan is
    unchanged: the evaluation reports what is missing."""
    text = "\n".join(line.rstrip() for line in code.replace("\r\n", "\n").split("\n")).strip("\n") + "\n"
    version = _VERSION.search(text)
    if version is None:
        return text
    end = _CODE.search(text, version.end())
    plan_end = end.start() if end is not None else len(text)
    plan = _TASK.sub("", text[version.end() : plan_end])
    return f"{text[: version.end()]}// task: {target}\n{plan}{text[plan_end:]}"


NOT_RECORDED = ("budget", "no_recording", "awaited", "authentication")
"""Outcomes that end the run instead of being recorded: a resumed run with more money, a reply or the key asks again."""

Tell = Callable[[Event], None]


class Conversation:
    """Ask models for proposals. `spending` covers the whole run, including the time before a resume."""

    def __init__(self, roster: Roster, records: ModelRecords, budget_usd: float | None, pace: Pace, tell: Tell) -> None:
        self._roster, self._records, self._tell = roster, records, tell
        spent = records.value(SPENDING)
        self._ledger = Ledger(budget_usd, Spending() if spent is None else Spending.model_validate_json(spent))
        self._patient: dict[int, PatientModel] = {
            id(model): PatientModel(model, self._ledger, pace) for model in roster.models
        }
        self._refused: dict[str, ModelFailed] = {}

    @property
    def spending(self) -> Spending:
        return self._ledger.spending

    def names(self, purpose: Purpose) -> tuple[str, ...]:
        return tuple(model.name for model in self._roster.of(purpose))

    def why_refused(self) -> str:
        """Return the provider's message where the keys of all models that propose were refused, else nothing."""
        refused = [self._refused.get(name) for name in self.names("propose")]
        return refused[0].message if refused and refused[0] is not None and all(refused) else ""

    async def ask(self, request: ModelRequest, model_index: int, slot: int) -> Replied | ModelFailed:
        """Return the outcome from the archive, or from the model; `model_index` wraps around the models of the purpose.

        Raises RepliesAwaited when a person has not replied yet.
        """
        known = self._records.reply(request.key)
        if known is not None:
            self._say(request, known, slot, from_archive=True)
            return known
        model = self._model(request.purpose, model_index)
        refused = self._refused.get(model.name)
        if refused is not None:
            return refused
        outcome = await self._patient[id(model)].ask(request)
        self._records.save_value(SPENDING, self.spending.model_dump_json())  # first, so that spending is never lost
        if isinstance(outcome, Replied) or outcome.cause not in NOT_RECORDED:
            self._records.save_reply(RecordedReply(key=request.key, model=model.name, request=request, outcome=outcome))
        self._say(request, outcome, slot, from_archive=False)
        if isinstance(outcome, ModelFailed) and outcome.cause == "authentication":
            self._refused[model.name] = outcome
        if isinstance(outcome, ModelFailed) and outcome.cause == "awaited":
            raise RepliesAwaited(outcome.message, next_step="reply to it, then resume the run")
        return outcome

    def _model(self, purpose: Purpose, index: int) -> Model:
        """The drawn model; another one where its key was refused and another one's was not."""
        models = self._roster.of(purpose)
        drawn = models[index % len(models)]
        allowed = [model for model in models if model.name not in self._refused]
        return drawn if drawn in allowed or not allowed else allowed[index % len(allowed)]

    def _say(self, request: ModelRequest, outcome: Replied | ModelFailed, slot: int, *, from_archive: bool) -> None:
        spending = self.spending
        self._tell(
            ModelCalled(
                slot=slot,
                purpose=request.purpose,
                model=outcome.model,
                outcome="replied" if isinstance(outcome, Replied) else outcome.cause,
                message="" if isinstance(outcome, Replied) else outcome.message,
                n_prompt_tokens=outcome.usage.n_prompt_tokens,
                n_reply_tokens=outcome.usage.n_reply_tokens,
                cost_usd=outcome.usage.cost_usd,
                run_cost_usd=spending.cost_usd,
                n_run_calls=spending.n_calls,
                budget_usd=self._ledger.budget_usd,
                from_archive=from_archive,
            )
        )
