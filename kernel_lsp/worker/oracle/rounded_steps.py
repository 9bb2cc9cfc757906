"""What functions lose that are written by way of a number near one: `expf(x) - 1`, `logf(1 + expf(x))`. Everybody
writes them so, and of a small result a unit of that one is a large part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

BY_WAY_OF_ONE = tuple(
    f"aten.{name}." for name in ("elu", "celu", "selu", "softplus", "tanh", "log_sigmoid_forward", "mish")
)
"""`expm1` and `log1p` are not among them: who calls them wants what the others lose."""
PRODUCTS = {
    **dict.fromkeys(("aten.mm.default", "aten.bmm.default", "aten.matmul.default", "aten.linear.default"), 0),
    **dict.fromkeys(("aten.addmm.default", "aten.baddbmm.default"), 1),
}
"""The argument whose last dim is summed over. Before an exponential, what such a sum loses grows."""
PER_ROOT_OF_TERMS = 1 / 6
"""Of n roundings, each up to half a unit of a partial sum that grows to the whole: sqrt(n / 36) of a unit."""
TIMES_INPUT = ("aten.mish.",)
"""Of these, products of such a number and the input."""


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
    """The result of an operation, which the code gives this dtype, moved by one unit of one where it goes that way;
    and products by what adding up their terms one by one loses, where that is wanted. The other `sign` moves all the
    other way."""
    if moves_products and op in PRODUCTS:
        n_terms = arguments[PRODUCTS[op]].shape[-1]
        return result * (
            1.0 + of_either_sign(result, sign * PER_ROOT_OF_TERMS * n_terms**0.5 * unit_of(dtype), generator)
        )
    if not op.startswith(BY_WAY_OF_ONE):
        return result
    if isinstance(result, tuple):
        first = with_rounded_steps(op, arguments, result[0], dtype, generator, sign=sign, moves_products=False)
        return (first, *result[1:])
    moves = of_either_sign(result, sign * unit_of(dtype), generator)
    return result + (moves * arguments[0].detach() if op.startswith(TIMES_INPUT) else moves)


def unit_of(dtype: torch.dtype) -> float:
    """The distance from one to the next number of the type that kernels compute in: f32 for narrower ones."""
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps


def of_either_sign(like: torch.Tensor, size: float, generator: torch.Generator) -> torch.Tensor:
    """Numbers of this size in float64, up or down at random, one for each element."""
    signs = torch.randint(0, 2, like.shape, generator=generator, device=like.device)
    return signs.double().mul_(2 * size).sub_(size)
