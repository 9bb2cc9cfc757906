"""Rewrite boolean masks as indices by selections between whole tensors: the size of ``x[mask]`` depends on values.

What is read is 0 outside of the mask, and what is computed from that is left out where the result is written under the
same mask, ``y[mask] = f(x[mask])``, or summed: ``x[mask].mean()``. A number is written by itself: ``y[mask] = 0``.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, Callable

import torch

aten = torch.ops.aten
FINITE_AT_ZERO = frozenset(
    "_to_copy abs add clamp clamp_max clamp_min cos elu eq erf exp expm1 ge gelu gt le leaky_relu log1p logical_and "
    "logical_not logical_or lt maximum minimum mul ne neg relu rsub sigmoid silu sin softplus square sub tan tanh to "
    "where".split()
)
"""Pointwise operators with finite values and derivatives where all their masked arguments are 0: a gradient of 0 stays
0 through them."""
COUNTS = (operator.ge, operator.le, operator.eq, operator.lt, operator.gt)
"""Comparisons of the size, whose assertions hold for any mask."""


def without_masks(exported: Any) -> bool:
    """Rewrite all masks that are indices in an exported graph. Returns False, and leaves the graph as it was, where
    there is none, or where masked elements have another use."""
    graph = exported.graph_module.graph
    decided = _decided(graph)
    if decided is None or not decided.uses or any(_is_changed(use.mask, graph) for use in decided.uses.values()):
        return False
    full: dict[Any, Any] = {}
    for node, use in decided.uses.items():
        with graph.inserting_before(node):
            full[node] = _WRITERS[use.kind](graph, node, use, full)
    gone = decided.uses.keys() | decided.checks
    for node in reversed([node for node in graph.nodes if node in gone]):
        if node in decided.uses and decided.uses[node].kind in RESULTS:
            node.replace_all_uses_with(full[node])
            exported.graph_signature.replace_all_uses(node.name, full[node].name)
        graph.erase_node(node)
    exported.graph_module.recompile()
    return True


WRITES = (aten.index_put_.default, aten.index_put.default)


def _mask_of(node: Any, axis: int = 0) -> Any:
    """Return the mask of ``x[mask]`` or ``x[mask] = y``, where it is the only index and at this axis; else None."""
    indices = node.args[1] if node.target in (aten.index.Tensor, *WRITES) else ()
    *before, last = indices or [None]
    is_mask = isinstance(last, torch.fx.Node) and last.meta["val"].dtype == torch.bool
    return last if is_mask and before == [None] * axis else None


def _is_changed(mask: Any, graph: Any) -> bool:
    """Return True if some node may change the mask in place."""
    changing = [node for node in graph.nodes if getattr(getattr(node.target, "_schema", None), "is_mutable", False)]
    return any(_root(node.args[0]) is _root(mask) for node in changing if node.args)


def _root(node: Any) -> Any:
    """Return the tensor that a chain of first arguments begins with, which may share its memory."""
    while isinstance(node, torch.fx.Node) and node.op == "call_function" and node.args:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.arguments or schema.arguments[0].alias_info is None:
            return node
        node = node.args[0]
    return node


@dataclass(frozen=True)
class _Use:
    """One use of masked elements. `axis` is the mask's first one, `functional` the operator that computes a pointwise
    result in memory of its own."""

    kind: str
    mask: Any
    axis: int = 0
    functional: Any = None


RESULTS = ("number", "write", "sum")
"""Kinds of use whose replacement has the node's own shape."""


@dataclass
class _Decided:
    """The `uses` of masked elements, in the graph's order, and the `checks`: nodes that compare their number."""

    uses: dict[Any, _Use] = field(default_factory=dict)
    checks: set[Any] = field(default_factory=set)

    def mask(self, node: Any) -> Any:
        """Return the mask of the elements that a node holds; None where it holds whole tensors."""
        use = self.uses.get(node)
        return None if use is None or use.kind in RESULTS else use.mask


def _decided(graph: Any) -> _Decided | None:
    """Decide how each node is rewritten; None where one cannot be. The graph stays as it is."""
    decided = _Decided()
    for node in graph.nodes:
        given = [each for each in node.all_input_nodes if decided.mask(each) is not None]
        reads_check = any(each in decided.checks for each in node.all_input_nodes)
        is_size = node.target is aten.sym_size.int and bool(given) and node.args[1] == 0
        if node.target is aten.index.Tensor and (mask := _mask_of(node)) is not None:
            if given or reads_check:
                return None
            decided.uses[node] = _Use("read", mask)
        elif reads_check or is_size:
            is_check = is_size or node.target in COUNTS or "assert" in str(node.target)
            if not is_check and "constrain_range" not in str(node.target):
                return None
            decided.checks.add(node)
        elif not given:
            if (use := _number_use(node)) is not None:
                decided.uses[node] = use
        else:
            masks = {decided.mask(each) for each in given}
            use = _use_of(node, next(iter(masks)), given) if len(masks) == 1 else None
            if use is None:
                return None
            decided.uses[node] = use
    return decided


