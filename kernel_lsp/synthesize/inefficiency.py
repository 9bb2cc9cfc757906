"""Find baselines that are slow by construction: algebra would make them faster than any kernel of the same steps.

A kernel for such a task earns its time with algebra on the weights. The rules need their exact pattern on the captured
graph, as those of `verify.tasks.redundancy` do.
"""

from __future__ import annotations

from collections.abc import Callable

from kernel_lsp.core.operators import base_op
from kernel_lsp.core.task import Graph, GraphNode
from kernel_lsp.verify.tasks.redundancy import GraphView, referred

LINEAR = frozenset(("mm", "addmm", "bmm", "linear", "convolution"))
VIEWS = frozenset(("view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze"))
SUMS = frozenset(("sum", "mean"))
NORMS = frozenset(("native_layer_norm", "_native_batch_norm_legit", "native_group_norm", "_softmax", "_log_softmax"))
MONOTONE = frozenset(("_softmax", "_log_softmax", "sigmoid", "tanh", "exp", "exp2", "erf", "atan", "asinh", "sinh"))
RANKING = frozenset(("argmax", "argmin", "argsort"))


def inefficiencies(graph: Graph) -> tuple[str, ...]:
    """Return a message for each inefficient step, in the graph's order."""
    view = GraphView(graph)
    found = (rule(node, view) for node in graph.nodes for rule in _RULES)
    return tuple(message for message in found if message)


# --- below: the rules


def _linear_of_linear(node: GraphNode, view: GraphView) -> str:
    inner = _inner(node, view)
    if base_op(node.op) not in LINEAR or inner is None or base_op(inner.op) not in LINEAR:
        return ""
    return f"{base_op(node.op)} of {base_op(inner.op)}: two linear maps in a row are one"


def _sum_of_linear(node: GraphNode, view: GraphView) -> str:
    inner = _inner(node, view)
    if base_op(node.op) not in SUMS or inner is None:
        return ""
    if base_op(inner.op) in LINEAR:
        return f"{base_op(node.op)} of {base_op(inner.op)}: the weights can be summed instead"
    return "two sums in a row are one" if base_op(inner.op) in SUMS else ""


def _norm_of_shift(node: GraphNode, view: GraphView) -> str:
    inner = _inner(node, view)
    if base_op(node.op) not in NORMS or inner is None or base_op(inner.op) not in ("add", "sub"):
        return ""
    is_number = len(inner.arguments) > 1 and isinstance(inner.arguments[1], int | float)
    return f"{base_op(node.op)} removes the constant that is added before" if is_number else ""


def _numbers_in_a_row(node: GraphNode, view: GraphView) -> str:
    inner, op = _inner(node, view), base_op(node.op)
    if op not in ("add", "mul", "div", "sub") or inner is None or base_op(inner.op) != op:
        return ""
    both = all(len(each.arguments) > 1 and isinstance(each.arguments[1], int | float) for each in (node, inner))
    return f"{op} of two numbers in a row is one" if both else ""


def _ranking_of_monotone(node: GraphNode, view: GraphView) -> str:
    inner = _inner(node, view)
    if base_op(node.op) not in RANKING or inner is None or base_op(inner.op) not in MONOTONE:
        return ""
    return f"{base_op(node.op)} of {base_op(inner.op)}, which keeps the order"


def _diagonal_product(node: GraphNode, view: GraphView) -> str:
    operands = [view.nodes.get(referred(each) or "") for each in node.arguments]
    if base_op(node.op) not in LINEAR:
        return ""
    return "product with a diagonal matrix" if any(e and base_op(e.op) == "diag_embed" for e in operands) else ""


def _inner(node: GraphNode, view: GraphView) -> GraphNode | None:
    """Return the node that computes the first computed operand, through views; `addmm` has its bias first."""
    found = view.operand(node, 1 if base_op(node.op) == "addmm" else 0)
    return view.through(found, *VIEWS)


_RULES: tuple[Callable[[GraphNode, GraphView], str], ...] = (
    _linear_of_linear,
    _sum_of_linear,
    _norm_of_shift,
    _numbers_in_a_row,
    _ranking_of_monotone,
    _diagonal_product,
)
