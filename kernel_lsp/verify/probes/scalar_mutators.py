"""Other values for the numbers that a plan takes: what it takes it says it handles.

A change gives each of several numbers a value of its own, so that one that stands in for another shows. Changes are of
four kinds, which are enough to tell most kernels that do not handle all: a fraction that no narrow type holds, a number
below zero, a large one and zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from kernel_lsp.core.target import ScalarInput, TargetSource

Value = float | int | bool
FloatRule = Callable[[float, float], float]
"""The other value for a float; the second number is a share between 0.3 and 0.9, another one for each float."""
IsTaken = Callable[[str, Value], bool]
"""Whether the plan takes a value for the number of that name, the others being what they are."""
IntegerRule = Callable[[int, int], int]
"""The other value for a whole number; the second number is a distance of at least one, to be made larger until no two
come to the same."""

FIRST_SHARE, SHARES = 0.3, 0.6
GOLDEN_RATIO = 0.6180339887
"""Its multiples, less what is whole of them, are far from each other, however many there are."""
SHARE_DIGITS = 3
"""Decimal fractions of three digits are no binary ones, but for a few: f16 and bf16 do not hold them."""
FAR = 1_000
"""Added to whole numbers: more than the sizes of small cases. A shift goes round then."""
LARGE = 15_000.0
"""Large for a factor, and nothing that ordinary numbers of f16 become infinite by."""
SMALLEST_ORDINARY = 1e-2
"""Smaller numbers may be guards against division by zero: zero in their place leaves nothing to compute, and what they
are added to must stay what it is."""
GUARD_PART = 1e-3
"""Of a guard, times a share: one that is kept from becoming as small as its caller wants is found then."""
STEP_NEARBY = 0.1
POWERS_NEARBY = 8
N_TRIES = 16


@dataclass(frozen=True)
class Change:
    """What becomes of numbers. `shares` is for floats between zero and one, which may be probabilities. Of truth values
    every so-and-so-many-th becomes the other one, or what has that `rest`; none where `every` is zero. `is_in_order`
    says that the floats' new values are in the order of the captured ones: a lower limit stays below the upper.
    `families` are of inputs that show it, beside ordinary ones, and `guard_families` where one of the numbers is a
    guard."""

    floats: FloatRule
    shares: FloatRule
    integers: IntegerRule
    every: int = 0
    rest: int = 0
    is_in_order: bool = False
    families: tuple[str, ...] = ()
    guard_families: tuple[str, ...] = ()


def fraction(value: float, share: float) -> float:
    """Between zero and one, of the same sign; guards far smaller."""
    if is_guard(value):
        return value * share * GUARD_PART
    return value * share if 0.0 < abs(value) <= 1.0 else math.copysign(share, value)


def negated(value: float, share: float) -> float:
    """Of the other sign. No larger than it was, but for one and zero: large inputs, multiplied, stay above a mask."""
    return -value * share if 0.0 < abs(value) < 1.0 else -math.copysign(1.0 + share, value)


def large(value: float, share: float) -> float:
    """Far beyond one, of the same sign; guards a little beyond."""
    return math.copysign((1.0 if is_guard(value) else LARGE) * (1.0 + share), value)


def zero(value: float, share: float) -> float:
    """Guards stay what they are."""
    return nearby(value, share) if is_guard(value) else 0.0


def nearby(value: float, share: float) -> float:
    """A little less, of the same sign: for what is refused further away."""
    return value * (1.0 - STEP_NEARBY * share) if value else STEP_NEARBY * share


def dyadic(value: float, share: float) -> float:
    """A power of two nearby, of the same sign. Zero stays zero."""
    if not value:
        return value
    return math.copysign(2.0 ** (round(math.log2(abs(value))) - round(POWERS_NEARBY * share)), value)


def more(value: int, distance: int) -> int:
    return value + distance


def far(value: int, distance: int) -> int:
    return value + FAR + distance


def opposite(value: int, distance: int) -> int:
    """Of the other sign, zero included."""
    return -value - distance


def few(value: int, distance: int) -> int:
    """One, two and so on in place of positive numbers: less than the sizes of small cases, in which larger ones may all
    do the same."""
    return distance if value > 0 else value


def same(value: int, _: int) -> int:
    return value


OVERFLOWING = ("large",)
"""A maximum that is subtracted before a number of the other sign is multiplied overflows for large inputs."""
GUARDED = ("tiny",)
"""Beside such small inputs a guard matters, however small it is."""
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
"""For what rounds: a step that is a power of two has halves that are numbers.

Of each the first that is possible is tried: those behind it leave more as it is."""


def changed(source: TargetSource, names: Collection[str], change: Change, is_taken: IsTaken) -> TargetSource:
    """The target with other values for the numbers with these names, where there are any. A number that the change
    gives a value that is not taken stays nearby instead, or what it is."""
    if source.inputs is None:
        return source
    values = _values(_scalars(source, names), change, is_taken)
    inputs = tuple(
        ScalarInput(name=given.name, value=values[given.name])
        if isinstance(given, ScalarInput) and given.name in values
        else given
        for given in source.inputs
    )
    return source.model_copy(update={"inputs": inputs})


def changed_numbers(before: TargetSource, after: TargetSource) -> list[tuple[ScalarInput, ScalarInput]]:
    """The numbers that are not the same, before and after."""
    both = zip(before.inputs or (), after.inputs or (), strict=True)
    return [(b, a) for b, a in both if isinstance(b, ScalarInput) and isinstance(a, ScalarInput) and b != a]


def is_guard(value: float) -> bool:
    """Whether the number may guard a division."""
    return 0.0 < abs(value) < SMALLEST_ORDINARY


# --- below


def _values(scalars: Sequence[ScalarInput], change: Change, is_taken: IsTaken) -> dict[str, Value]:
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
    """The first of what is made of numbers from `first` on that no other has, with either sign; what is made of `first`
    where all have."""
    made = [make(number) for number in range(first, first + N_TRIES)]
    return next((value for value in made if abs(value) not in others), made[0])


def _with_share(rule: FloatRule, value: float, position: int) -> float:
    return rule(value, _share(position))


def _share(position: int) -> float:
    return round(FIRST_SHARE + SHARES * (position * GOLDEN_RATIO % 1.0), SHARE_DIGITS)


def _scalars(source: TargetSource, names: Collection[str]) -> list[ScalarInput]:
    return [given for given in source.inputs or () if isinstance(given, ScalarInput) and given.name in names]
