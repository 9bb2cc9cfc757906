"""Find the elements that a result's indices select, the indices that PyTorch leaves unspecified, and results for which
more than one value is correct."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..capture.captured import Captured
from ..capture.exported_program import user_outputs
from ..cases.case_values import Case, placeholder_values
from ..cases.families import own_generator
from ..operators import is_a
from .fp64_reference import Meets, Seen, run_exact
from .roundings import unit_of

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
N_OWN_PLACES = 2_097_169
"""Elements in a row that have random places of their own, before these repeat; a prime, so that no stride meets them
again. Drawing a number on a CPU for each of 131 million elements took 40 s in all."""
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


def uses_indices(captured: Captured) -> bool:
    """Check whether the code computes with the indices that such an operation returns."""
    nodes = captured.forward_text.nodes
    ordering = {node["name"] for node in nodes if is_a(node["op"], "order")}
    return any(
        isinstance(each, dict) and each.get("node") in ordering and each.get("item") == INDEX_ITEM
        for node in nodes
        for each in torch.utils._pytree.tree_leaves(node["arguments"], is_leaf=lambda each: isinstance(each, dict))
    )


class Orders:
    """Orders of equal elements: random ones, then for each bit of a position the elements that have it first. An order
    of PyTorch's that depends on positions differs from at least one of these, since two elements change places where
    the halves of their highest differing bit do. For very many elements only the random orders are used."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.largest_unit = 0.0
        """Largest relative change so far of a value that was ordered."""
        self._n_bits = 0
        self._inputs: dict[str, Ordered] = {}

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
        n = value.numel()
        drawn = torch.rand(min(n, N_OWN_PLACES), dtype=torch.float64, generator=generator, device=CPU).to(value.device)
        places = (1 - drawn if is_reversed else drawn).repeat(-(-n // max(len(drawn), 1)))[:n]
        return self._in_order(value, meets, places.view(value.shape))

    def _by_position(self, value: torch.Tensor, meets: Meets, bit: int | None) -> torch.Tensor:
        shape, dim = (value.shape, meets.dim) if meets.dim is not None and value.ndim else (value.flatten().shape, 0)
        if value.numel() <= MAX_BY_POSITION:
            self._n_bits = max(self._n_bits, (shape[dim] - 1).bit_length())
        position = torch.arange(shape[dim], device=value.device)
        flipped = position if bit is None else position ^ (1 << bit)
        along = [1] * len(shape)
        along[dim] = -1
        place = (flipped / (2 << self._n_bits)).double().view(along).expand(shape)
        return self._in_order(value, meets, place.reshape(value.shape))

    def _in_order(self, value: torch.Tensor, meets: Meets, places: torch.Tensor) -> torch.Tensor:
        """Separate values that are equal in their dtype by their positions, from 0 to 1. Nearly equal computed values,
        which a kernel may round otherwise, are separated, too. Inputs are the same in each order."""
        ordered = self._inputs.get(meets.name) or in_their_order(value, meets)
        if meets.is_input:
            self._inputs[meets.name] = ordered
        self.largest_unit = max(self.largest_unit, ordered.unit)
        return ordered.values + ordered.unit * places * ordered.values.abs().clamp(min=ordered.least)


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
    least = float(torch.where(wide == 0, math.inf, wide.abs()).min()) if wide.numel() else math.inf
    return Ordered(
        wide,
        STEP if meets.is_input else N_ROUNDINGS * torch.finfo(meets.dtype).eps,
        least if least < math.inf else 1.0,
    )


NOTICED, NOTICED_UNITS = 1e-4, 100
"""Minimum difference of a float that another order made, as a share of the result's magnitude, and in units of the
changes that make the order: smaller ones are these changes themselves."""


def moved_by_order(
    expected: Sequence[torch.Tensor], others: Iterable[Sequence[torch.Tensor]], orders: Orders
) -> list[torch.Tensor]:
    """Return for each result the mask of floats that another order of equal elements changes noticeably."""
    where = [torch.zeros_like(one, dtype=torch.bool) for one in expected]
    for results in others:
        share = max(NOTICED, NOTICED_UNITS * orders.largest_unit)
        where = [
            w | ((e - r).abs() > share * torch.nan_to_num(e, 0, 0, 0).abs().amax()) if _has_numbers(e) else w
            for w, e, r in zip(where, expected, results)
        ]
    return where


def _has_numbers(result: torch.Tensor) -> bool:
    return result.is_floating_point() and bool(result.numel())


LEAST_ELEMENTS, ONE_OF, FEW = 16, 1000, 2
"""Limits on the unspecified elements of an output, as a share and a number. A sum of rounded values would otherwise be
unspecified as a whole, and any sum would pass."""
N_UNITS = 4
"""Maximum error of a value, in units: a quotient of a maximum has three roundings."""


def undecided(
    expected: Sequence[torch.Tensor], others: Iterable[Sequence[torch.Tensor]], *, among_floats: bool
) -> list[torch.Tensor]:
    """Return for each result the mask of non-NaN elements that differ in one of the `others`. Floating results are
    included only with `among_floats`."""
    where = [torch.zeros_like(one, dtype=torch.bool) for one in expected]
    for results in others:
        where = [
            w | (~torch.isnan(e) & (e != r)) if among_floats or not e.is_floating_point() else w
            for w, e, r in zip(where, expected, results)
        ]
    return where


def is_fixed(result: torch.Tensor) -> bool:
    """Check whether all numbers among many elements are equal: only NaN shows that inputs count."""
    if not result.is_floating_point():
        return False
    numbers = result[torch.isfinite(result)]
    return len(numbers) > 1 and bool(is_constant(numbers))


def is_constant(result: torch.Tensor) -> torch.Tensor:
    """Check whether many elements are all equal: a result independent of its inputs loses nothing."""
    flat = result.reshape(-1)
    return (flat == flat[:1]).all() & (len(flat) > 1)


def has_computed_jumps(captured: Captured) -> bool:
    """Check whether the code has a discontinuous function of a computed value."""
    inputs = {argument.name for argument in captured.arguments}
    firsts = (node["arguments"][0] for node in captured.forward_text.nodes if is_a(node["op"], "rounding"))
    return any(isinstance(first, dict) and first.get("node") not in inputs for first in firsts)


def beside_jumps(value: torch.Tensor, meets: Meets, sign: int) -> torch.Tensor:
    """Return the value in float64, larger or smaller by a few units of its computation's type. Inputs and their
    multiples by powers of two, which are exact, stay unchanged."""
    if meets.is_input:
        return value
    is_held = value.to(meets.dtype).double() == value
    return torch.where(is_held, value, value * (1 + sign * N_UNITS * unit_of(meets.dtype)))


def few_of(where: torch.Tensor) -> torch.Tensor:
    """Return the mask, or an empty one where it marks too much of its output."""
    n_open, n = int(where.sum()), where.numel()
    return where if n_open <= min(n // LEAST_ELEMENTS, FEW + n // ONE_OF) else torch.zeros_like(where)
