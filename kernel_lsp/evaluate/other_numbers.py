"""A kernel whose plan takes numbers is run with others, too: what was judged with one value may ignore it."""

from __future__ import annotations

import asyncio
import itertools
import math
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
from kernel_lsp.evaluate.compare import is_within_budget
from kernel_lsp.evaluate.number_changes import (
    DYADIC,
    FRACTIONS,
    NEGATIVE,
    VAST,
    ZERO,
    Change,
    Value,
    changed,
    changed_numbers,
    far,
    is_guard,
)
from kernel_lsp.evaluate.pipeline import Evaluator
from kernel_lsp.evaluate.prepare import Prepared, prepare
from kernel_lsp.evaluate.rounding_edges import rounds
from kernel_lsp.evaluate.session import Session

LARGE = "large"
ORDINARY_FAMILIES = ("normal", LARGE)

_Numbers = tuple[tuple[str, Number], ...]
"""Names and values."""


@dataclass(frozen=True, eq=False)
class _Other:
    """The target with other numbers, those of these names; `words` say which. `families` are of its inputs."""

    task: Task
    names: frozenset[str]
    words: str
    families: tuple[str, ...]


class OtherNumbers:
    """An evaluator whose full verdicts are of other numbers, too, than those that the target's pragma gives.

    Those that the plan takes are changed, all at once and each to a value of its own, as `number_changes` says. Where
    the target cannot be captured with them or computes something else, or the plan's contract excludes them, fewer
    change. Another truth value may take another way through the code, as who takes it must."""

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
            if isinstance(found, Mismatch | Crashed | TimedOut) and not _is_nobodys_number(found):
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
        """Of the target with other numbers of those that the plan takes, each captured once: at most five. Whole ones
        go far away only where the next ones change nothing of the computation: a count of repetitions would be a
        thousand times the work."""
        prepared = prepare(candidate.text, self._task)
        if isinstance(prepared, BuildFailed):
            return []
        async with self._capturing:
            fractions = await self._first(FRACTIONS, prepared)
            may_go_far = fractions is not None and self._whole(prepared.plan) <= fractions.names
            vast = [change for change in VAST if may_go_far or change.integers is not far]
            others = (NEGATIVE, vast, ZERO, *((DYADIC,) if rounds(self._task.forward) else ()))
            rest = [await self._first(changes, prepared) for changes in others]
        return list(dict.fromkeys(other for other in (fractions, *rest) if other is not None))

    def _whole(self, plan: LaunchPlan) -> frozenset[str]:
        """The names of the whole numbers that the plan takes."""
        given = [each for each in self._source.inputs or () if isinstance(each, ScalarInput)]
        return frozenset(each.name for each in given if type(each.value) is int) & _taken_numbers(plan)

    async def _first(self, changes: Sequence[Change], prepared: Prepared) -> _Other | None:
        for change in changes:
            if (other := await self._other(change, prepared)) is not None:
                return other
        return None

    async def _other(self, change: Change, prepared: Prepared) -> _Other | None:
        """None where nothing changes, or where that is outside of the contract, cannot be captured or is another
        computation."""

        def is_taken(name: str, value: Value) -> bool:
            return self._takes(prepared, {name: value})

        after = changed(self._source, _taken_numbers(prepared.plan), change, is_taken)
        pairs = changed_numbers(self._source, after)
        numbers = tuple((number.name, number.value) for _, number in pairs)
        if not pairs or not self._takes(prepared, dict(numbers)):
            return None
        if numbers not in self._known:
            self._known[numbers] = await self._captured(after, pairs, _families(change, pairs))
        return self._known[numbers]

    async def _evaluator_of(self, other: _Other) -> Evaluator:
        async with self._capturing:
            if other.words not in self._evaluators:
                made = await self._session.untimed_evaluator(other.task, other.families, self._evaluator)
                self._evaluators[other.words] = made
        return self._evaluators[other.words]

    def _takes(self, prepared: Prepared, numbers: Mapping[str, Number]) -> bool:
        try:
            return prepared.holds_with(numbers, captured_sizes(self._task))
        except PlanError:
            return False  # e.g. a division by a number that is zero now, in a condition

    async def _captured(
        self, after: TargetSource, pairs: Sequence[tuple[ScalarInput, ScalarInput]], families: tuple[str, ...]
    ) -> _Other | None:
        with_backward, number = self._task.backward is not None, next(self._captures)
        try:
            task = await self._session.worker.capture(after, with_backward=with_backward, configuration=number)
        except TargetError:
            return None
        may_branch = any(isinstance(other.value, bool) for _, other in pairs)
        if _types(task) != _types(self._task) or not (may_branch or _steps(task) == _steps(self._task)):
            return None
        words = ", ".join(f"{a.name}={_shown(a.value)} instead of {_shown(b.value)}" for b, a in pairs)
        return _Other(task, frozenset(other.name for _, other in pairs), words, families)


def _taken_numbers(plan: LaunchPlan) -> frozenset[str]:
    """The names of the numbers that the plan takes."""
    return frozenset(p.name for each in plan.operations for p in each.parameters if isinstance(p, ScalarParameter))


def _is_nobodys_number(outcome: Mismatch | Crashed | TimedOut) -> bool:
    """Whether PyTorch gives something else than a number for ordinary inputs, e.g. the root of a negative one: then it
    does not say what these numbers should do."""
    if not isinstance(outcome, Mismatch) or outcome.failed.family not in ORDINARY_FAMILIES:
        return False
    wrong = [error.expected for error in outcome.failed.errors if not is_within_budget(error)]
    return any(expected is not None and not math.isfinite(expected) for expected in wrong)


def _families(change: Change, pairs: Sequence[tuple[ScalarInput, ScalarInput]]) -> tuple[str, ...]:
    has_guard = any(isinstance(before.value, float) and is_guard(before.value) for before, _ in pairs)
    return (*OTHER_NUMBERS_FAMILIES, *change.families, *(change.guard_families if has_guard else ()))


def _types(task: Task) -> object:
    return task.forward.input_types, [output.type for output in task.forward.outputs]


def _steps(task: Task) -> list[str]:
    return [node.op for node in task.forward.nodes]


def _shown(value: float | int | bool) -> str:
    return str(value) if isinstance(value, bool) else f"{value:g}"
