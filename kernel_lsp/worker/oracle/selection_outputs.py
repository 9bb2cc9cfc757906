"""Find the elements that a result's indices select from, so that another choice among equal elements can be told from a
wrong index."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.captured import Captured
from ..capture.program import user_outputs
from ..cases.case import Case, placeholder_values
from ..operators import is_a
from .fp64_reference import Meets, Seen, run_exact
from .tie_orders import in_their_order

INDEX_ITEM = 1
"""Position of the indices in a pair of values and indices."""
PLACE_TYPES = (torch.int32, torch.int64)
"""Types that hold all indices."""
MAX_ELEMENTS = 1 << 24
"""Maximum elements to select from: with more, any index is accepted."""


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