def _number_use(node: Any) -> _Use | None:
    """Return the write of a number under a mask, at any axis; None for other nodes."""
    axis = len(node.args[1]) - 1 if node.target in WRITES else 0
    mask = _mask_of(node, axis) if node.target in WRITES else None
    is_number = mask is not None and not any(node.args[3:]) and not node.args[2].meta["val"].dim()
    return _Use("number", mask, axis) if is_number else None


def _use_of(node: Any, mask: Any, given: list[Any]) -> _Use | None:
    """Return how a node uses the masked elements that it is `given`; None where that cannot be rewritten."""
    if node.target in WRITES:
        target, _, values = node.args[:3]
        if _mask_of(node) is not mask or values not in given or target in given or any(node.args[3:]):
            return None
        source, goal = values.meta["val"], target.meta["val"]
        is_whole = source.dtype == goal.dtype and source.dim() == goal.dim() - mask.meta["val"].dim() + 1
        return _Use("write", mask) if is_whole else None
    if node.target in (aten.sum.default, aten.mean.default) and not node.kwargs:
        is_found = node.target is aten.sum.default or given[0].meta["val"].dim() == 1
        return _Use("sum", mask) if is_found else None
    functional = _functional(node, given)
    is_pointwise = functional is not None and _is_pointwise(node, functional, given)
    return _Use("pointwise", mask, functional=functional) if is_pointwise else None


def _write_read(graph: Any, node: Any, use: _Use, full: dict[Any, Any]) -> Any:
    value = node.args[0]
    return _zero_outside(graph, _wider(graph, use.mask, value.meta["val"].dim() - use.mask.meta["val"].dim()), value)


def _write_back(graph: Any, node: Any, use: _Use, full: dict[Any, Any]) -> Any:
    target, _, values = node.args[:3]
    inside = _wider(graph, use.mask, target.meta["val"].dim() - use.axis - use.mask.meta["val"].dim())
    found = graph.call_function(aten.where.self, (inside, full.get(values, values), target))
    is_in_place = node.target is aten.index_put_.default
    return graph.call_function(aten.copy_.default, (target, found)) if is_in_place else found


def _write_sum(graph: Any, node: Any, use: _Use, full: dict[Any, Any]) -> Any:
    inside = _wider(graph, use.mask, node.args[0].meta["val"].dim() - 1)
    terms = (_zero_outside(graph, inside, full[node.args[0]]),)
    if node.target is aten.sum.default:
        return graph.call_function(aten.sum.default, terms)
    dtype = node.meta["val"].dtype  # a sum in 16 bits may overflow where the mean does not
    total = graph.call_function(aten.sum.default, terms, {"dtype": torch.promote_types(dtype, torch.float32)})
    mean = graph.call_function(aten.div.Tensor, (total, graph.call_function(aten.sum.default, (use.mask,))))
    return graph.call_function(aten.to.dtype, (mean, dtype))


def _write_pointwise(graph: Any, node: Any, use: _Use, full: dict[Any, Any]) -> Any:
    arguments = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: full.get(each, each))
    return graph.call_function(use.functional, *arguments)


_WRITERS: dict[str, Callable[[Any, Any, _Use, dict[Any, Any]], Any]] = {
    "read": _write_read,
    "number": _write_back,
    "write": _write_back,
    "sum": _write_sum,
    "pointwise": _write_pointwise,
}
"""Function that puts the replacement of a node into the graph, by the kind of its use."""


def _functional(node: Any, given: list[Any]) -> Any:
    """Return the operator that computes a node's result in memory of its own; None for one without. Masked elements are
    a copy, which ``y[mask] += 1`` changes in place."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return node.target if schema is not None else None
    changed, name = node.args[0], schema.name.partition("::")[2]
    later = [each for each in changed.users if each is not node and not each < node]
    if changed not in given or any(each.target is not aten.sym_size.int for each in later):
        return None
    return getattr(getattr(aten, name.removesuffix("_"), None), node.target._overloadname, None)


def _is_pointwise(node: Any, functional: Any, given: list[Any]) -> bool:
    """Return True for a pointwise operator whose other arguments are numbers or tensors of one element: their shapes
    fit the mask's whatever it is."""
    name = functional._schema.name.partition("::")[2]
    others = [each for each in node.all_input_nodes if each not in given]
    is_scalar = all(isinstance(v := each.meta.get("val"), torch.Tensor) and v.dim() == 0 for each in others)
    is_power = name == "pow" and isinstance(node.args[1], (int, float)) and node.args[1] >= 1
    is_power = is_power or (name == "div" and node.args[1] not in given)
    is_alike = len({each.meta["val"].dim() for each in given}) == 1
    return is_scalar and is_alike and (name in FINITE_AT_ZERO or is_power)


def _wider(graph: Any, mask: Any, n_axes: int) -> Any:
    """Return the mask with as many axes of 1 behind its own."""
    for _ in range(n_axes):
        mask = graph.call_function(aten.unsqueeze.default, (mask, -1))
    return mask


def _zero_outside(graph: Any, mask: Any, value: Any) -> Any:
    outside = graph.call_function(aten.logical_not.default, (mask,))
    return graph.call_function(aten.masked_fill.Scalar, (value, outside, 0))
