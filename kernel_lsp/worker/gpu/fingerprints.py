"""Summarise a device's memory in a few numbers: the contents of tensors, their distance, and whether the guards around
them hold.

All work is enqueued before waiting: one answer of the device for any number of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch

from ..cases.families import SAME_WIDTH

PIECE_ELEMENTS = 1 << 26
"""Elements compared at a time, to bound the memory used."""
FINGERPRINT_WORDS = 1 << 24
"""Words mixed at a time, to bound the memory used."""
WORD_BYTES = 8
_MIX_INDEX, _MIX_VALUE = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9
"""Odd constants of SplitMix64 (Steele, Lea and Flood 2014), without their top bit: torch's integers have a sign."""


def fingerprints(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return for each tensor a 64-bit hash of its bytes and their positions, for finding changes, not for secrecy. All
    tensors are on one device."""
    raw = {name: as_bytes(tensor) for name, tensor in tensors.items()}
    parts = {name: [*_tail(each), *_mixed_sums(each)] for name, each in raw.items()}
    numbers = iter(_numbers([part for each in parts.values() for part in each]))
    found = {}
    for name, each in raw.items():
        own = [next(numbers) for _ in parts[name]]
        tail = own.pop(0) if each.numel() % WORD_BYTES else 0
        found[name] = ((tail ^ each.numel()) + sum(own)) % (1 << 64)
    return found


def broken_guards(buffers: Mapping[str, torch.Tensor], n_bytes: int, byte: int) -> list[str]:
    """Return the names of the buffers, of uint8 and on one device, whose first or last `n_bytes` do not all hold
    `byte`."""
    hold = [(buffer[:n_bytes] == byte).all() & (buffer[-n_bytes:] == byte).all() for buffer in buffers.values()]
    return [name for name, holds in zip(buffers, _numbers(hold)) if not holds]


def spread(one: torch.Tensor, other: torch.Tensor) -> dict[str, float]:
    """Return the distance of two results of the same work, relative to the first; infinite where only one of two values
    is a number."""
    squares, norm_squares, largest = 0.0, 0.0, 0.0
    for first, second in _pieces(one, other):
        wide = first.double(), second.double()
        difference = (wide[0] - wide[1]).abs()
        difference = torch.where(wide[0].isnan() & wide[1].isnan() | (wide[0] == wide[1]), 0.0, difference)
        difference = torch.nan_to_num(difference, nan=math.inf, posinf=math.inf)
        squares += float(difference.square().sum())
        norm_squares += float(torch.nan_to_num(wide[0], posinf=0.0, neginf=0.0).square().sum())
        largest = max(largest, float(difference.max()))
    return {"relative_l2": math.sqrt(squares / (norm_squares or 1.0)), "max": largest}


def _pieces(one: torch.Tensor, other: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield two tensors of one shape piece by piece."""
    yield from zip(*(tensor.reshape(-1).split(PIECE_ELEMENTS) for tensor in (one, other) if tensor.numel()))


def in_pieces(one: torch.Tensor, other: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the bits of two tensors of one shape piece by piece: masks of a large one are large, too."""
    width = SAME_WIDTH[one.element_size()]
    yield from _pieces(one.view(-1).view(width), other.view(-1).view(width))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return its bytes in order, as a flat tensor of uint8: the same memory where that is contiguous."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _tail(raw: torch.Tensor) -> list[torch.Tensor]:
    """Return the bytes after the last whole word as one number, where there are any."""
    n_bytes = raw.numel() % WORD_BYTES
    if n_bytes == 0:
        return []
    shifts = torch.arange(n_bytes, dtype=torch.int64, device=raw.device) * 8
    return [(raw[-n_bytes:].to(torch.int64) << shifts).sum()]


def _mixed_sums(raw: torch.Tensor) -> list[torch.Tensor]:
    """Return sums over its whole words, each mixed with its position."""
    n_words = raw.numel() // WORD_BYTES
    words = raw[: WORD_BYTES * n_words].view(torch.int64)
    return [_mixed_sum(words, start) for start in range(0, n_words, FINGERPRINT_WORDS)]


def _mixed_sum(words: torch.Tensor, start: int) -> torch.Tensor:
    part = words[start : start + FINGERPRINT_WORDS]
    places = torch.arange(start, start + part.numel(), dtype=torch.int64, device=part.device)
    mixed = places.mul_(_MIX_INDEX).add_(part)
    mixed ^= mixed >> 32
    mixed *= _MIX_VALUE
    mixed ^= mixed >> 29
    return mixed.sum()


def _numbers(scalars: list[torch.Tensor]) -> list[int]:
    """Return their values, in one transfer."""
    return torch.stack(scalars).tolist() if scalars else []
