"""A kernel whose plan takes a number is run with another one, too: what was judged with one value may ignore it."""

from __future__ import annotations

import asyncio
from typing import Literal

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.plan import ScalarParameter
from kernel_lsp.core.target import ScalarInput, TargetSource
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Crashed, Mismatch, TimedOut, Verdict
from kernel_lsp.errors import TargetError
from kernel_lsp.evaluate.pipeline import Evaluator
from kernel_lsp.evaluate.session import Session
from kernel_lsp.plan.parser import parse

FACTOR = 0.75
"""Keeps the sign, the magnitude, and a probability's range."""
INSTEAD_OF_ZERO = 0.25
CAPTURE = 1
"""The number of the second capture; only a task folder has others."""


class OtherNumbers:
    """An evaluator whose full verdicts are of other numbers, too, than those that the target's pragma gives.

    Floating-point numbers that the plan takes are changed, all at once; whole ones and truth values may stand for sizes
    and for other code. Where the target cannot be captured with them, or the plan's contract excludes them, the verdict
    is of the pragma's alone."""

    def __init__(self, evaluator: Evaluator, session: Session, source: TargetSource, task: Task) -> None:
        self._evaluator, self._session, self._source, self._task = evaluator, session, source, task
        self.n_slots = evaluator.n_slots
        self._changed = _changed(source)
        self._other: Evaluator | None = None
        self._is_captured, self._capturing = False, asyncio.Lock()

    @property
    def baseline_wait_s(self) -> float:
        """As the evaluator's."""
        return self._evaluator.baseline_wait_s

    async def evaluate(self, candidate: Candidate, depth: Literal["screen", "full"]) -> Verdict:
        """The verdict. Raises EnvironmentProblem for a broken machine."""
        verdict = await self._evaluator.evaluate(candidate, depth)
        if depth != "full" or not verdict.is_correct or not self._takes_a_changed_number(candidate):
            return verdict
        other = await self._evaluator_of_others()
        found = None if other is None else (await other.evaluate(candidate, "screen")).outcome
        if not isinstance(found, Mismatch | Crashed | TimedOut):
            return verdict
        outcome = found.model_copy(update={"message": f"with {self._words()}: {found.message}"})
        return verdict.model_copy(update={"outcome": outcome, "times": {}})

    # --- below

    def _takes_a_changed_number(self, candidate: Candidate) -> bool:
        plan = parse(candidate.text).plan
        operations = [] if plan is None else [plan.forward, *([plan.backward] if plan.backward is not None else [])]
        taken = {p.name for operation in operations for p in operation.parameters if isinstance(p, ScalarParameter)}
        return any(before.name in taken for before, _ in self._pairs())

    async def _evaluator_of_others(self) -> Evaluator | None:
        """Of the target with the other numbers, captured once; None where that is another computation or none."""
        async with self._capturing:
            if not self._is_captured:
                self._other, self._is_captured = await self._captured(), True
        return self._other

    async def _captured(self) -> Evaluator | None:
        with_backward = self._task.backward is not None
        try:
            task = await self._session.worker.capture(self._changed, with_backward=with_backward, configuration=CAPTURE)
        except TargetError:
            return None
        return await self._session.evaluator(task) if _types(task) == _types(self._task) else None

    def _pairs(self) -> list[tuple[ScalarInput, ScalarInput]]:
        """The numbers that are changed, before and after."""
        both = zip(self._source.inputs or (), self._changed.inputs or (), strict=True)
        return [
            (before, after)
            for before, after in both
            if isinstance(before, ScalarInput) and isinstance(after, ScalarInput) and before != after
        ]

    def _words(self) -> str:
        """``alpha=0.375 instead of 0.5``."""
        return ", ".join(f"{a.name}={a.value:g} instead of {b.value:g}" for b, a in self._pairs())


def _changed(source: TargetSource) -> TargetSource:
    """The target with other floating-point numbers."""
    inputs = tuple(
        ScalarInput(name=given.name, value=given.value * FACTOR or INSTEAD_OF_ZERO)
        if isinstance(given, ScalarInput) and isinstance(given.value, float)
        else given
        for given in source.inputs or ()
    )
    return source.model_copy(update={"inputs": inputs}) if source.inputs is not None else source


def _types(task: Task) -> object:
    return task.forward.input_types, [output.type for output in task.forward.outputs]
