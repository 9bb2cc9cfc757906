"""Choose other values for the scalars of a plan: a plan must handle every value that it accepts.

A change gives each of several scalars a value of its own, so that swapped scalars show. The four kinds of changes
expose most kernels that do not handle all values: a fraction that no narrow type represents, a negative number, a large
one and zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from kernel_lsp.core.task import AttributeValue, ScalarInput, TargetSource, TensorInput

Value = float | int | bool
GivenNumber = ScalarInput | AttributeValue
Given = TensorInput | GivenNumber
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

    def replaced(given: Given) -> Given:
        is_changed = not isinstance(given, TensorInput) and given.name in values
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
