"""A kernel whose plan takes numbers is run with others, too: what was judged with one value may ignore it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.expression import Number
from kernel_lsp.core.plan import LaunchPlan, ScalarParameter
from kernel_lsp.core.target import ScalarInput, TargetSource
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import BuildFailed, Crashed, Mismatch, TimedOut, Verdict
from kernel_lsp.errors import KernelLspError, PlanError, TargetError
from kernel_lsp.evaluate.cases import OTHER_NUMBERS_FAMILIES, captured_sizes
from kernel_lsp.evaluate.number_changes import Change, beyond_one, changed_numbers, far, nearby, turned
from kernel_lsp.evaluate.pipeline import Evaluator
from kernel_lsp.evaluate.prepare import Prepared, prepare
from kernel_lsp.evaluate.session import Session

_Numbers = tuple[tuple[str, Number], ...]
"""Names and values."""


@dataclass(frozen=True, eq=False)
class _Other:
    """The target with other numbers; `words` say which."""

    task: Task
    words: str


class OtherNumbers:
    """An evaluator whose full verdicts are of other numbers, too, than those that the target's pragma gives.

    Those that the plan takes are changed, all at once, in ways that `number_changes` has. Where the target cannot be
    captured with them or computes something else, or the plan's contract excludes them, the verdict is of the
    pragma's alone. Another truth value may take another way through the code, as who takes it must."""

    def __init__(self, evaluator: Evaluator, session: Session, source: TargetSource, task: Task) -> None:
        self._evaluator, self._session, self._source, self._task = evaluator, session, source, task
        self.n_slots = evaluator.n_slots
        self._known: dict[_Numbers, _Other | None] = {}
        self._evaluators: dict[str, Evaluator] = {}
        self._capturing, self._captures = asyncio.Lock(), itertools.count(1)
        self._ahead: set[asyncio.Task[None]] = set()

    @property
    def baseline_wait_s(self) -> float:
        """As the evaluator's."""
        return self._evaluator.baseline_wait_s

    async def evaluate(self, candidate: Candidate, depth: Literal["screen", "full"]) -> Verdict:
        """The verdict. Raises EnvironmentProblem for a broken machine."""
        if depth != "full":
            return await self._evaluator.evaluate(candidate, depth)
        verdict = await self._evaluator.evaluate(candidate, depth, lambda: self._begin(candidate))
        if not verdict.is_correct:
            return verdict
        for other in await self._others(candidate):
            found = (await (await self._evaluator_of(other)).evaluate(candidate, "screen")).outcome
            if isinstance(found, Mismatch | Crashed | TimedOut):
                outcome = found.model_copy(update={"message": f"with {other.words}: {found.message}"})
                return verdict.model_copy(update={"outcome": outcome, "times": {}})
        return verdict

    # --- below

    def _begin(self, candidate: Candidate) -> None:
        """Have the captures made while the candidate runs. What goes wrong is told when they are asked for."""

        async def ahead() -> None:
            with suppress(KernelLspError):
                await self._others(candidate)

        task = asyncio.create_task(ahead())
        self._ahead.add(task)
        task.add_done_callback(self._ahead.discard)

    async def _others(self, candidate: Candidate) -> list[_Other]:
        """Of the target with other numbers of those that the plan takes, each captured once: at most three. Numbers
        nearby are for where larger ones are refused; whole ones go far away only where the next one changes nothing of
        the computation: a count of repetitions would be a thousand times the work."""
        prepared = prepare(candidate.text, self._task)
        if isinstance(prepared, BuildFailed):
            return []
        async with self._capturing:
            further = await self._other(beyond_one, prepared)
            found = [
                further or await self._other(nearby, prepared),
                await self._other(far, prepared) if further is not None else None,
                await self._other(turned, prepared),
            ]
        return list(dict.fromkeys(other for other in found if other is not None))

    async def _other(self, change: Change, prepared: Prepared) -> _Other | None:
        """None where nothing changes, or where that is outside of the contract, cannot be captured or is another
        computation."""
        changed = change(self._source, _taken_numbers(prepared.plan))
        pairs = changed_numbers(self._source, changed)
        numbers = tuple((after.name, after.value) for _, after in pairs)
        if not pairs or not self._takes(prepared, dict(numbers)):
            return None
        if numbers not in self._known:
            self._known[numbers] = await self._captured(changed, pairs)
        return self._known[numbers]

    async def _evaluator_of(self, other: _Other) -> Evaluator:
        async with self._capturing:
            if other.words not in self._evaluators:
                made = await self._session.untimed_evaluator(other.task, OTHER_NUMBERS_FAMILIES)
                self._evaluators[other.words] = made
        return self._evaluators[other.words]

    def _takes(self, prepared: Prepared, numbers: Mapping[str, Number]) -> bool:
        try:
            return prepared.holds_with(numbers, captured_sizes(self._task))
        except PlanError:
            return False  # e.g. a division by a number that is zero now, in a condition

    async def _captured(self, changed: TargetSource, pairs: Sequence[tuple[ScalarInput, ScalarInput]]) -> _Other | None:
        with_backward, number = self._task.backward is not None, next(self._captures)
        try:
            task = await self._session.worker.capture(changed, with_backward=with_backward, configuration=number)
        except TargetError:
            return None
        may_branch = any(isinstance(after.value, bool) for _, after in pairs)
        if _types(task) != _types(self._task) or not (may_branch or _steps(task) == _steps(self._task)):
            return None
        words = ", ".join(f"{a.name}={_shown(a.value)} instead of {_shown(b.value)}" for b, a in pairs)
        return _Other(task, words)


def _taken_numbers(plan: LaunchPlan) -> frozenset[str]:
    """The names of the numbers that the plan takes."""
    return frozenset(p.name for each in plan.operations for p in each.parameters if isinstance(p, ScalarParameter))


def _types(task: Task) -> object:
    return task.forward.input_types, [output.type for output in task.forward.outputs]


def _steps(task: Task) -> list[str]:
    return [node.op for node in task.forward.nodes]


def _shown(value: float | int | bool) -> str:
    return str(value) if isinstance(value, bool) else f"{value:g}"
