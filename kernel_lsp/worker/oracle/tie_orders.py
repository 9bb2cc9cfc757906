"""Find integers of a result that PyTorch leaves unspecified: `topk` and `sort` may return equal elements in any order,
and PyTorch's own kernels for CPUs and GPUs differ. (`argmax` and `max` guarantee the first.)"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from ..capture.captured import Captured
from ..cases.input_generation import own_generator
from ..operators import is_a
from .fp64_reference import Meets, Seen

FOR_NAN, FOR_INFINITY = 1e300, 1e299
"""Replacements of NaN and infinity, which equals itself, in PyTorch's order."""
STEP = 1e-9
"""Maximum relative change: elements that differ in f32 keep their order."""
N_ROUNDINGS = 8
"""Maximum error of a computed value, in roundings."""
N_DRAWN = 8
"""Random orders, every second one the reverse of that before it: they also separate nearly equal elements."""
MAX_BY_POSITION = 1 << 21
"""Maximum elements for the orders by position: more take long, and their positions exceed float64's resolution."""
CPU = torch.device("cpu")


def are_left_open(captured: Captured) -> bool:
    """Check whether the code has an operation with an undefined order of equal elements."""
    nodes = captured.forward_text.nodes
    return any(is_a(n["op"], "order") and n.get("keywords", {}).get("stable") is not True for n in nodes)


class Orders:
    """Orders of equal elements: random ones, then for each bit of a position the elements that have it first. An order
    of PyTorch's that depends on positions differs from at least one of these, since two elements change places where
    the halves of their highest differing bit do. For very many elements only the random orders are used."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._n_bits = 0

    def __iter__(self) -> Iterator[Seen]:
        for n in range(N_DRAWN):
            generator = own_generator(self._seed, "orders", str(n // 2))
            yield Seen("order", partial(self._drawn, generator=generator, is_reversed=n % 2 == 1))
        yield Seen("order", partial(self._by_position, bit=None))
        bit = 0
        while bit < self._n_bits:
            yield Seen("order", partial(self._by_position, bit=bit))
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
    """Floating values as the code orders them, in float64: at their dtype, with numbers for NaN and infinities. Values
    that differ by at most `unit` times the larger of their magnitude and `least` are equal, or nearly so, where they
    were computed."""

    values: torch.Tensor
    unit: float
    least: float


def in_their_order(value: torch.Tensor, meets: Meets) -> Ordered:
    """Return an operation's first argument as the operation orders it."""
    rounded = value.to(meets.dtype).double()
    wide = torch.nan_to_num(rounded, nan=FOR_NAN, posinf=FOR_INFINITY, neginf=-FOR_INFINITY)
    positive = wide.abs()[wide != 0]
    return Ordered(
        wide,
        STEP if meets.is_input else N_ROUNDINGS * torch.finfo(meets.dtype).eps,
        float(positive.min()) if positive.numel() else 1.0,
    )


def _in_order(value: torch.Tensor, meets: Meets, places: torch.Tensor) -> torch.Tensor:
    """Separate values that are equal in their dtype by their positions, from 0 to 1. Nearly equal computed values,
    which a kernel may round otherwise, are separated, too."""
    ordered = in_their_order(value, meets)
    return ordered.values + ordered.unit * places * ordered.values.abs().clamp(min=ordered.least)
