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
    graph, masked = exported.graph_module.graph, _Masked()
    if not all(map(masked.take, graph.nodes)) or not masked.rewritten:
        return False
    if any(_is_changed(mask, graph) for mask in masked.used):
        return False
    for node, write in masked.rewritten.items():
        with graph.inserting_before(node):
            masked.full[node] = write(graph)
    for node in reversed([*masked.rewritten, *masked.checks]):
        if node in masked.results:
            node.replace_all_uses_with(masked.full[node])
            exported.graph_signature.replace_all_uses(node.name, masked.full[node].name)
    gone = masked.rewritten.keys() | masked.checks
    for node in reversed([node for node in graph.nodes if node in gone]):
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


@dataclass
class _Masked:
    """The nodes that hold masked elements. `masks` has the mask of each; `rewritten` are functions that write a node's
    replacement into a graph, `results` those whose replacement has the node's own shape, `checks` the nodes that
    compare sizes, and `used` all masks."""

    masks: dict[Any, Any] = field(default_factory=dict)
    rewritten: dict[Any, Callable[[Any], Any]] = field(default_factory=dict)
    full: dict[Any, Any] = field(default_factory=dict)
    results: set[Any] = field(default_factory=set)
    checks: set[Any] = field(default_factory=set)
    used: set[Any] = field(default_factory=set)

    def take(self, node: Any) -> bool:
        """Return False for a node that uses masked elements in a way that cannot be rewritten."""
        if node.target is aten.index.Tensor and (mask := _mask_of(node)) is not None:
            if any(each in self.masks or each in self.checks for each in node.all_input_nodes):
                return False
            self.masks[node] = mask
            self.used.add(mask)
            self.rewritten[node] = lambda graph: self._selected(graph, mask, node.args[0])
            return True
        given = [each for each in node.all_input_nodes if each in self.masks]
        if any(each in self.checks for each in node.all_input_nodes) or self._is_size(node, given):
            is_check = self._is_size(node, given) or node.target in COUNTS or "assert" in str(node.target)
            self.checks.add(node)
            return is_check or "constrain_range" in str(node.target)
        if not given:
            self._take_number(node)
            return True
        if len({self.masks[each] for each in given}) > 1:
            return False
        return self._take_use(node, self.masks[given[0]], given)

    def _take_number(self, node: Any) -> None:
        """Rewrite a write of a number under a mask, at any axis."""
        axis = len(node.args[1]) - 1 if node.target in WRITES else 0
        mask = _mask_of(node, axis)
        if node.target in WRITES and mask is not None and not any(node.args[3:]) and not node.args[2].meta["val"].dim():
            self.results.add(node)
            self.used.add(mask)
            self.full[node.args[2]] = node.args[2]
            self.rewritten[node] = lambda graph: self._written(graph, node, mask, axis)

    def _is_size(self, node: Any, given: list[Any]) -> bool:
        return node.target is aten.sym_size.int and bool(given) and node.args[1] == 0

    def _take_use(self, node: Any, mask: Any, given: list[Any]) -> bool:
        if node.target in WRITES:
            target, _, values = node.args[:3]
            is_same = _mask_of(node) is mask and values in given and target not in given
            is_whole = is_same and not any(node.args[3:]) and values.meta["val"].dtype == target.meta["val"].dtype
            self.results.add(node)
            self.rewritten[node] = lambda graph: self._written(graph, node, mask)
            return is_whole and values.meta["val"].dim() == target.meta["val"].dim() - mask.meta["val"].dim() + 1
        if node.target in (aten.sum.default, aten.mean.default) and not node.kwargs:
            self.results.add(node)
            self.rewritten[node] = lambda graph: self._reduced(graph, node, mask)
            return node.target is aten.sum.default or given[0].meta["val"].dim() == 1
        functional = _functional(node, given)
        if functional is None or not _is_pointwise(node, functional, given):
            return False
        self.masks[node] = mask
        self.rewritten[node] = lambda graph: graph.call_function(
            functional, *torch.fx.node.map_arg((node.args, node.kwargs), lambda each: self.full.get(each, each))
        )
        return True

    def _selected(self, graph: Any, mask: Any, value: Any) -> Any:
        return _zero_outside(graph, _wider(graph, mask, value.meta["val"].dim() - mask.meta["val"].dim()), value)

    def _written(self, graph: Any, node: Any, mask: Any, axis: int = 0) -> Any:
        target, _, values = node.args[:3]
        inside = _wider(graph, mask, target.meta["val"].dim() - axis - mask.meta["val"].dim())
        found = graph.call_function(aten.where.self, (inside, self.full[values], target))
        is_in_place = node.target is aten.index_put_.default
        return graph.call_function(aten.copy_.default, (target, found)) if is_in_place else found

    def _reduced(self, graph: Any, node: Any, mask: Any) -> Any:
        inside = _wider(graph, mask, node.args[0].meta["val"].dim() - 1)
        terms = (_zero_outside(graph, inside, self.full[node.args[0]]),)
        if node.target is aten.sum.default:
            return graph.call_function(aten.sum.default, terms)
        dtype = node.meta["val"].dtype  # a sum in 16 bits may overflow where the mean does not
        total = graph.call_function(aten.sum.default, terms, {"dtype": torch.promote_types(dtype, torch.float32)})
        mean = graph.call_function(aten.div.Tensor, (total, graph.call_function(aten.sum.default, (mask,))))
        return graph.call_function(aten.to.dtype, (mean, dtype))


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
