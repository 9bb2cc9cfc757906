"""Which integers of a result PyTorch leaves open: of equal elements `topk` and `sort` may give any first, and its own
kernels for CPUs and GPUs give different ones. (`argmax` and `max` promise the first.)"""

from __future__ import annotations

import torch

from .captured import Captured

OPEN = ("aten.topk.", "aten.sort.", "aten.argsort.", "aten.kthvalue.", "aten.median.", "aten.mode.")
"""Do not say which of equal elements comes first."""
FOR_NAN, FOR_INFINITY = 1e300, 1e299
"""Stand in for what is equal to nothing or to itself, in PyTorch's order of them."""
STEP = 1e-9
"""Relative, at most: elements that differ in f32 stay in their order."""
N_ROUNDINGS = 8
"""That what was computed may be off by."""
N_ORDERS = 8
"""Each second one the reverse of that before it, in which another of two that are equal comes first. Enough that the
middle one of three is not in the middle of all of them."""
CPU = torch.device("cpu")


def are_left_open(captured: Captured) -> bool:
    """Whether the code has an operation that does not say which of equal elements comes first."""
    nodes = captured.forward_text.nodes
    return any(n["op"].startswith(OPEN) and n.get("keywords", {}).get("stable") is not True for n in nodes)


def in_some_order(
    value: torch.Tensor, dtype: torch.dtype, is_input: bool, generator: torch.Generator, is_reversed: bool
) -> torch.Tensor:
    """Floating values in float64 with all that is equal in this dtype made different, in any order or in its reverse;
    and all that is nearly equal, where it was computed, which a kernel rounds otherwise."""
    rounded = value.to(dtype).double()
    wide = torch.nan_to_num(rounded, nan=FOR_NAN, posinf=FOR_INFINITY, neginf=-FOR_INFINITY)
    step = STEP if is_input else N_ROUNDINGS * torch.finfo(dtype).eps
    drawn = torch.rand(wide.shape, dtype=torch.float64, generator=generator, device=CPU)
    steps = step * (1 - drawn if is_reversed else drawn).to(wide.device)
    sizes = wide.abs()
    positive = sizes[sizes > 0]
    least = float(positive.min()) if positive.numel() else 1.0
    return wide + steps * sizes.clamp(min=least)
