"""Find the limit of each integer input: the size of the dim that the code indexes with it."""

from __future__ import annotations

from typing import Any

from ..capture.captured import Captured

INDEXING = {
    "embedding": (1, 0, None),
    "gather": (2, 0, 1),
    "scatter": (2, 0, 1),
    "scatter_add": (2, 0, 1),
    "index_select": (2, 0, 1),
    "nll_loss_forward": (1, 0, -1),
    "nll_loss2d_forward": (1, 0, 1),
}
"""Base name -> (position of the index, position of the indexed tensor, position of the dim; None for dim 0). For the
losses the last number is the class dim itself."""
CARRIES = frozenset(
    "where clone view unsqueeze squeeze expand _to_copy alias permute select slice reshape lift_fresh_copy".split()
)


def index_limits(captured: Captured) -> dict[str, str]:
    """Map argument names to the expression of the size that their values must stay below."""
    by_node = {a.placeholder.node: a.name for a in captured.arguments}
    limits: dict[str, str] = {}
    for node in captured.program.core.graph.nodes:
        if node.op != "call_function" or not str(node.target).startswith("aten."):
            continue
        base = str(node.target).split(".")[1]
        for index, size in _indexed(node, base):
            name = by_node.get(_origin(index))
            if name is not None:
                limits.setdefault(name, captured.symbols.text(size))
    return limits


def _indexed(node: Any, base: str) -> list[tuple[Any, Any]]:
    """Return the (index node, size of the dim it indexes) of an indexing operator."""
    if base == "index" or base == "index_put":
        shape = node.args[0].meta["val"].shape
        return [(index, shape[dim]) for dim, index in enumerate(node.args[1]) if index is not None]
    if base not in INDEXING:
        return []
    at, of, dim_at = INDEXING[base]
    shape = node.args[of].meta["val"].shape
    dim = (1 if len(shape) > 1 else 0) if base.startswith("nll_loss") else 0 if dim_at is None else node.args[dim_at]
    return [(node.args[at], shape[dim])] if shape else []


def _origin(node: Any) -> str:
    """Return the placeholder that an index comes from, through views and masks."""
    while getattr(node, "op", "") == "call_function" and str(node.target).split(".")[1] in CARRIES:
        position = 1 if str(node.target) == "aten.where.self" else 0
        node = node.args[position]
    return str(getattr(node, "name", ""))
