"""Accept gradients that depend on a forward NaN's branch: `x > 0 ? g : 0` is zero for it, while PyTorch's `relu` passes
the gradient. Neither hides anything: the forward's result is NaN there, or its verdict warns that it is not."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..operators import is_a

STAND_INS = (1e30, -1e30, 0.0)
"""Replacements of NaN: beyond any threshold, on both sides, and between two."""


class NansAs(TorchDispatchMode):
    """Replaces NaN by a number where it selects a piece of a gradient."""

    def __init__(self, stand_in: float) -> None:
        super().__init__()
        self._stand_in = stand_in

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_a(func, "ordering"):
            args = tuple(map(self._decided, args))
        elif is_a(func, "gated_gradient"):
            args = (args[0], *map(self._decided, args[1:]))
        return func(*args, **(kwargs or {}))

    def _decided(self, value: Any) -> Any:
        is_number = isinstance(value, torch.Tensor) and value.is_floating_point()
        return torch.where(torch.isnan(value), self._stand_in, value) if is_number else value
