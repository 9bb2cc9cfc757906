"""Describe large uniform tensors in files, from which each process makes the same numbers on its own device.

A number is a hash of its position (SplitMix64; Steele, Lea and Flood 2014) in integer arithmetic, which has the same
results on every device. Inputs of 17 GB took 40 s until the reference of KernelBench's level1/45 was made, most of them
on processors, and 4 s in each process that read them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

PIECE_ELEMENTS = 1 << 24
"""Elements made at a time, to bound the memory used."""
HEAD = b"kernel-lsp uniform "
N_DIGITS = 20
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)
_N_BITS = 24
"""Bits of a number: multiples of 2^-24 are exact in float32, and what `torch.rand` has."""


def uniform(shape: Sequence[int], seed: int, device: torch.device) -> torch.Tensor:
    """Return float32 numbers in [0, 1), the same on every device."""
    made = torch.empty(tuple(shape), dtype=torch.float32, device=device)
    for number, part in enumerate(made.view(-1).split(PIECE_ELEMENTS)):
        start = number * PIECE_ELEMENTS
        bits = torch.arange(start + 1, start + 1 + part.numel(), dtype=torch.int64, device=device)
        bits.mul_(_STEP).add_(seed)
        for shift, factor in ((30, _FIRST), (27, _SECOND)):
            bits.bitwise_xor_(_shifted(bits, shift)).mul_(factor)
        bits.bitwise_xor_(_shifted(bits, 31))
        part.copy_(_shifted(bits, 64 - _N_BITS)).mul_(2.0**-_N_BITS)
    return made


def _shifted(bits: torch.Tensor, shift: int) -> torch.Tensor:
    """Shift to the right, zeros in: torch's integers have a sign."""
    return (bits >> shift).bitwise_and_((1 << (64 - shift)) - 1)


def describe(place: str, seed: int) -> None:
    """Write a file that stands for the numbers of this seed. Raises OSError."""
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with open(place, "wb") as file:
        file.write(HEAD + str(seed).zfill(N_DIGITS).encode())


def described_seed(place: str) -> int | None:
    """Return the seed that a file describes its numbers by; None for a file that holds numbers."""
    if os.path.getsize(place) != len(HEAD) + N_DIGITS:
        return None
    with open(place, "rb") as file:
        content = file.read()
    return int(content[len(HEAD) :]) if content.startswith(HEAD) else None
