"""Scalar mutation: run a candidate whose plan takes scalars with other values, too. One that was verified with a single
value may ignore it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.expression import Number
from kernel_lsp.core.plan import LaunchPlan, ScalarParameter
from kernel_lsp.core.task import AttributeValue, ScalarInput, TargetSource, Task
from kernel_lsp.core.verdict import BuildFailed, CheckOutcome, Crashed, Mismatch, TimedOut
from kernel_lsp.errors import PlanError, TargetError
from kernel_lsp.verify.model.cases import OTHER_NUMBERS_FAMILIES, captured_sizes
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.model.resolved_kernel import Prepared, prepare
from kernel_lsp.verify.oracle.compare import is_within_budget
from kernel_lsp.verify.probes.rounding_edges import rounds
from kernel_lsp.verify.probes.scalar_mutators import (
    MUTATIONS,
    Change,
    GivenNumber,
    Value,
    changed,
    changed_numbers,
    far,
    is_guard,
)
from kernel_lsp.verify.session.pipeline import Platform

LARGE = "large"
ORDINARY_FAMILIES = ("normal", LARGE)

_Values = tuple[tuple[str, Number], ...]
"""Names and values of mutated scalars."""


@dataclass(frozen=True, eq=False)
class MutatedTask:
    """The task with other values for the scalars in `names`, which `words` lists. `families` are its input families."""

    task: Task
    names: frozenset[str]
    words: str
    families: tuple[str, ...]

    def failure(self, outcome: CheckOutcome) -> Mismatch | Crashed | TimedOut | None:
        """Return the failure that a candidate's outcome on this task proves; None where it is inconclusive."""
        if not isinstance(outcome, Mismatch | Crashed | TimedOut) or _is_undefined(outcome):
            return None
        return outcome.model_copy(update={"message": f"with {self.words}: {outcome.message}"})


class ScalarMutation:
    """Captures one task's mutations, each once for all candidates.

    All scalars that a plan takes change at once, each to a value of its own, by the rules in `scalar_mutators`. Fewer
    change where the target cannot be captured with the new values, computes something else, or the plan's contract
    excludes them. A flipped boolean may take another branch of the code, as the operator's caller may.
    """

    def __init__(self, source: TargetSource, task: Task, platform: Platform) -> None:
        self._given, self._task, self._platform = source, task, platform
        self._known: dict[_Values, MutatedTask | None] = {}
        self._capturing = asyncio.Lock()

    async def mutated_tasks(self, candidate: Candidate) -> list[MutatedTask]:
        """Return at most five mutations of the scalars that the candidate's plan takes.

        Integers change far only where a change by one keeps the computation: a repetition count would otherwise cost a
        thousand times the work. Raises EnvironmentProblem for a broken machine.
        """
        prepared = prepare(candidate.text, self._task)
        if isinstance(prepared, BuildFailed) or not is_on("numbers"):
            return []
        async with self._capturing:
            found: list[MutatedTask | None] = []
            for mutation in MUTATIONS:
                if not mutation.of_roundings or rounds(self._task.forward):
                    changes = self._possible(mutation.changes, found[0] if found else None, prepared.plan)
                    found.append(await self._first(changes, prepared))
        return list(dict.fromkeys(mutated for mutated in found if mutated is not None))

    @cached_property
    def _source(self) -> TargetSource:
        """Return the source with the numbers of the module."""
        attributes = tuple(
            AttributeValue(name=scalar.name, path=scalar.qualified_name, value=scalar.value)
            for scalar in self._task.scalars
            if scalar.qualified_name is not None
        )
        return self._given.model_copy(update={"attributes": attributes})

    def _possible(self, changes: Sequence[Change], first: MutatedTask | None, plan: LaunchPlan) -> list[Change]:
        """Leave out changes of integers that go far where `first` did not change all of them by one."""
        may_go_far = first is not None and self._integers(plan) <= first.names
        return [change for change in changes if may_go_far or change.integers is not far]

    def _integers(self, plan: LaunchPlan) -> frozenset[str]:
        """Return the names of the integers that the plan takes."""
        given = [each for each in self._source.inputs or () if isinstance(each, ScalarInput)]
        return frozenset(each.name for each in given if type(each.value) is int) & _taken_scalars(plan)

    async def _first(self, changes: Sequence[Change], prepared: Prepared) -> MutatedTask | None:
        for change in changes:
            if (mutated := await self._mutated(change, prepared)) is not None:
                return mutated
        return None

    async def _mutated(self, change: Change, prepared: Prepared) -> MutatedTask | None:
        """Return the mutated task. None where nothing changes, and where the change is outside the contract, cannot be
        captured or gives another computation."""

        def is_taken(name: str, value: Value) -> bool:
            return self._takes(prepared, {name: value})

        after = changed(self._source, _taken_scalars(prepared.plan), change, is_taken)
        pairs = changed_numbers(self._source, after)
        values = tuple((scalar.name, scalar.value) for _, scalar in pairs)
        if not pairs or not self._takes(prepared, dict(values)):
            return None
        if values not in self._known:
            self._known[values] = await self._captured(after, pairs, _families(change, pairs))
        return self._known[values]

    def _takes(self, prepared: Prepared, values: Mapping[str, Number]) -> bool:
        try:
            return prepared.holds_with(values, captured_sizes(self._task))
        except PlanError:
            return False  # e.g. a condition that divides by a scalar that is now zero

    async def _captured(
        self, after: TargetSource, pairs: Sequence[tuple[GivenNumber, GivenNumber]], families: tuple[str, ...]
    ) -> MutatedTask | None:
        worker, number = self._platform.worker, next(self._platform.capture_numbers)
        try:
            task = await worker.capture(after, with_backward=self._task.backward is not None, configuration=number)
        except TargetError:
            return None
        may_branch = any(isinstance(mutated.value, bool) for _, mutated in pairs)
        if _types(task) != _types(self._task) or not (may_branch or _steps(task) == _steps(self._task)):
            return None
        words = ", ".join(f"{a.name}={_shown(a.value)} instead of {_shown(b.value)}" for b, a in pairs)
        return MutatedTask(task, frozenset(mutated.name for _, mutated in pairs), words, families)


def _taken_scalars(plan: LaunchPlan) -> frozenset[str]:
    """Return the names of the scalars that the plan takes."""
    return frozenset(p.name for each in plan.operations for p in each.parameters if isinstance(p, ScalarParameter))


def _is_undefined(outcome: Mismatch | Crashed | TimedOut) -> bool:
    """Return whether PyTorch's own result is not finite for ordinary inputs, e.g. the root of a negative scalar: it
    then defines no result for these values."""
    if not isinstance(outcome, Mismatch) or outcome.failed.family not in ORDINARY_FAMILIES:
        return False
    wrong = [error.expected for error in outcome.failed.errors if not is_within_budget(error)]
    return any(expected is not None and not math.isfinite(expected) for expected in wrong)


def _families(change: Change, pairs: Sequence[tuple[GivenNumber, GivenNumber]]) -> tuple[str, ...]:
    has_guard = any(isinstance(before.value, float) and is_guard(before.value) for before, _ in pairs)
    return (*OTHER_NUMBERS_FAMILIES, *change.families, *(change.guard_families if has_guard else ()))


def _types(task: Task) -> object:
    return task.forward.input_types, [output.type for output in task.forward.outputs]


def _steps(task: Task) -> list[str]:
    return [node.op for node in task.forward.nodes]


def _shown(value: float | int | bool) -> str:
    return str(value) if isinstance(value, bool) else f"{value:g}"
