"""Find 16-bit outputs that are rounded exactly once, as by a cast or a single sum: they must be correctly rounded.
PyTorch rounds to nearest, and so does a kernel of any internal precision. Operations that only select or move values
keep the property."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import Graph, GraphNode
from kernel_lsp.verify.oracle.nearest import FORMATS, nearest

ROUND_ONCE = frozenset(("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor"))
CASTS = frozenset(("aten._to_copy.default", "aten.to.dtype"))
EXACTLY_CAST = (DType.F32, *FORMATS)
"""Types that a cast rounds to 16 bits in one step. Integers and f64 go through f32."""
CHOOSE = ("relu", "neg", "abs", "maximum", "minimum", "amax", "amin")
PLACE = ("t", "transpose", "permute", "view", "_unsafe_view", "expand", "unsqueeze", "squeeze", "repeat")
PART = ("select", "slice", "cat", "stack", "flip", "roll", "tril", "triu")
EXACT = frozenset((*CHOOSE, *PLACE, *PART))
"""ATen base names of monotone or odd functions and of data movement, which commute with rounding."""
MANY = 2


def with_one_answer(graph: Graph) -> frozenset[str]:
    """Return the names of a forward's outputs that must be correctly rounded."""
    values = _Values(graph)
    return frozenset(
        output.name
        for output in graph.outputs
        if output.node is not None and output.type is not None
        if output.type.dtype in FORMATS and values.n_roundings.get(output.node, MANY) < MANY
    )


class _Values:
    """The values of a graph: the number of roundings of each, up to `MANY`, and its dtype."""

    def __init__(self, graph: Graph) -> None:
        self.n_roundings = dict.fromkeys(graph.inputs, 0)
        self._dtypes = {name: type_.dtype for name, type_ in zip(graph.inputs, graph.input_types, strict=True)}
        for node in graph.nodes:  # topological order
            if node.types[0] is not None:
                self.n_roundings[node.name] = self._count(node, node.types[0].dtype)
                self._dtypes[node.name] = node.types[0].dtype

    def _count(self, node: GraphNode, own: DType) -> int:
        used = node.reads
        before = max((self.n_roundings.get(name, MANY) for name in used), default=MANY)
        if node.op.removeprefix("aten.").split(".")[0] in EXACT:
            return before
        return 1 if before == 0 and self._rounds_once(node, own, used) else MANY

    def _rounds_once(self, node: GraphNode, own: DType, used: Sequence[str]) -> bool:
        if node.op in CASTS:
            return all(self._dtypes[name] in EXACTLY_CAST for name in used)
        is_plain = node.op in ROUND_ONCE and not node.keywords and own in FORMATS
        return is_plain and all(self._dtypes[n] is own for n in used) and all(_fits(a, own) for a in node.arguments)


def _fits(argument: Any, dtype: DType) -> bool:
    """Check whether the argument is a tensor, or a number that the type represents exactly."""
    if isinstance(argument, dict):
        return "node" in argument
    if not isinstance(argument, int | float) or isinstance(argument, bool):
        return False
    number = float(argument)
    return float(nearest(np.array(number), dtype)) == number
