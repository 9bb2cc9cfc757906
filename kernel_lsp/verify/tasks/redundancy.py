"""Find redundant work in a task's graph: duplicates, dead results, operations without effect.

A task with such work rewards its deletion, and says little about kernels. The rules are algebra on the captured ATen
graph. Each requires its exact pattern; other redundancy is not reported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kernel_lsp.core.operators import base_op, is_a
from kernel_lsp.core.task import Graph, GraphNode

INVERSES = {"log": "exp", "exp": "log"}
SOFTMAX, LOG_SOFTMAX = "_softmax", "_log_softmax"


@dataclass(frozen=True)
class Redundancy:
    """One piece of redundant work. `line` is the user's, None where the capture has none."""

    kind: str
    message: str
    line: int | None = None


def redundancies(graph: Graph) -> tuple[Redundancy, ...]:
    """Return the redundancies in the graph's order, each node once."""
    view = GraphView(graph)
    found: dict[str, Redundancy] = {}
    for node in graph.nodes:
        for rule in _RULES:
            message = rule(node, view) if node.name not in found else ""
            if message:
                kind = rule.__name__.removeprefix("_").replace("_", "-")
                found[node.name] = Redundancy(kind, message, node.source.line if node.source else None)
    return tuple(found.values())


# --- below: looking at the graph


