"""Values that a computation leaves beside a jump: `round` of 35.4999998 is 35, and of what a kernel computes there 36,
as often as PyTorch's own f32 is on the other side."""

from __future__ import annotations

import torch

from ..capture.captured import Captured
from .fp64_reference import Meets
from .rounded_steps import unit_of

JUMPS = tuple(f"aten.{name}." for name in "round floor ceil trunc".split())
LEAST_ELEMENTS, ONE_OF, FEW = 16, 1000, 2
"""Of an output only so few may be open: of a sum of what was rounded all would be, and then any sum would do."""
N_UNITS = 4
"""That a value may be off by: a quotient of a maximum has three roundings."""


def has_computed_jumps(captured: Captured) -> bool:
    """Whether the code has a jump of what it computed."""
    inputs = {argument.name for argument in captured.arguments}
    firsts = (node["arguments"][0] for node in captured.forward_text.nodes if node["op"].startswith(JUMPS))
    return any(isinstance(first, dict) and first.get("node") not in inputs for first in firsts)


def beside_jumps(value: torch.Tensor, meets: Meets, sign: int) -> torch.Tensor:
    """The value in float64, larger or smaller by a few units of the type that it is computed in. What its own type
    holds, as inputs and their multiples by powers of two are, stays: nothing was rounded."""
    if meets.is_input:
        return value
    is_held = value.to(meets.dtype).double() == value
    return torch.where(is_held, value, value * (1 + sign * N_UNITS * unit_of(meets.dtype)))


def few_of(where: torch.Tensor) -> torch.Tensor:
    """Those marked, or none where they are too many of their output to leave them open."""
    n_open, n = int(where.sum()), where.numel()
    return where if n_open <= min(n // LEAST_ELEMENTS, FEW + n // ONE_OF) else torch.zeros_like(where)
