"""Detect results of a single number for all inputs: only NaN shows that an input counts."""

from __future__ import annotations

import torch


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
