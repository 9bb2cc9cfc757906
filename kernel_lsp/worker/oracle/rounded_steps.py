"""Perturb functions that are computed through a number near one: `expf(x) - 1`, `logf(1 + expf(x))`. Most kernels use
these forms, in which one unit of that number is a large part of a small result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..operators import is_a

PER_ROOT_OF_TERMS = 1 / 6
"""Error per root of terms: n roundings, each up to half a unit of a partial sum that grows to the whole, give sqrt(n /
36) of a unit."""


def with_rounded_steps(
    op: str,
    arguments: Sequence[Any],
    result: Any,
    dtype: torch.dtype,
    generator: torch.Generator,
    *,
    sign: int,
    moves_products: bool,
) -> Any:
    """Return the result of an operation with this dtype in the code, perturbed by one unit of one where the operation
    is computed through one. With `moves_products`, products are perturbed by the error of a serial sum of their terms,
    which an exponential amplifies.
    The other `sign` reverses all perturbations."""
    if moves_products and is_a(op, "product"):
        n_terms = arguments[is_a(op, "biased")].shape[-1]
        return result * (
            1.0 + of_either_sign(result, sign * PER_ROOT_OF_TERMS * n_terms**0.5 * unit_of(dtype), generator)
        )
    if not is_a(op, "through_one"):
        return result
    if isinstance(result, tuple):
        first = with_rounded_steps(op, arguments, result[0], dtype, generator, sign=sign, moves_products=False)
        return (first, *result[1:])
    moves = of_either_sign(result, sign * unit_of(dtype), generator)
    return result + (moves * arguments[0].detach() if is_a(op, "times_input") else moves)


def unit_of(dtype: torch.dtype) -> float:
    """Return the distance from one to the next number of the type that kernels compute in: f32 for narrower ones."""
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps


def of_either_sign(like: torch.Tensor, size: float, generator: torch.Generator) -> torch.Tensor:
    """Return float64 numbers of this size with random signs, one for each element."""
    signs = torch.randint(0, 2, like.shape, generator=generator, device=like.device)
    return signs.double().mul_(2 * size).sub_(size)
