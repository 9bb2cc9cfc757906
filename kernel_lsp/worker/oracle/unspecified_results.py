"""Find results for which more than one value is correct, or that are a single number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ..capture.captured import Captured
from ..operators import is_a
from .fp64_reference import Meets
from .roundings import unit_of

LEAST_ELEMENTS, ONE_OF, FEW = 16, 1000, 2
"""Limits on the unspecified elements of an output, as a share and a number. A sum of rounded values would otherwise be
unspecified as a whole, and any sum would pass."""
N_UNITS = 4
"""Maximum error of a value, in units: a quotient of a maximum has three roundings."""


def undecided(
    expected: Sequence[torch.Tensor], others: Iterable[Sequence[torch.Tensor]], *, among_floats: bool
) -> list[torch.Tensor]:
    """Return for each result the mask of non-NaN elements that differ in one of the `others`. Floating results are
    included only with `among_floats`."""
    where = [torch.zeros_like(one, dtype=torch.bool) for one in expected]
    for results in others:
        where = [
            w | (~torch.isnan(e) & (e != r)) if among_floats or not e.is_floating_point() else w
            for w, e, r in zip(where, expected, results)
        ]
    return where


def is_fixed(result: torch.Tensor) -> bool:
    """Check whether all numbers among many elements are equal: only NaN shows that inputs count."""
    if not result.is_floating_point():
        return False
    numbers = result[torch.isfinite(result)]
    return len(numbers) > 1 and bool(is_constant(numbers))


def is_constant(result: torch.Tensor) -> torch.Tensor:
    """Check whether many elements are all equal: a result independent of its inputs loses nothing."""
    flat = result.reshape(-1)
    return (flat == flat[:1]).all() & (len(flat) > 1)


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
