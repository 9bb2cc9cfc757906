"""Find the elements that a result's indices select, and the indices that PyTorch leaves unspecified among ties."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..capture.captured import Captured
from ..capture.program import user_outputs
from ..cases.case import Case, placeholder_values
from ..cases.families import own_generator
from ..operators import is_a
from .fp64_reference import Meets, Seen, run_exact

INDEX_ITEM = 1
"""Position of the indices in a pair of values and indices."""
PLACE_TYPES = (torch.int32, torch.int64)
"""Types that hold all indices."""
MAX_ELEMENTS = 1 << 24
"""Maximum elements to select from: with more, any index is accepted."""
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


@dataclass(frozen=True)
class Chosen:
    """The elements that one result selects from along `dim`, in float64 with NaN and infinities as numbers, and where
    their order decides (`where`). Elements are equal if they differ by at most `unit` times the larger of their
    magnitude and `least`."""

    where: torch.Tensor
    values: torch.Tensor
    dim: int
    unit: float
    least: float
    each_once: bool


def chosen_among(
    captured: Captured, case: Case, where: Sequence[torch.Tensor], otherwise_open: Sequence[torch.Tensor]
) -> list[Chosen | None]:
    """Return for each output the elements that it selects from, at the indices `where` only the order of equal elements
    decides. None for other outputs, and for those without unspecified elements."""
    nodes = [_choosing(node) for node in user_outputs(captured.program.functional)]
    if not any(node is not None and bool(places.any()) for node, places in zip(nodes, where)):
        return [None] * len(nodes)
    met: dict[str, tuple[torch.Tensor, Meets]] = {}

    def remember(value: torch.Tensor, meets: Meets) -> torch.Tensor:
        met[meets.name] = value, meets
        return value

    with torch.no_grad():
        run_exact(captured.program, placeholder_values(captured, case), seen=Seen("order", remember))
    found: list[Chosen | None] = []
    for position, (node, places) in enumerate(zip(nodes, where)):
        alone = places & ~otherwise_open[position] if otherwise_open else places
        known = met.get(node.name) if node is not None and bool(alone.any()) else None
        found.append(None if known is None else _chosen(node, *known, alone))
    return found


# --- below: one output


def _choosing(node: Any) -> Any:
    """Return the operation whose indices an output returns; None for any other output, and for values computed from
    indices."""
    while is_a(_op(node), "identity", "cast") and node.meta["val"].dtype in PLACE_TYPES:
        node = node.args[0]
    if node.target is operator.getitem and node.args[1] == INDEX_ITEM:
        node = node.args[0]
    elif not _op(node).startswith("aten.argsort."):
        return None
    return node if is_a(_op(node), "order") else None


def _op(node: Any) -> str:
    return str(node.target) if node.op == "call_function" else ""


def _chosen(node: Any, value: torch.Tensor, meets: Meets, where: torch.Tensor) -> Chosen | None:
    if meets.dim is None or not value.ndim or value.numel() > MAX_ELEMENTS:
        return None
    ordered = in_their_order(value, meets)
    return Chosen(
        where, ordered.values, meets.dim % value.ndim, ordered.unit, ordered.least, is_a(_op(node), "each_once")
    )


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
