"""Numbers that a code rounds, and that lie in the middle: `round(x * 64) / 64` has its ties at odd parts of 128, and
`round(x / 7)` at odd multiples of 3.5. Only those are of use that no step before the rounding moves."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from ..capture.captured import Captured

_NAMES = ("round", "floor", "ceil", "trunc", "frac", "remainder", "fmod", "floor_divide")
ROUNDINGS = (*(f"aten.{name}." for name in _NAMES), "aten.div.Tensor_mode", "aten.div.Scalar_mode")
MULTIPLES = (1, 2, 3, 5, -1, -2, -3, -5)
"""Of half a step: what is in the middle, where kinds of rounding differ, and whole steps, where floor, ceil and trunc
jump."""
MAX_FACTORS = 4
MAX_ODD_BITS = 8
"""Of a factor's digits: with so few its products with small numbers are exact in every type."""
MAX_POWER = 20
"""Factors are between 2^-20 and 2^20."""
PRODUCTS, QUOTIENTS = ("aten.mul.",), ("aten.div.", "aten.remainder.", "aten.fmod.", "aten.floor_divide.")
DECIMALS = "aten.round.decimals"


def rounding_ties(captured: Captured) -> tuple[float, ...]:
    """Halves and wholes of a step, for each number that the code multiplies or divides by; none for a code that rounds
    nothing."""
    nodes = captured.forward_text.nodes
    if not any(node["op"].startswith(ROUNDINGS) for node in nodes):
        return ()
    steps = [step for node in nodes for step in _steps(node)]
    kept = list(dict.fromkeys(step for step in steps if step not in (1, 2)))[:MAX_FACTORS]
    return tuple(dict.fromkeys(float(step * n / 2) for step in kept for n in MULTIPLES))


# --- below


def _steps(node: dict[str, Any]) -> Iterator[Fraction]:
    """How far apart the inputs are that such a node takes from one whole number to the next: the divisor, and for a
    factor the power of two in it, since the ties of 10 that are numbers are those of 2."""
    if node["op"].startswith(DECIMALS):
        yield Fraction(1, 2 ** abs(int(node.get("keywords", {}).get("decimals", 0))))
    for argument in node["arguments"] if node["op"].startswith((*PRODUCTS, *QUOTIENTS)) else ():
        if isinstance(argument, (int, float)) and not isinstance(argument, bool) and argument:
            factor = abs(Fraction(argument))
            power = _power_of_two(factor)
            if (factor / power).numerator.bit_length() <= MAX_ODD_BITS and 2**-MAX_POWER <= power <= 2**MAX_POWER:
                yield 1 / power if node["op"].startswith(PRODUCTS) else factor


def _power_of_two(number: Fraction) -> Fraction:
    """The largest that divides a number whose denominator is one."""
    up, down = number.numerator, number.denominator
    return Fraction(up & -up, down)