class GraphView:
    """The graph by name, with the users of each node."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = {node.name: node for node in graph.nodes}
        self.results = {output.node for output in graph.outputs}
        self.first: dict[str, str] = {}
        """The first node of each content."""
        for node in graph.nodes:
            self.first.setdefault(_content(node), node.name)
        self.used = {name for node in graph.nodes for name in _references((node.arguments, node.keywords))}

    def operand(self, node: GraphNode, position: int = 0) -> GraphNode | None:
        """Return the node that computes an operand, through views; None for an input or a number."""
        if position >= len(node.arguments):
            return None
        found = referred(node.arguments[position])
        while found in self.nodes and is_a(self.nodes[found].op, "identity"):
            found = referred(self.nodes[found].arguments[0])
        return self.nodes.get(found) if found is not None else None

    def through(self, node: GraphNode | None, *names: str) -> GraphNode | None:
        """Skip operations of these names upstream."""
        while node is not None and base_op(node.op) in names:
            node = self.operand(node)
        return node


def _content(node: GraphNode) -> str:
    return json.dumps([node.op, node.arguments, node.keywords], sort_keys=True, default=str)


def referred(value: Any) -> str | None:
    return str(value["node"]) if isinstance(value, dict) and "node" in value else None


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "node" in value:
            yield str(value["node"])
        else:
            for inner in value.values():
                yield from _references(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _references(inner)


def _dims(node: GraphNode, position: int = 1) -> tuple[int, ...] | None:
    """Return the axes that a node works along, counted from the front; None when they are unknown."""
    if len(node.arguments) <= position:
        return None
    value, rank = node.arguments[position], _rank(node)
    dims = [value] if isinstance(value, int) else value
    if rank is None or not isinstance(dims, list | tuple) or not all(isinstance(dim, int) for dim in dims):
        return None
    return tuple(sorted(dim % rank for dim in dims)) if rank else None


def _rank(node: GraphNode) -> int | None:
    """Return the rank of the node's first operand where the node's result determines it: norms, softmax, reductions
    with keepdim."""
    rank = len(node.types[0].shape) if node.types and node.types[0] is not None else None
    if rank is not None and is_a(node.op, "same_for_one") and not (len(node.arguments) > 2 and node.arguments[2]):
        dims = node.arguments[1] if len(node.arguments) > 1 else None
        rank += len(dims) if isinstance(dims, list | tuple) else isinstance(dims, int)
    return rank


def _size_along(node: GraphNode, view: GraphView) -> tuple[str, ...] | None:
    """Return the sizes of the axes that a reduction sums over."""
    source, dims = view.operand(node), _dims(node)
    if source is None or dims is None or not source.types or source.types[0] is None:
        return None
    shape = source.types[0].shape
    return tuple(shape[dim] for dim in dims if dim < len(shape))


# --- below: the rules. Each gives its message, empty where it sees nothing; its name is the kind


def _duplicate(node: GraphNode, view: GraphView) -> str:
    op = base_op(node.op)
    first = view.first[_content(node)]
    if first == node.name or is_a(node.op, "cheap", "random"):
        return ""
    if is_a(node.op, "mask") and node.source == view.nodes[first].source:
        return ""
    return f"{op} is computed twice from the same values"


def _dead(node: GraphNode, view: GraphView) -> str:
    if node.name in view.used or node.name in view.results:
        return ""
    return f"the result of {base_op(node.op)} is not used"


def _repeated(node: GraphNode, view: GraphView) -> str:
    op, inner = base_op(node.op), view.operand(node)
    if inner is None or base_op(inner.op) != op:
        return ""
    same = inner.arguments[1:] == node.arguments[1:] and inner.keywords == node.keywords
    if is_a(node.op, "idempotent") and same:
        return f"{op} of {op} is {op}"
    if is_a(node.op, "involution"):
        return f"{op} twice changes nothing"
    return ""


def _repeated_norm(node: GraphNode, view: GraphView) -> str:
    op = base_op(node.op)
    if not is_a(node.op, "normalizes"):
        return ""
    inner = view.through(view.operand(node), "mul", "add")
    if inner is None or base_op(inner.op) != op or _axes(inner) != _axes(node):
        return ""
    return f"{op.removeprefix('_').removeprefix('native_')} of what is normalized along the same axes already"


def _axes(node: GraphNode) -> Any:
    return node.arguments[1] if base_op(node.op) in ("native_layer_norm", SOFTMAX) else None


def _sum_of_softmax(node: GraphNode, view: GraphView) -> str:
    if base_op(node.op) != "sum":
        return ""
    inner = view.operand(node)
    if inner is not None and base_op(inner.op) == "exp":
        inner = view.operand(inner)
        is_softmax = inner is not None and base_op(inner.op) == LOG_SOFTMAX
    else:
        is_softmax = inner is not None and base_op(inner.op) == SOFTMAX
    if inner is None or not is_softmax:
        return ""
    own, theirs = _dims(node), _dims(inner)
    return "the sum of a softmax along its own axis is 1" if own is not None and own == theirs else ""


def _inverse(node: GraphNode, view: GraphView) -> str:
    op, inner = base_op(node.op), view.operand(node)
    if inner is None or INVERSES.get(op) != base_op(inner.op):
        return ""
    return f"{op} of {base_op(inner.op)} changes nothing"


def _not_negative(node: GraphNode, view: GraphView) -> str:
    op, inner = base_op(node.op), view.operand(node)
    if op not in ("relu", "abs") or inner is None or base_op(inner.op) == op:
        return ""
    return f"{op} of {base_op(inner.op)}, which is never negative" if is_a(inner.op, "not_negative") else ""


def _neutral(node: GraphNode, _: GraphView) -> str:
    """Detect adding 0, multiplying by 1, and operations that cancel out."""
    op = base_op(node.op)
    if len(node.arguments) < 2:
        return ""
    left, right = node.arguments[0], node.arguments[1]
    if op in ("add", "sub") and _is_number(right, 0):
        return f"{op} of 0 changes nothing"
    if op in ("mul", "div", "pow") and _is_number(right, 1):
        return f"{op} by 1 changes nothing"
    if op == "mul" and _is_number(right, 0):
        return "the product with 0 is 0"
    same = referred(left) is not None and left == right
    if op == "sub" and same and not node.keywords:
        return "a value minus itself is 0"
    return "a value divided by itself is 1" if op == "div" and same else ""


def _is_number(value: Any, wanted: int) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == wanted


def _single_element_axis(node: GraphNode, view: GraphView) -> str:
    op = base_op(node.op)
    if not is_a(node.op, "same_for_one") and op not in (SOFTMAX, LOG_SOFTMAX):
        return ""
    if op in (SOFTMAX, LOG_SOFTMAX):
        dims, type_ = _dims(node), node.types[0] if node.types else None
        sizes = tuple(type_.shape[dim] for dim in dims) if dims and type_ is not None else None
    else:
        sizes = _size_along(node, view)
    if not sizes or set(sizes) != {"1"}:
        return ""
    return f"{op.removeprefix('_')} along an axis of one element"


_RULES: tuple[Callable[[GraphNode, GraphView], str], ...] = (
    _dead,
    _duplicate,
    _sum_of_softmax,
    _repeated_norm,
    _repeated,
    _inverse,
    _not_negative,
    _neutral,
    _single_element_axis,
)
