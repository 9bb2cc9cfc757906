"""Accept both sides of a discontinuity: `round` of 35.4999998 is 35, while a kernel's 35.5000002 rounds to 36, as often
as PyTorch's own f32 is on the other side."""

from __future__ import annotations

import torch

from ..capture.captured import Captured
from ..operators import is_a
from .fp64_reference import Meets
from .rounded_steps import unit_of

LEAST_ELEMENTS, ONE_OF, FEW = 16, 1000, 2
"""Limits on the unspecified elements of an output, as a share and a number. A sum of rounded values would otherwise be
unspecified as a whole, and any sum would pass."""
N_UNITS = 4
"""Maximum error of a value, in units: a quotient of a maximum has three roundings."""


def has_computed_jumps(captured: Captured) -> bool:
    """Check whether the code has a discontinuous function of a computed value."""
    inputs = {argument.name for argument in captured.arguments}
    firsts = (node["arguments"][0] for node in captured.forward_text.nodes if is_a(node["op"], "rounding"))
    return any(isinstance(first, dict) and first.get("node") not in inputs for first in firsts)


def beside_jumps(value: torch.Tensor, meets: Meets, sign: int) -> torch.Tensor:
    """Return the value in float64, larger or smaller by a few units of its computation's type. Inputs and their
    multiples by powers of two, which are exact, stay unchanged."""
    if meets.is_input:
        return value
    is_held = value.to(meets.dtype).double() == value
    return torch.where(is_held, value, value * (1 + sign * N_UNITS * unit_of(meets.dtype)))


def few_of(where: torch.Tensor) -> torch.Tensor:
    """Return the mask, or an empty one where it marks too much of its output."""
    n_open, n = int(where.sum()), where.numel()
    return where if n_open <= min(n // LEAST_ELEMENTS, FEW + n // ONE_OF) else torch.zeros_like(where)
