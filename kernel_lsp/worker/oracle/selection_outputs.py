"""Integers of a result that say which elements were chosen: of what, so that another choice among equal elements can be
told from a place that holds no such element."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.captured import Captured
from ..capture.program import user_outputs
from ..cases.case import Case, placeholder_values
from .fp64_reference import Meets, Seen, run_exact
from .tie_orders import OPEN, in_their_order

INDEX_ITEM = 1
"""Of a pair of values and their places."""
PASSED_ON = tuple(f"aten.{name}." for name in ("alias", "clone", "detach", "lift_fresh_copy", "_to_copy", "to"))
"""Give the same integers, in types that hold all places."""
PLACE_TYPES = (torch.int32, torch.int64)
EACH_ONCE = ("aten.topk.", "aten.sort.", "aten.argsort.")
"""Choose no element twice."""
MAX_ELEMENTS = 1 << 24
"""Chosen from: of more, any place is right."""


@dataclass(frozen=True)
class Chosen:
    """Of one result the elements that it chose from along `dim`, in float64 with NaN and infinities as numbers, and
    `where` their order decides. Elements are equal if they are no farther apart than `unit` times the larger of their
    size and `least`."""

    where: torch.Tensor
    values: torch.Tensor
    dim: int
    unit: float
    least: float
    each_once: bool


def chosen_among(
    captured: Captured, case: Case, where: Sequence[torch.Tensor], otherwise_open: Sequence[torch.Tensor]
) -> list[Chosen | None]:
    """For each output what it chose from, and at which places: `where` the order of equal elements decides, and nothing
    else does. None for what is no such output, or leaves nothing open."""
    nodes = [_choosing(node) for node in user_outputs(captured.program.functional)]
    if not any(node is not None and bool(places.any()) for node, places in zip(nodes, where)):
        return [None] * len(nodes)
    met: dict[str, tuple[torch.Tensor, Meets]] = {}

    def remember(value: torch.Tensor, meets: Meets) -> torch.Tensor:
        met[meets.name] = value, meets
        return value

    with torch.no_grad():
        run_exact(captured.program, placeholder_values(captured, case), seen=Seen(OPEN, remember))
    found: list[Chosen | None] = []
    for position, (node, places) in enumerate(zip(nodes, where)):
        alone = places & ~otherwise_open[position] if otherwise_open else places
        known = met.get(node.name) if node is not None and bool(alone.any()) else None
        found.append(None if known is None else _chosen(node, *known, alone))
    return found


# --- below: one output


def _choosing(node: Any) -> Any:
    """The operation whose places an output gives; None where it gives no such thing, or anything made of it."""
    while _op(node).startswith(PASSED_ON) and node.meta["val"].dtype in PLACE_TYPES:
        node = node.args[0]
    if node.target is operator.getitem and node.args[1] == INDEX_ITEM:
        node = node.args[0]
    elif not _op(node).startswith("aten.argsort."):
        return None
    return node if _op(node).startswith(OPEN) else None


def _op(node: Any) -> str:
    return str(node.target) if node.op == "call_function" else ""


def _chosen(node: Any, value: torch.Tensor, meets: Meets, where: torch.Tensor) -> Chosen | None:
    if meets.dim is None or not value.ndim or value.numel() > MAX_ELEMENTS:
        return None
    ordered = in_their_order(value, meets)
    return Chosen(
        where, ordered.values, meets.dim % value.ndim, ordered.unit, ordered.least, _op(node).startswith(EACH_ONCE)
    )
