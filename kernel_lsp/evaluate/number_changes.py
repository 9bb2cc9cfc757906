"""Other values for the numbers that a plan takes: what it takes it says it handles.

Two changes are enough to tell most kernels that do not: one to the far side of 1, where a formula for fractions ends,
and one that turns numbers round, as their sign, their order or zero does."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from kernel_lsp.core.target import ScalarInput, TargetSource

FACTOR = 0.75
"""Keeps the sign, the magnitude, and a probability's range."""
INSTEAD_OF_ZERO = 0.25
FAR = 1_001
"""Added to whole numbers."""
SMALLEST_ORDINARY = 1e-2
"""Smaller numbers are guards against division by zero: with zero in their place there is nothing to compute."""

Change = Callable[[TargetSource, Collection[str]], TargetSource]
"""The target with other values for the numbers with these names, where there are any."""


def far(source: TargetSource, names: Collection[str]) -> TargetSource:
    """As `beyond_one`, with whole numbers that are larger than the sizes of small cases: a shift goes round then."""
    return _changed(
        source, names, lambda v: v + FAR if isinstance(v, int) and not isinstance(v, bool) else _beyond_one(v)
    )


def beyond_one(source: TargetSource, names: Collection[str]) -> TargetSource:
    """Fractions become larger than one, other floats smaller, whole numbers one more. Truth values stay."""
    return _changed(source, names, _beyond_one)


def nearby(source: TargetSource, names: Collection[str]) -> TargetSource:
    """Floats of the same kind: for what is refused beyond one, e.g. a probability. The others stay."""
    return _changed(source, names, _nearby)


def turned(source: TargetSource, names: Collection[str]) -> TargetSource:
    """Several floats in reverse order, so that a lower limit is above the upper; a single one is zero. Whole numbers
    change their sign, truth values are the other."""
    floats = [given for given in _scalars(source, names) if type(given.value) is float]
    backwards = iter([given.value for given in reversed(floats)])

    def value_of(value: float | int | bool) -> float | int | bool:
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return -value - 1
        if len(floats) > 1:
            return next(backwards)
        return 0.0 if abs(value) >= SMALLEST_ORDINARY else _nearby(value)

    return _changed(source, names, value_of)


def changed_numbers(before: TargetSource, after: TargetSource) -> list[tuple[ScalarInput, ScalarInput]]:
    """The numbers that are not the same, before and after."""
    both = zip(before.inputs or (), after.inputs or (), strict=True)
    return [(b, a) for b, a in both if isinstance(b, ScalarInput) and isinstance(a, ScalarInput) and b != a]


def _beyond_one(value: float | int | bool) -> float | int | bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value + 1
    return math.copysign(1.0 + abs(value), value) if abs(value) <= 1.0 else value * FACTOR


def _nearby(value: float | int | bool) -> float | int | bool:
    return value * FACTOR or INSTEAD_OF_ZERO if isinstance(value, float) else value


def _changed(
    source: TargetSource, names: Collection[str], value_of: Callable[[float | int | bool], float | int | bool]
) -> TargetSource:
    if source.inputs is None:
        return source
    inputs = tuple(
        ScalarInput(name=given.name, value=value_of(given.value))
        if isinstance(given, ScalarInput) and given.name in names
        else given
        for given in source.inputs
    )
    return source.model_copy(update={"inputs": inputs})


def _scalars(source: TargetSource, names: Collection[str]) -> list[ScalarInput]:
    return [given for given in source.inputs or () if isinstance(given, ScalarInput) and given.name in names]
