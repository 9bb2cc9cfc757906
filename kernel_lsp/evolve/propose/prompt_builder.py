"""Build the prompts of proposals, by operator, parse their replies, and convert a model's code to a candidate's text
with our own target in its plan."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernel_lsp.evolve.propose.feedback import describe_profile, describe_times
from kernel_lsp.evolve.propose.population import KernelText, Member, Plan, show, shown
from kernel_lsp.evolve.run.task_text import TaskText
from kernel_lsp.llm.prompts import Prompts, RenderedPrompt
from kernel_lsp.llm.replies import BadReply, ParsedReply, parse_edits, parse_rewrite
from kernel_lsp.llm.request import ModelRequest, Purpose, Replied


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
