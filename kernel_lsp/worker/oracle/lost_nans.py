"""Compute results in which maxima, minima and limits drop NaN, as `fmaxf`, `fminf` and `x > 0 ? x : 0` do, and most
kernels with them. Such results are accepted with a warning where PyTorch, which propagates NaN, has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..capture.captured import Captured
from ..operators import is_a

NEVER_THE_LARGEST, NEVER_THE_LEAST = float("-inf"), float("inf")
CONVOLUTION = "aten.convolution."
N_WAYS = 2
STAND_INS_OF_NAN = (1e30, -1e30, 0.0)
"""Replacements of NaN: beyond any threshold, on both sides, and between two."""
CONCERNED = {"nan_zero": slice(1), "gated_gradient": slice(1, None)}
"""The arguments whose NaN counts, for kinds of which not all do: the value, and all but the gradient."""


@dataclass(frozen=True)
class Lost:
    """A result with numbers in place of NaNs that may be dropped (`where`). At `any_of` any number is accepted."""

    result: torch.Tensor
    any_of: torch.Tensor
    where: torch.Tensor


def may_lose_nans(captured: Captured) -> bool:
    """Check whether the forward has an operation that may drop NaN."""
    return captured.has("nan_lowest", "nan_highest", "nan_either", "nan_zero")


class NansReplaced(TorchDispatchMode):
    """Replaces NaN in the arguments of operations: `stand_ins` has a number for each kind of them, a word of
    `operators.json`. The first kind that an operation is of counts."""

    def __init__(self, stand_ins: Mapping[str, float]) -> None:
        super().__init__()
        self._stand_ins = stand_ins

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = next((kind for kind in self._stand_ins if is_a(func, kind)), None)
        if kind is not None:
            places = range(len(args))[CONCERNED.get(kind, slice(None))]
            args = tuple(_replaced(arg, self._stand_ins[kind]) if at in places else arg for at, arg in enumerate(args))
        return func(*args, **(kwargs or {}))


def dropping_nans(way: int) -> NansReplaced:
    """Return the mode in which operations drop NaN: by the lower limit for `way` 0, by the upper one for 1."""
    limit = (NEVER_THE_LARGEST, NEVER_THE_LEAST)[way]
    return NansReplaced({"nan_lowest": NEVER_THE_LARGEST, "nan_highest": NEVER_THE_LEAST, "nan_either": limit})


def selecting_by(stand_in: float) -> NansReplaced:
    """Return the mode in which a number stands for NaN where that selects a piece of a gradient."""
    return NansReplaced({"ordering": stand_in, "gated_gradient": stand_in})


def other_starts(captured: Captured) -> list[TorchDispatchMode]:
    """Return the modes of other initial values of kernels that drop NaN."""
    modes: list[TorchDispatchMode] = []
    if captured.has("maximum_of_many", "minimum_of_many"):
        modes.append(FromTheLowest())
    if captured.has("nan_zero"):
        # The sum of a maximum and a minimum with zero, by `fmaxf` and `fminf`.
        modes.append(NansReplaced({"nan_zero": 0.0}))
    if captured.has("convolution", "convolution_gradient"):
        modes.append(SkippedPadding())
    return modes


def lost_in(
    expected: torch.Tensor, native: torch.Tensor, ways: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
) -> Lost:
    """Return where PyTorch has only NaN, and where some of `ways`, or of `others` with other initial values, has a
    number. For integers, return where another one is, which is correct as well as PyTorch's own."""
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
    """Return the result for which no NaN may be dropped."""
    nowhere = torch.zeros_like(expected, dtype=torch.bool)
    return Lost(expected, nowhere, nowhere)


def from_the_lowest(expected: torch.Tensor, native: torch.Tensor, way: torch.Tensor) -> torch.Tensor:
    """Accept the lowest number in place of minus infinity for maxima, and the like for minima, where a kernel may start
    with it."""
    if not expected.is_floating_point():
        return expected
    return torch.where(torch.isinf(expected) & (expected == native) & torch.isfinite(way), way, expected)


class FromTheLowest(TorchDispatchMode):
    """Bounds maxima of many by the lowest number of f32 from below, and minima by the largest from above, as in kernels
    that start with FLT_MAX or its negative."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not is_a(func, "maximum_of_many", "minimum_of_many"):
            return result
        is_largest = is_a(func, "maximum_of_many")
        if isinstance(result, tuple):
            return (_begun(result[0], is_largest=is_largest), *result[1:])
        return _begun(result, is_largest=is_largest)


class SkippedPadding(TorchDispatchMode):
    """Convolutions whose NaN weights skip the zeros of the padding."""

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
