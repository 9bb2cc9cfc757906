"""Which integers of a result PyTorch leaves open: of equal elements `topk` and `sort` may give any first, and its own
kernels for CPUs and GPUs give different ones. (`argmax` and `max` promise the first.)"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from ..capture.captured import Captured
from ..cases.input_generation import own_generator
from .fp64_reference import Meets, Seen

OPEN = ("aten.topk.", "aten.sort.", "aten.argsort.", "aten.kthvalue.", "aten.median.", "aten.mode.")
"""Do not say which of equal elements comes first."""
FOR_NAN, FOR_INFINITY = 1e300, 1e299
"""Stand in for what is equal to nothing or to itself, in PyTorch's order of them."""
STEP = 1e-9
"""Relative, at most: elements that differ in f32 stay in their order."""
N_ROUNDINGS = 8
"""That what was computed may be off by."""
N_DRAWN = 8
"""Orders, each second one the reverse of that before it: they part what is only nearly equal, too."""
MAX_BY_POSITION = 1 << 21
"""Elements: of more, each order takes long, and their places are closer to each other than float64 tells apart."""
CPU = torch.device("cpu")


def are_left_open(captured: Captured) -> bool:
    """Whether the code has an operation that does not say which of equal elements comes first."""
    nodes = captured.forward_text.nodes
    return any(n["op"].startswith(OPEN) and n.get("keywords", {}).get("stable") is not True for n in nodes)


class Orders:
    """Orders of equal elements, one after the other: drawn ones, then for each bit of a position those that have it
    first. Of equal elements, whichever comes at a place by its position comes elsewhere when the two halves that their
    highest differing bit parts them into change places; so no order of PyTorch's is like all of these. Of very many
    elements only the drawn orders are taken."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._n_bits = 0

    def __iter__(self) -> Iterator[Seen]:
        for n in range(N_DRAWN):
            generator = own_generator(self._seed, "orders", str(n // 2))
            yield Seen(OPEN, partial(self._drawn, generator=generator, is_reversed=n % 2 == 1))
        yield Seen(OPEN, partial(self._by_position, bit=None))
        bit = 0
        while bit < self._n_bits:
            yield Seen(OPEN, partial(self._by_position, bit=bit))
            bit += 1

    def _drawn(self, value: torch.Tensor, meets: Meets, generator: torch.Generator, is_reversed: bool) -> torch.Tensor:
        drawn = torch.rand(value.shape, dtype=torch.float64, generator=generator, device=CPU)
        return _in_order(value, meets, (1 - drawn if is_reversed else drawn).to(value.device))

    def _by_position(self, value: torch.Tensor, meets: Meets, bit: int | None) -> torch.Tensor:
        shape, dim = (value.shape, meets.dim) if meets.dim is not None and value.ndim else (value.flatten().shape, 0)
        if value.numel() <= MAX_BY_POSITION:
            self._n_bits = max(self._n_bits, (shape[dim] - 1).bit_length())
        position = torch.arange(shape[dim], device=value.device)
        flipped = position if bit is None else position ^ (1 << bit)
        along = [1] * len(shape)
        along[dim] = -1
        place = (flipped / (2 << self._n_bits)).double().view(along).expand(shape)
        return _in_order(value, meets, place.reshape(value.shape))


@dataclass(frozen=True)
class Ordered:
    """Floating values as the code orders them, in float64: at their dtype, with numbers for NaN and infinities. What is
    no farther apart than `unit` times the larger of its size and `least` is equal, or nearly, where it was computed."""

    values: torch.Tensor
    unit: float
    least: float


def in_their_order(value: torch.Tensor, meets: Meets) -> Ordered:
    """What an operation meets, as it orders it."""
    rounded = value.to(meets.dtype).double()
    wide = torch.nan_to_num(rounded, nan=FOR_NAN, posinf=FOR_INFINITY, neginf=-FOR_INFINITY)
    positive = wide.abs()[wide != 0]
    return Ordered(
        wide,
        STEP if meets.is_input else N_ROUNDINGS * torch.finfo(meets.dtype).eps,
        float(positive.min()) if positive.numel() else 1.0,
    )


def _in_order(value: torch.Tensor, meets: Meets, places: torch.Tensor) -> torch.Tensor:
    """With all that is equal in their dtype made different by their places, from 0 to 1; and all that is nearly equal,
    where it was computed, which a kernel rounds otherwise."""
    ordered = in_their_order(value, meets)
    return ordered.values + ordered.unit * places * ordered.values.abs().clamp(min=ordered.least)
