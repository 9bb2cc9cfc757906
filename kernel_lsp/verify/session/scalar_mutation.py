"""Scalar mutation: run a candidate whose plan takes scalars with other values, too. One that was verified with a single
value may ignore it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.expression import Number
from kernel_lsp.core.plan import LaunchPlan, ScalarParameter
from kernel_lsp.core.task import AttributeValue, ScalarInput, TargetInput, TargetSource, Task
from kernel_lsp.core.verdict import BuildFailed, CheckOutcome, Crashed, Mismatch, Stalled, TimedOut
from kernel_lsp.errors import PlanError, TargetError
from kernel_lsp.verify.model.cases import OTHER_NUMBERS_FAMILIES, captured_sizes
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.model.resolved_kernel import Prepared, prepare
from kernel_lsp.verify.oracle.compare import is_within_budget
from kernel_lsp.verify.probes.target_cases import rounds
from kernel_lsp.verify.session.pipeline import Platform

Value = float | int | bool
GivenNumber = ScalarInput | AttributeValue
_Given = TypeVar("_Given", TargetInput, AttributeValue)
FloatRule = Callable[[float, float], float]
"""Returns the other value for a float. The second argument is a share between 0.3 and 0.9, different for each float."""
IsTaken = Callable[[str, Value], bool]
"""Returns whether the plan accepts a value for the scalar of that name, the others unchanged."""
IntegerRule = Callable[[int, int], int]
"""Returns the other value for an integer. The second argument is a distance of at least one, increased until all values
differ."""

FIRST_SHARE, SHARES = 0.3, 0.6
GOLDEN_RATIO = 0.6180339887
"""The fractional parts of its multiples are well spread, for any number of them."""
SHARE_DIGITS = 3
"""Decimal digits of a fraction: almost all three-digit fractions are inexact in f16 and bf16."""
FAR = 1_000
"""Distance added to integers, above the sizes of small cases. A shift wraps around then."""
LARGE = 15_000.0
"""Large for a factor, but small enough not to overflow ordinary f16 numbers."""
SMALLEST_ORDINARY = 1e-2
"""Smaller numbers may guard against division by zero: zero in their place leaves nothing to compute, and the sum with
them must not change."""
GUARD_PART = 1e-3
"""Factor on a guard, times a share: it exposes a kernel that clamps guards from below."""
STEP_NEARBY = 0.1
POWERS_NEARBY = 8
N_TRIES = 16


@dataclass(frozen=True)
class Change:
    """One mutation of all scalars.

    `shares` is for floats between zero and one, which may be probabilities. Flips booleans whose index = `rest` (mod
    `every`); none where `every` is zero. `is_in_order`: the floats' new values keep the order of the captured ones, so
    that a lower limit stays below the upper. `families` are the input families that expose it, in addition to ordinary
    ones, and `guard_families` where one of the scalars is a guard.
    """

    floats: FloatRule
    shares: FloatRule
    integers: IntegerRule
    every: int = 0
    rest: int = 0
    is_in_order: bool = False
    families: tuple[str, ...] = ()
    guard_families: tuple[str, ...] = ()


def fraction(value: float, share: float) -> float:
    """Return a value between zero and one, of the same sign; far smaller for guards."""
    if is_guard(value):
        return value * share * GUARD_PART
    return value * share if 0.0 < abs(value) <= 1.0 else math.copysign(share, value)


def negated(value: float, share: float) -> float:
    """Return a value of the other sign. The magnitude does not grow, except for one and zero: large inputs, multiplied,
    stay above a mask."""
    return -value * share if 0.0 < abs(value) < 1.0 else -math.copysign(1.0 + share, value)


def large(value: float, share: float) -> float:
    """Return a value far beyond one, of the same sign; a little beyond for guards."""
    return math.copysign((1.0 if is_guard(value) else LARGE) * (1.0 + share), value)


def zero(value: float, share: float) -> float:
    """Return zero; guards stay nearby."""
    return nearby(value, share) if is_guard(value) else 0.0


def nearby(value: float, share: float) -> float:
    """Return a slightly smaller value of the same sign, for scalars that are refused further away."""
    return value * (1.0 - STEP_NEARBY * share) if value else STEP_NEARBY * share


def dyadic(value: float, share: float) -> float:
    """Return a power of two nearby, of the same sign. Zero stays zero."""
    if not value:
        return value
    return math.copysign(2.0 ** (round(math.log2(abs(value))) - round(POWERS_NEARBY * share)), value)


def more(value: int, distance: int) -> int:
    return value + distance


def far(value: int, distance: int) -> int:
    return value + FAR + distance


def opposite(value: int, distance: int) -> int:
    """Return a value of the other sign, also for zero."""
    return -value - distance


def few(value: int, distance: int) -> int:
    """Return one, two and so on in place of positive numbers. They are below the sizes of small cases, in which larger
    values may all have the same effect."""
    return distance if value > 0 else value


def same(value: int, _: int) -> int:
    return value


OVERFLOWING = ("large",)
"""Families that overflow where a maximum is subtracted before a multiplication by a number of the other sign."""
GUARDED = ("tiny",)
"""Inputs small enough for any guard to matter."""
AT_TIES = ("halves",)

FRACTIONS = (
    Change(fraction, fraction, more, guard_families=GUARDED),
    Change(fraction, fraction, same, guard_families=GUARDED),
    Change(nearby, nearby, more),
    Change(nearby, nearby, same),
)
NEGATIVE = (
    Change(negated, negated, opposite, every=1, families=OVERFLOWING),
    Change(negated, negated, opposite, every=1, families=OVERFLOWING, is_in_order=True),
    Change(negated, nearby, opposite, every=1, families=OVERFLOWING),
    Change(nearby, nearby, opposite, every=1),
    Change(negated, negated, same, every=1, families=OVERFLOWING),
    Change(nearby, nearby, same, every=1),
)
VAST = (
    Change(large, large, far, every=2, rest=1),
    Change(large, large, same, every=2, rest=1),
    Change(large, nearby, same, every=2, rest=1),
    Change(nearby, nearby, far, every=2, rest=1),
)
ZERO = (
    Change(zero, zero, few, every=2),
    Change(zero, zero, same, every=2),
    Change(zero, nearby, few, every=2),
    Change(zero, nearby, same, every=2),
)
DYADIC = (Change(dyadic, dyadic, same, families=AT_TIES),)
"""For tasks that round: with a power of two as step, halfway cases are representable."""


@dataclass(frozen=True)
class Mutation:
    """One mutation of a task. The first possible of its changes is tried: later ones change less. `of_roundings`: it
    applies to tasks that round."""

    name: str
    changes: tuple[Change, ...]
    of_roundings: bool = False


MUTATIONS = (
    Mutation("fractions", FRACTIONS),
    Mutation("other sign", NEGATIVE),
    Mutation("large", VAST),
    Mutation("zero", ZERO),
    Mutation("powers of two", DYADIC, of_roundings=True),
)
"""The mutations of every task with scalars, in the order of their runs. The first decides whether integers may change
far: only where a change by one keeps the computation."""


def changed(source: TargetSource, names: Collection[str], change: Change, is_taken: IsTaken) -> TargetSource:
    """Return the target with other values for the scalars with these names, where there are any. A scalar whose new
    value is not accepted stays nearby instead, or unchanged."""
    values = _values([scalar for scalar in _scalars(source) if scalar.name in names], change, is_taken)

    def replaced(given: _Given) -> _Given:
        is_changed = isinstance(given, GivenNumber) and given.name in values
        return given.model_copy(update={"value": values[given.name]}) if is_changed else given

    inputs = None if source.inputs is None else tuple(map(replaced, source.inputs))
    return source.model_copy(update={"inputs": inputs, "attributes": tuple(map(replaced, source.attributes or ()))})


def changed_numbers(before: TargetSource, after: TargetSource) -> list[tuple[GivenNumber, GivenNumber]]:
    """Return the scalars that differ, before and after."""
    return [(b, a) for b, a in zip(_scalars(before), _scalars(after), strict=True) if b != a]


def is_guard(value: float) -> bool:
    """Check whether the number may guard a division."""
    return 0.0 < abs(value) < SMALLEST_ORDINARY


def _values(scalars: Sequence[GivenNumber], change: Change, is_taken: IsTaken) -> dict[str, Value]:
    found: dict[str, Value] = {}
    floats = {s.name: s.value for s in scalars if type(s.value) is float and math.isfinite(s.value)}
    for position, (name, value) in enumerate(floats.items()):
        rule = change.shares if 0.0 < abs(value) < 1.0 else change.floats
        others = {abs(other) for other in found.values()}
        wanted = _own(partial(_with_share, rule, value), position, others)
        left = (wanted, nearby(value, _share(position)), value)
        found[name] = next((each for each in left if is_taken(name, each)), value)
    if change.is_in_order:
        found = dict(zip(sorted(floats, key=lambda name: floats[name]), sorted(found.values()), strict=True))
    for name, integer in {s.name: s.value for s in scalars if type(s.value) is int}.items():
        wanted = _own(partial(change.integers, integer), 1, {abs(other) for other in found.values()})
        found[name] = wanted if is_taken(name, wanted) else integer
    for position, (name, truth) in enumerate({s.name: s.value for s in scalars if type(s.value) is bool}.items(), 1):
        is_other = change.every > 0 and position % change.every == change.rest and is_taken(name, not truth)
        found[name] = truth is not is_other
    return found


def _own(make: Callable[[int], Value], first: int, others: Collection[Value]) -> Value:
    """Return the first of `make(first)`, `make(first + 1)`, ... that no other scalar has, with either sign;
    `make(first)` where all are taken."""
    made = [make(number) for number in range(first, first + N_TRIES)]
    return next((value for value in made if abs(value) not in others), made[0])


def _with_share(rule: FloatRule, value: float, position: int) -> float:
    return rule(value, _share(position))


def _share(position: int) -> float:
    return round(FIRST_SHARE + SHARES * (position * GOLDEN_RATIO % 1.0), SHARE_DIGITS)


def _scalars(source: TargetSource) -> list[GivenNumber]:
    """Return the scalars of the call, then those of its module."""
    given = [scalar for scalar in source.inputs or () if isinstance(scalar, ScalarInput)]
    return [*given, *(source.attributes or ())]


ORDINARY_FAMILIES = ("normal", "large")

_Values = tuple[tuple[str, Number], ...]
"""Names and values of mutated scalars."""


@dataclass(frozen=True, eq=False)
class MutatedTask:
    """The task with other values for the scalars in `names`, which `words` lists. `families` are its input families."""

    task: Task
    names: frozenset[str]
    words: str
    families: tuple[str, ...]

    def failure(self, outcome: CheckOutcome) -> Mismatch | Crashed | TimedOut | Stalled | None:
        """Return the failure that a candidate's outcome on this task proves; None where it is inconclusive."""
        if not isinstance(outcome, Mismatch | Crashed | TimedOut | Stalled) or _is_undefined(outcome):
            return None
        return outcome.model_copy(update={"message": f"with {self.words}: {outcome.message}"})


class ScalarMutation:
    """Captures one task's mutations, each once for all candidates.

    All scalars that a plan takes change at once, each to a value of its own, by the rules above. Fewer
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
        thousand times the work. Raises EnvironmentProblem for a broken machine, TargetError where the worker ended.
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
            if not worker.is_alive:
                raise
            return None
        may_branch = any(isinstance(mutated.value, bool) for _, mutated in pairs)
        if _types(task) != _types(self._task) or not (may_branch or _steps(task) == _steps(self._task)):
            return None
        words = ", ".join(f"{a.name}={_shown(a.value)} instead of {_shown(b.value)}" for b, a in pairs)
        return MutatedTask(task, frozenset(mutated.name for _, mutated in pairs), words, families)


def _taken_scalars(plan: LaunchPlan) -> frozenset[str]:
    """Return the names of the scalars that the plan takes."""
    return frozenset(p.name for each in plan.operations for p in each.parameters if isinstance(p, ScalarParameter))


def _is_undefined(outcome: Mismatch | Crashed | TimedOut | Stalled) -> bool:
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
