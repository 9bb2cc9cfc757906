"""Results in which maxima, minima and limits leave NaN out, as `fmaxf`, `fminf` and `x > 0 ? x : 0` do, and most
kernels with them: right where PyTorch, which lets NaN through, has one, and worth a warning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..capture.captured import Captured

NEVER_THE_LARGEST, NEVER_THE_LEAST = float("-inf"), float("inf")
LARGEST = tuple(
    f"aten.{name}."
    for name in (
        *("relu", "relu6", "threshold", "clamp_min", "maximum", "max", "amax", "argmax"),
        *("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices"),
        *("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    )
)
LEAST = tuple(f"aten.{name}." for name in ("clamp_max", "minimum", "min", "amin", "argmin"))
LIMITED = tuple(f"aten.{name}." for name in ("clamp", "hardtanh", "hardsigmoid"))
"""Of NaN, one limit or the other is left, by which is applied first."""
LARGEST_OF_MANY = ("aten.max.", "aten.amax.", "aten.max_pool", "aten.adaptive_max_pool")
LEAST_OF_MANY = ("aten.min.", "aten.amin.")
OF_BOTH_SIDES = ("aten.elu.", "aten.leaky_relu.")
"""The sum of a maximum and a minimum with zero, as PyTorch documents them: of NaN, each is zero."""
CONVOLUTION = "aten.convolution."
N_WAYS = 2


@dataclass(frozen=True)
class Lost:
    """One result with numbers in place of NaNs that may be lost (`where`); in the places `any_of` any number may be."""

    result: torch.Tensor
    any_of: torch.Tensor
    where: torch.Tensor


def may_lose_nans(captured: Captured) -> bool:
    """Whether the forward has an operation that may leave NaN out."""
    ops = (*LARGEST, *LEAST, *LIMITED, *OF_BOTH_SIDES)
    return any(node["op"].startswith(ops) for node in captured.forward_text.nodes)


class WithoutNans(TorchDispatchMode):
    """What leaves NaN out does not see any. `way` 0 gives NaN the lower limit, 1 the upper one."""

    def __init__(self, way: int) -> None:
        super().__init__()
        self._limit = (NEVER_THE_LARGEST, NEVER_THE_LEAST)[way]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        stand_in = self._stand_in(str(func))
        if stand_in is not None:
            args = tuple(_replaced(arg, stand_in) for arg in args)
        return func(*args, **(kwargs or {}))

    def _stand_in(self, name: str) -> float | None:
        if name.startswith(LARGEST):
            return NEVER_THE_LARGEST
        if name.startswith(LEAST):
            return NEVER_THE_LEAST
        return self._limit if name.startswith(LIMITED) else None


def other_starts(captured: Captured) -> list[TorchDispatchMode]:
    """How kernels that leave NaN out may differ in what they begin with."""
    modes: list[TorchDispatchMode] = []
    if any(node["op"].startswith((*LARGEST_OF_MANY, *LEAST_OF_MANY)) for node in captured.forward_text.nodes):
        modes.append(FromTheLowest())
    if any(node["op"].startswith(OF_BOTH_SIDES) for node in captured.forward_text.nodes):
        modes.append(WithoutSides())
    if any(node["op"].startswith(("aten.conv", CONVOLUTION)) for node in captured.forward_text.nodes):
        modes.append(SkippedPadding())
    return modes


def lost_in(
    expected: torch.Tensor, native: torch.Tensor, ways: Sequence[torch.Tensor], others: Sequence[torch.Tensor] = ()
) -> Lost:
    """Where PyTorch has nothing but NaN, and something else is left in some of `ways`, or in `others`, which begin with
    something else; of integers, where another one is, which is right beside PyTorch's own."""
    if not expected.is_floating_point():
        differing = ways[0] != expected
        return Lost(torch.where(differing, ways[0], expected), ways[0] != ways[-1], differing)
    is_same = ways[0] == ways[-1]
    left = torch.where(torch.isfinite(ways[0]) | is_same, ways[0], ways[-1])
    are_several = torch.isfinite(ways[0]) & torch.isfinite(ways[-1]) & ~is_same
    for other in others:
        are_several |= (other != left) & ~torch.isnan(other) & ~torch.isnan(left)
        left = torch.where(torch.isnan(left), other, left)
    missing = torch.isnan(expected) & torch.isnan(native) & ~torch.isnan(left)
    return Lost(torch.where(missing, left, expected), missing & are_several, missing)


def lost_nowhere(expected: torch.Tensor) -> Lost:
    """Nothing may be left out."""
    nowhere = torch.zeros_like(expected, dtype=torch.bool)
    return Lost(expected, nowhere, nowhere)


def from_the_lowest(expected: torch.Tensor, native: torch.Tensor, way: torch.Tensor) -> torch.Tensor:
    """With the lowest number beside minus infinity, and the like for minima, where a kernel may begin with that."""
    if not expected.is_floating_point():
        return expected
    return torch.where(torch.isinf(expected) & (expected == native) & torch.isfinite(way), way, expected)


class FromTheLowest(TorchDispatchMode):
    """Maxima of many are at least the lowest number of f32, and minima at most the largest, as in kernels that begin
    with FLT_MAX or its negative."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func)
        if not name.startswith((*LARGEST_OF_MANY, *LEAST_OF_MANY)):
            return result
        is_largest = name.startswith(LARGEST_OF_MANY)
        if isinstance(result, tuple):
            return (_begun(result[0], is_largest=is_largest), *result[1:])
        return _begun(result, is_largest=is_largest)


class WithoutSides(TorchDispatchMode):
    """What is a maximum and a minimum with zero gives zero for NaN, as the sum of `fmaxf` and `fminf` does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func).startswith(OF_BOTH_SIDES):
            args = (_replaced(args[0], 0.0), *args[1:])
        return func(*args, **(kwargs or {}))


class SkippedPadding(TorchDispatchMode):
    """Convolutions whose NaN weights never meet the zeros of the padding."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not str(func).startswith(CONVOLUTION) or not bool(torch.isnan(args[1]).any()):
            return func(*args, **(kwargs or {}))
        value, weight, bias, *how = args
        met = func(torch.ones_like(value), torch.isnan(weight).to(weight.dtype), None, *how) > 0
        return torch.where(met, torch.nan, func(value, torch.nan_to_num(weight), bias, *how))


def _begun(value: torch.Tensor, *, is_largest: bool) -> torch.Tensor:
    if not value.is_floating_point():
        return value
    end = torch.finfo(torch.float32).max
    return value.clamp(min=-end) if is_largest else value.clamp(max=end)


def _replaced(value: Any, stand_in: float) -> Any:
    is_number = isinstance(value, torch.Tensor) and value.is_floating_point()
    return torch.where(torch.isnan(value), stand_in, value) if is_number else value
