"""Replace in-place operators and copies of an exported graph by functional operators."""

from __future__ import annotations

from typing import Any

import torch

FRESH = frozenset(
    "_adaptive_avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d add avg_pool1d avg_pool2d "
    "avg_pool3d batch_norm bmm cat celu conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d "
    "convolution div elu gelu group_norm hardsigmoid hardswish hardtanh instance_norm layer_norm leaky_relu linear "
    "matmul max_pool1d max_pool2d max_pool3d mean mish mul relu relu6 selu sigmoid silu softmax stack sub sum tanh "
    "upsample_bilinear2d upsample_nearest2d".split()
)
"""Operators whose results share no memory with their arguments. Their schemas do not show it: that of `dropout`
declares no alias."""
IN_PLACE = frozenset(name for name in FRESH if hasattr(torch.ops.aten, f"{name}_"))
TRAINING_ARGUMENT = {"batch_norm": 5, "instance_norm": 5}
"""Position of the argument for which an operator changes buffers that its schema does not name."""
RUNNING_MEAN_ARGUMENT = 3
"""Position of their running mean. Without one they change nothing: they use the statistics of the batch."""


def without_in_place(exported: Any) -> bool:
    """Replace each in-place operator of the graph. Returns False, and leaves the graph as it was, when one has an
    argument that may share memory with other values."""
    graph = exported.graph_module.graph
    if any(node.op == "get_attr" or _changes_buffers(node) for node in graph.nodes):
        return False
    order = {node: position for position, node in enumerate(graph.nodes)}
    changing = [node for node in graph.nodes if _is_mutable(node)]
    if not all(_is_replaceable(node, order) for node in changing):
        return False
    for node in changing:
        _replace(graph, node, order)
    exported.graph_module.recompile()
    return True


def _is_mutable(node: Any) -> bool:
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _name(node: Any) -> str:
    """Return the operator's name; empty for a node that calls none of ATen's."""
    schema = getattr(node.target, "_schema", None)
    namespace, _, name = schema.name.partition("::") if schema is not None else ("", "", "")
    return name if namespace == "aten" else ""


def _changes_buffers(node: Any) -> bool:
    position = TRAINING_ARGUMENT.get(_name(node))
    return position is not None and bool(node.args[position]) and node.args[RUNNING_MEAN_ARGUMENT] is not None


def _is_replaceable(node: Any, order: dict[Any, int]) -> bool:
    """Check whether an in-place node changes a value that nothing else aliases, and keeps its type."""
    aliases = _changed_values(node)
    users = [user for alias in aliases for user in alias.users if order[user] < order[node]]
    if _base(node) not in IN_PLACE or not all(_base(each) in FRESH for each in (*aliases, *users)):
        return False
    operands = [argument.meta["val"] for argument in node.args[1:] if isinstance(argument, torch.fx.Node)]
    own = aliases[0].meta["val"].dtype
    return all(isinstance(operand, torch.Tensor) and operand.dtype == own for operand in operands)


def _base(node: Any) -> str:
    """Return the name of the operator that returns new tensors."""
    return _name(node).removesuffix("_")


def _changed_values(node: Any) -> list[Any]:
    """Return the value that an in-place node changes, by all names that earlier in-place nodes have given it."""
    found = [node.args[0]]
    while _is_mutable(found[-1]):
        found.append(found[-1].args[0])
    return found


def _replace(graph: Any, node: Any, order: dict[Any, int]) -> None:
    """Replace one in-place node; later readers of what it changed read its result."""
    changed = node.args[0]
    with graph.inserting_before(node):
        target = getattr(getattr(torch.ops.aten, _base(node)), node.target._overloadname)
        new = graph.call_function(target, node.args, dict(node.kwargs))
    new.meta, order[new] = dict(node.meta), order[node]
    node.replace_all_uses_with(new)
    graph.erase_node(node)
    for user in list(changed.users):
        if order[user] > order[new]:
            user.replace_input_with(changed, new)


def convert_copied(graph: Any) -> None:
    """Convert what is copied to another type: PyTorch's decompositions leave the copy out, and its rounding."""
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.copy_.default:
            dtype, source = node.args[0].meta["val"].dtype, node.args[1]
            if source.meta["val"].dtype != dtype:
                with graph.inserting_before(node):
                    converted = graph.call_function(torch.ops.aten.to.dtype, (source, dtype))
                converted.meta = dict(node.meta, val=source.meta["val"].to(dtype))
                node.update_arg(1, converted)


def replace_copies(graph: Any) -> None:
    """Replace each copy, which an assignment to a slice writes, by its source: `copy` has no derivative."""
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten.copy.default:
            continue
        target, source = node.args[:2]
        wanted, given = target.meta["val"], source.meta["val"]
        with graph.inserting_before(node):
            if given.dtype != wanted.dtype:
                source = graph.call_function(torch.ops.aten._to_copy.default, (source,), {"dtype": wanted.dtype})
                source.meta = dict(node.meta, val=given.to(wanted.dtype))
            if list(given.shape) != list(wanted.shape):
                source = graph.call_function(torch.ops.aten.expand_as.default, (source, target))
                source.meta = dict(node.meta)
        node.replace_all_uses_with(source)
        graph.erase_node(node)
