"""Draw integer and boolean inputs of each family.

The range of most integers is unknown, unless code indexes with them or a range is stated. Without either, they span
their dtype, and the families differ in where errors show: past 24 bits, which a float holds, past 31, at negative
numbers. PyTorch itself may refuse such numbers: the family then has `PLAIN` ones.
"""

from __future__ import annotations

import math
from typing import Callable

import torch

PLAIN = "plain"
"""Zeros and ones, for any family."""
GREATEST = "greatest_integers"
"""The family whose tensors each hold one number throughout, the largest possible."""
LATE, LATE_PART = "late_extremes", 16
"""The family with indices in the last part of the indexed dim, and the number of parts."""
SMALL, HUNDREDS = 3, 200
NEAR = 8
"""Maximum distance from a power of two."""
FEW_PART = 16
"""Share of true values in a sparse row; other rows have one or none."""
FLOAT_BITS, WORD_BITS = 24, 31
"""Bits of the integers that float represents exactly, and of 32-bit integers without their sign."""

Limits = tuple[int, int]
Make = Callable[[tuple[int, ...], Limits, torch.Generator], torch.Tensor]


def _between(low: int, high: int) -> Make:
    """Return a generator of numbers from [low, high], within the dtype's range."""

    def make(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
        return torch.randint(max(low, limits[0]), min(high, limits[1]) + 1, shape, generator=generator)

    return make


def _all(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
    """Draw any number of the dtype, with its minimum and maximum among them."""
    # `randint` has no end beyond the largest 64-bit number, which is placed anyway.
    drawn = torch.randint(limits[0], limits[1], shape, generator=generator)
    places = torch.randperm(drawn.numel(), generator=generator)[:2]
    drawn.view(-1)[places] = torch.tensor(limits)[: len(places)]
    return drawn


def _around(n_bits: int) -> Make:
    """Return a generator of numbers of either sign near a power of two. A dtype that is too narrow has its own limits
    instead."""

    def make(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
        power = min(1 << n_bits, limits[1] - NEAR)
        near = power + torch.randint(-NEAR, NEAR + 1, shape, generator=generator)
        sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
        return near * sign if limits[0] < 0 else near

    return make


def _equal(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
    value = _between(-HUNDREDS, HUNDREDS)((1,), limits, generator)
    return value.expand(shape).clone()


def _zeros(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def _single(value: int) -> Make:
    """Return a generator of zeros and ones: half of the rows along the last dim, and one element of each other row, are
    `value`; the rest is the other number."""

    def make(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
        if not shape:
            return torch.full(shape, value)
        rows = (*shape[:-1], 1)
        drawn = torch.full(shape, 1 - value)
        drawn.scatter_(-1, torch.randint(0, shape[-1], rows, generator=generator), value)
        return torch.where(torch.randint(0, 2, rows, generator=generator) == 0, 1 - value, drawn)

    return make


def _equal_rows(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
    rows = (*shape[:-1], 1) if shape else shape
    return torch.randint(0, 2, rows, generator=generator).expand(shape).clone()


def _few(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
    """Draw masks whose rows along the last dim have, by turns, one true value, few, and none. A mean over a mask
    divides by their number."""
    if not shape:
        return torch.ones(shape, dtype=torch.int64)
    rows = (*shape[:-1], 1)
    places = torch.randint(0, shape[-1], rows, generator=generator)
    single = torch.zeros(shape, dtype=torch.int64).scatter_(-1, places, 1)
    few = single | (torch.randint(0, FEW_PART, shape, generator=generator) == 0)
    nth = (torch.arange(math.prod(rows)) % 3).view(rows)
    return torch.where(nth == 0, single, torch.where(nth == 1, few, 0))


def greatest_odd(low: int, high: int) -> int:
    """Return the odd integer of the largest magnitude in [low, high], where there is one. An odd number of them has an
    odd sum, which cannot be correctly rounded by chance."""
    ends = [n for n in (high, high - 1, low + 1, low) if low <= n <= high]
    return max([n for n in ends if n % 2] or ends, key=abs)


def _greatest(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
    return torch.full(shape, greatest_odd(*limits))


def _late(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
    """Draw values that grow with their position, of either sign where negative ones are allowed."""
    n = math.prod(shape)
    sign = torch.randint(0, 2, (n,), generator=generator) * 2 - 1 if limits[0] < 0 else 1
    return (torch.arange(n) * min(limits[1], HUNDREDS * n) // max(n, 1) * sign).view(shape)


_plain = _between(0, 1)
UNLIMITED: dict[str, Make] = {
    "small_integers": _between(-SMALL, SMALL),
    "halves": _between(-HUNDREDS, HUNDREDS),
    "negative": _between(-HUNDREDS, -1),
    "scaled_up": _all,
    "uniform": _all,
    "large": _around(FLOAT_BITS),
    "scaled_down": _around(WORD_BITS),
    "huge": _around(WORD_BITS),
    "constant_rows": _equal,
    "equal_integers": _equal,
    GREATEST: _greatest,
    LATE: _late,
    "zeros": _zeros,
    "one_hot": _single(1),
    "needles": _single(0),
}
"""Family -> integers limited only by their dtype; zeros and ones for the others."""
TRUTH_VALUES: dict[str, Make] = {
    "constant_rows": _equal_rows,
    "equal_integers": _equal_rows,
    GREATEST: _greatest,
    "zeros": _zeros,
    "one_hot": _single(1),
    "needles": _single(0),
    "uniform": _few,
}
"""Family -> booleans. Random ones make `any` always true and `all` always false. In `one_hot` the other inputs are
nearly all zero, so a mask has little effect on them; in `uniform` they are not."""


def unlimited(family: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Draw integers, or booleans, of a family over the range of their dtype."""
    if dtype == torch.bool:
        return TRUTH_VALUES.get(family, _plain)(shape, (0, 1), generator).to(dtype)
    limits = (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    make = UNLIMITED.get(family, _plain)
    if family == "negative" and limits[0] == 0:
        make = _all
    return make(shape, limits, generator).to(dtype)


def limited(
    family: str, shape: tuple[int, ...], dtype: torch.dtype, limits: Limits, generator: torch.Generator
) -> torch.Tensor:
    """Draw integers, or booleans, from [low, high): all equal in some families, the minimum and the maximum in others.
    Of two numbers the larger one stands for true."""
    low, high = (0, 2) if dtype == torch.bool else (limits[0], max(limits[0] + 1, limits[1]))
    if high - low == 2 and family in TRUTH_VALUES:
        return (low + TRUTH_VALUES[family](shape, (0, 1), generator)).to(dtype)
    if family in ("constant_rows", "equal_integers"):
        return torch.randint(low, high, (1,), generator=generator).expand(shape).clone().to(dtype)
    if family == GREATEST:
        return torch.full(shape, greatest_odd(low, high - 1)).to(dtype)
    if family == LATE:
        return (high - 1 - torch.randint(0, (high - low) // LATE_PART + 1, shape, generator=generator)).to(dtype)
    if family == "large":
        is_last = torch.randint(0, 2, shape, generator=generator)
        return (low + is_last * (high - 1 - low)).to(dtype)
    return torch.randint(low, high, shape, generator=generator).to(dtype)
