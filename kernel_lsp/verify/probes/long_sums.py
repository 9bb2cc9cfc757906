"""Measure the length of a task's sums. A serial sum of terms with one sign stops growing, or loses most digits. Equal
terms lose the most."""

from __future__ import annotations

from collections.abc import Mapping

from kernel_lsp.core.expression import ExpressionError
from kernel_lsp.core.task import Graph, GraphNode, TensorType
from kernel_lsp.verify.model.cases import Sizes, n_elements, shape_of

SUMS = tuple(f"aten.{name}." for name in ["sum", "mean", "linalg_vector_norm", "norm"])
LONG_TERMS = 1 << 17
"""Minimum terms of a long sum: any kernel sums shorter ones well enough, and a case at the captured sizes is
expensive."""
PART = 2
"""Ratio of taken to given elements from which a node combines several."""


def has_one_long_sum(graph: Graph, sizes: Sizes) -> bool:
    """Check whether one result has that many terms, and nothing else in the graph combines elements: a sum subtracted
    from its own terms leaves only its error."""
    types = dict(zip(graph.inputs, graph.input_types, strict=True))
    brings: list[tuple[GraphNode, int]] = []
    for node in graph.nodes:
        made = node.types[0] if node.types else None
        if made is None:
            return False
        types[node.name] = made
        n_terms = _n_terms(node, types, sizes)
        if n_terms >= PART:
            brings.append((node, n_terms))
    return len(brings) == 1 and brings[0][1] >= LONG_TERMS and _is_float_sum(brings[0][0])


# --- below: one node


def _is_float_sum(node: GraphNode) -> bool:
    made = node.types[0]
    return made is not None and made.dtype.is_floating and node.op.startswith(SUMS)


def _n_terms(node: GraphNode, types: Mapping[str, TensorType], sizes: Sizes) -> int:
    """Return the elements that a node takes for each one that it gives; 0 where shapes do not tell."""
    made = node.types[0]
    taken = [types[name] for name in node.reads if name in types]
    try:
        given = max(1, n_elements(shape_of(made, sizes))) if made is not None else 1
        return max((n_elements(shape_of(type_, sizes)) for type_ in taken), default=0) // given
    except ExpressionError:
        return 0
