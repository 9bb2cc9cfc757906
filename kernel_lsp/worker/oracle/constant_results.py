"""Results that are one number, whatever comes in: nothing of them says that an input counts, but NaN."""

from __future__ import annotations

import torch


def is_fixed(result: torch.Tensor) -> bool:
    """Whether all numbers among many elements are one: then only NaN shows that inputs count."""
    if not result.is_floating_point():
        return False
    numbers = result[torch.isfinite(result)]
    return len(numbers) > 1 and bool(is_constant(numbers))


def is_constant(result: torch.Tensor) -> torch.Tensor:
    """Whether many elements are all one number: of what does not depend on its inputs, nothing is left out."""
    flat = result.reshape(-1)
    return (flat == flat[:1]).all() & (len(flat) > 1)
