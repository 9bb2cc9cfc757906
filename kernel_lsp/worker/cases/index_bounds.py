"""Find the arguments that a captured graph indexes with, and the size that bounds each."""

from __future__ import annotations

from typing import Any

from ..capture.captured import Captured
from ..operators import is_a, number


def index_limits(captured: Captured) -> dict[str, str]:
    """Map argument names to the expression of the size that their values must stay below."""
    by_node = {a.placeholder.node: a.name for a in captured.arguments}
    limits: dict[str, str] = {}
    for node in captured.program.core.graph.nodes:
        for index, size in _indexed(node) if node.op == "call_function" else ():
            name = by_node.get(_origin(index))
            if name is not None:
                limits.setdefault(name, captured.symbols.text(size))
    return limits


def _indexed(node: Any) -> list[tuple[Any, Any]]:
    """Return the (index node, size of the dim it indexes) of an indexing operator. A loss indexes its classes."""
    at, dim_at = number(node.target, "index"), number(node.target, "dim")
    if is_a(node.target, "index_list"):
        shape = node.args[0].meta["val"].shape
        return [(index, shape[dim]) for dim, index in enumerate(node.args[1]) if index is not None]
    if at is None:
        return []
    shape = node.args[0].meta["val"].shape
    dim = int(is_a(node.target, "loss") and len(shape) > 1) if dim_at is None else node.args[dim_at]
    return [(node.args[at], shape[dim])] if shape else []


def _origin(node: Any) -> str:
    """Return the placeholder that an index comes from, through views and masks."""
    while getattr(node, "op", "") == "call_function" and is_a(node.target, "passes_values"):
        position = 1 if str(node.target) == "aten.where.self" else 0
        node = node.args[position]
    return str(getattr(node, "name", ""))
