"""Find halfway cases of a code's roundings: `round(x * 64) / 64` has its ties at odd multiples of 1/128, and `round(x /
7)` at odd multiples of 3.5. Only ties that no step before the rounding moves are useful."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from ..capture.captured import Captured
from ..operators import is_a

MULTIPLES = (1, 2, 3, 5, -1, -2, -3, -5)
"""Multiples of half a step: halfway cases, where rounding modes differ, and whole steps, where floor, ceil and trunc
jump."""
MAX_FACTORS = 4
MAX_ODD_BITS = 8
"""Maximum bits of a factor's odd part: its products with small numbers are then exact in every type."""
MAX_POWER = 20
"""Maximum exponent: factors are between 2^-20 and 2^20."""


def rounding_ties(captured: Captured) -> tuple[float, ...]:
    """Return half and whole steps for each number that the code multiplies or divides by; empty for code that rounds
    nothing."""
    nodes = captured.forward_text.nodes
    if not any(is_a(node["op"], "rounding", "modular", "modular_by_mode") for node in nodes):
        return ()
    steps = [step for node in nodes for step in _steps(node)]
    kept = list(dict.fromkeys(step for step in steps if step not in (1, 2)))[:MAX_FACTORS]
    return tuple(dict.fromkeys(float(step * n / 2) for step in kept for n in MULTIPLES))


# --- below


def _steps(node: dict[str, Any]) -> Iterator[Fraction]:
    """Yield the distance of inputs that such a node maps to consecutive integers: the divisor. For a factor it is the
    reciprocal of its power of two, since the representable ties of 10 are those of 2."""
    if is_a(node["op"], "decimals"):
        yield Fraction(1, 2 ** abs(int(node.get("keywords", {}).get("decimals", 0))))
    for argument in node["arguments"] if is_a(node["op"], "factor", "divisor") else ():
        if isinstance(argument, (int, float)) and not isinstance(argument, bool) and argument:
            factor = abs(Fraction(argument))
            power = _power_of_two(factor)
            if (factor / power).numerator.bit_length() <= MAX_ODD_BITS and 2**-MAX_POWER <= power <= 2**MAX_POWER:
                yield 1 / power if is_a(node["op"], "factor") else factor


def _power_of_two(number: Fraction) -> Fraction:
    """Return the largest power of two that divides a number whose denominator is one."""
    up, down = number.numerator, number.denominator
    return Fraction(up & -up, down)
