"""A multi-turn proposal: the model submits kernels and calls tools, gets their results, and continues until it is done.

Its kernels take the same path as all others: compiler, executor, judges, hardware, archive. Budget, replay and resume
therefore work as for other proposals.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.evolve.archive.model_records import Round
from kernel_lsp.evolve.propose.feedback import describe_failure, describe_profile, describe_times
from kernel_lsp.evolve.propose.population import Member
from kernel_lsp.evolve.propose.prompt_builder import Question
from kernel_lsp.evolve.propose.proposal import Ended, Outcome, Proposal
from kernel_lsp.evolve.run.evaluations import score_us
from kernel_lsp.llm.replies import BadReply, parse_rewrite
from kernel_lsp.llm.request import Message, ModelFailed, Replied
from kernel_lsp.rules.registry import explain

N_TURNS = 12
N_BAD_TURNS = 2
"""Maximum consecutive malformed turns: a model that fails the format twice will not learn it."""

_TOOL = re.compile(r"\A\s*TOOL:[ \t]*(?P<name>profile|explain|done)\b[ \t]*(?P<argument>[\w-]*)\s*\Z")


@dataclass(frozen=True)
class ToolCall:
    """A turn that calls a tool."""

    name: str
    argument: str


def read_tool(reply: str) -> ToolCall | None:
    """Return the tool call of a turn; None if it submits a kernel."""
    match = _TOOL.match(reply)
    return ToolCall(match["name"], match["argument"]) if match else None


class AgentProposal(Proposal):
    """One agent's work on the task."""

    async def live(self) -> Outcome:
        question = self._shop.questions.agent(self._draw.plan, self._draw.slot, self._draw.arms.temperature, N_TURNS)
        best: Member | None = None
        n_bad, ended = 0, Ended("wrong", "its turns are over, and no kernel is right")
        for _ in range(N_TURNS):
            reply = await self._reply(question)
            if isinstance(reply, ModelFailed):
                ended = Ended("failed", reply.message, reply.cause)
                break
            call = read_tool(reply.text)
            if call is not None and call.name == "done":
                ended = Ended("wrong", "it gave up")
                break
            if call is None:
                said, member, is_readable = await self._hand_in(question, reply)
                best = member if member is not None and (best is None or member.time_us < best.time_us) else best
                n_bad = 0 if is_readable else n_bad + 1
            else:
                said, n_bad = await self._use(call, best), 0
            if n_bad > N_BAD_TURNS:
                ended = Ended("unreadable", said)
                break
            question = _continued(question, reply, said)
        return self._outcome(Ended("right") if best is not None else ended, best)

    async def _hand_in(self, question: Question, reply: Replied) -> tuple[str, Member | None, bool]:
        """Evaluate a submitted kernel. Return the reply to the model, the member if it is correct, and whether it could
        be parsed."""
        parsed = parse_rewrite(reply)
        base = Round(
            operator="agent",
            prompt=question.prompt.name,
            prompt_version=question.prompt.version,
            prompt_hash=question.prompt.hash,
            request_keys=(question.request.key,),
        )
        if isinstance(parsed, BadReply):
            self._rounds.append(base.model_copy(update={"message": parsed.problem}))
            return f"It could not be read: {parsed.problem}.", None, False
        candidate = self._candidate(parsed, question, reply.model, question.request.key)
        if any(earlier.candidate_id == candidate.id for earlier in self._rounds):
            return "You have handed in this very kernel before.", None, True
        found = await self._assess(candidate, base.model_copy(update={"name": parsed.name, "thought": parsed.thought}))
        if isinstance(found, Ended):
            return f"It was not measured: {found.message}.", None, True
        return self._told(*found), self._member(*found) if found[1].is_correct else None, True

    def _told(self, candidate: Candidate, verdict: Verdict) -> str:
        if not verdict.is_correct:
            return describe_failure(verdict, candidate.text)
        time_us = score_us(verdict)
        time = "It has no time." if time_us is None else f"It takes {time_us:.4g} us."
        known = (describe_times(verdict), describe_profile(verdict, self._shop.questions.floor_us))
        return "\n".join((f"It is right. {time}", *filter(None, known)))

    async def _use(self, call: ToolCall, best: Member | None) -> str:
        if call.name == "explain":
            return explain(call.argument)
        if best is None:
            return "There is no right kernel to profile yet."
        digest = await self._shop.profiler.digest(best.candidate)
        return digest.summary or describe_profile(best.verdict, self._shop.questions.floor_us)


def _continued(question: Question, reply: Replied, said: str) -> Question:
    """Append one turn to the conversation."""
    more = (Message(role="assistant", content=reply.text), Message(role="user", content=said))
    request = question.request.model_copy(update={"messages": (*question.request.messages, *more)})
    return Question(question.operator, question.prompt, request)
