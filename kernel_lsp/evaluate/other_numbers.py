"""A kernel whose plan takes numbers is run with others, too: what was judged with one value may ignore it."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Literal

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.plan import ScalarParameter
from kernel_lsp.core.target import TargetSource
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Crashed, Mismatch, TimedOut, Verdict
from kernel_lsp.errors import TargetError
from kernel_lsp.evaluate.cases import OTHER_NUMBERS_FAMILIES
from kernel_lsp.evaluate.number_changes import Change, beyond_one, changed_numbers, nearby, turned
from kernel_lsp.evaluate.pipeline import Evaluator
from kernel_lsp.evaluate.session import Session
from kernel_lsp.plan.parser import parse


@dataclass(frozen=True)
class _Other:
    """The target with other numbers, and who evaluates candidates for it; `words` say which numbers."""

    evaluator: Evaluator
    words: str


class OtherNumbers:
    """An evaluator whose full verdicts are of other numbers, too, than those that the target's pragma gives.

    Those that the plan takes are changed, all at once, in ways that `number_changes` has. Where the target cannot be
    captured with them or computes something else, or the plan's contract excludes them, the verdict is of the
    pragma's alone. Another truth value may take another way through the code, as who takes it must."""

    def __init__(self, evaluator: Evaluator, session: Session, source: TargetSource, task: Task) -> None:
        self._evaluator, self._session, self._source, self._task = evaluator, session, source, task
        self.n_slots = evaluator.n_slots
        self._known: dict[frozenset[str], list[_Other]] = {}
        self._capturing, self._captures = asyncio.Lock(), itertools.count(1)

    @property
    def baseline_wait_s(self) -> float:
        """As the evaluator's."""
        return self._evaluator.baseline_wait_s

    async def evaluate(self, candidate: Candidate, depth: Literal["screen", "full"]) -> Verdict:
        """The verdict. Raises EnvironmentProblem for a broken machine."""
        verdict = await self._evaluator.evaluate(candidate, depth)
        if depth != "full" or not verdict.is_correct:
            return verdict
        for other in await self._others(_taken_numbers(candidate)):
            found = (await other.evaluator.evaluate(candidate, "screen")).outcome
            if isinstance(found, Mismatch | Crashed | TimedOut):
                outcome = found.model_copy(update={"message": f"with {other.words}: {found.message}"})
                return verdict.model_copy(update={"outcome": outcome, "times": {}})
        return verdict

    # --- below

    async def _others(self, names: frozenset[str]) -> list[_Other]:
        """Of the target with other numbers of these names, captured once."""
        async with self._capturing:
            if names not in self._known:
                self._known[names] = await self._captured(names)
        return self._known[names]

    async def _captured(self, names: frozenset[str]) -> list[_Other]:
        """At most two. The change to numbers nearby is for where the larger one is refused."""
        found = await self._captured_with(beyond_one, names) or await self._captured_with(nearby, names)
        return [*found, *await self._captured_with(turned, names)]

    async def _captured_with(self, change: Change, names: frozenset[str]) -> list[_Other]:
        """None where nothing changes, or where that cannot be captured or is another computation; else one."""
        changed = change(self._source, names)
        pairs = changed_numbers(self._source, changed)
        if not pairs:
            return []
        with_backward, number = self._task.backward is not None, next(self._captures)
        try:
            task = await self._session.worker.capture(changed, with_backward=with_backward, configuration=number)
        except TargetError:
            return []
        may_branch = any(isinstance(after.value, bool) for _, after in pairs)
        if _types(task) != _types(self._task) or not (may_branch or _steps(task) == _steps(self._task)):
            return []
        words = ", ".join(f"{a.name}={_shown(a.value)} instead of {_shown(b.value)}" for b, a in pairs)
        return [_Other(await self._session.evaluator(task, screen_families=OTHER_NUMBERS_FAMILIES), words)]


def _taken_numbers(candidate: Candidate) -> frozenset[str]:
    """The names of the numbers that the plan takes."""
    plan = parse(candidate.text).plan
    operations = [] if plan is None else [plan.forward, *([plan.backward] if plan.backward is not None else [])]
    return frozenset(p.name for operation in operations for p in operation.parameters if isinstance(p, ScalarParameter))


def _types(task: Task) -> object:
    return task.forward.input_types, [output.type for output in task.forward.outputs]


def _steps(task: Task) -> list[str]:
    return [node.op for node in task.forward.nodes]


def _shown(value: float | int | bool) -> str:
    return str(value) if isinstance(value, bool) else f"{value:g}"
