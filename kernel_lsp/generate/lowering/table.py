"""The table of lowering rules, and the lowering of a whole graph with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernel_lsp.core.expression import parse
from kernel_lsp.core.operators import is_a
from kernel_lsp.core.task import Graph, GraphNode, TensorType, names_in
from kernel_lsp.generate.identifiers import identifier
from kernel_lsp.generate.ir.scalar import Access
from kernel_lsp.generate.ir.sizes import Sizes
from kernel_lsp.generate.ir.tensor import Buffer, Tensor
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.generate.lowering import (  # noqa: F401 (each registers its rules)
    activations,
    arithmetic,
    attention,
    comparisons,
    contraction,
    convolution,
    creation,
    indexing,
    normalization,
    pooling,
    reduction,
    softmax,
    tensor_lists,
    upsampling,
    views,
)
from kernel_lsp.generate.lowering.builder import RULES, Builder, Call, Shape
from kernel_lsp.generate.lowering.sequences import recurrent, scan, sorting  # noqa: F401 (each registers its rules)
from kernel_lsp.generate.structure.attention_gradient_patterns import KeptAttention
from kernel_lsp.generate.structure.window_gradient_patterns import GradientsByPlanes


@dataclass(frozen=True)
class LoweredOutput:
    """A result of the operation, which its kernels write."""

    name: str
    tensor: Tensor


@dataclass(frozen=True)
class LoweredGraph:
    """A graph as definitions of tensors. `inputs` has the buffer of every tensor argument, by name."""

    inputs: dict[str, Tensor]
    tensors: tuple[Tensor, ...]
    outputs: tuple[LoweredOutput, ...]
    sizes: Sizes
    returns: dict[str, str]
    """The output or the given gradient that holds each result, by the result's name, in declared order."""
    numbers: frozenset[str] = frozenset()
    """Numbers of the caller that the graph takes as parameters."""
    settled: frozenset[str] = frozenset()
    """Numbers of the caller that a rule needs as constants."""
    given: frozenset[str] = frozenset()
    """Inputs that a forward computes for this backward, by name."""
    attention: KeptAttention | None = None
    """Tensors that the forward keeps of an attention for this backward."""
    window_gradients: tuple[GradientsByPlanes, ...] = ()
    sizes_to_fix: frozenset[str] = frozenset()
    """Sizes with which, as constants, steps of an unrolled loop would be one kernel."""


def lower_graph(
    graph: Graph,
    sizes: Sizes,
    fixed: frozenset[str],
    gradients: frozenset[str],
    given: Mapping[int, str],
    workload: Workload | None = None,
) -> LoweredGraph:
    """Return the graph as definitions; numbers of the caller in `fixed` are constants. A backward may return its inputs
    in `gradients`, and one tensor as several results; it takes the tensors `given` by number as further inputs of that
    name. With a `workload`, factors of contractions may be summed before the products. Raises TargetError for an
    operator without a rule."""
    reads = Counter(name for node in graph.nodes for name in names_in([*node.arguments, *node.keywords.values()]))
    reads.update(output.node for output in graph.outputs if output.node is not None)
    builder = Builder(sizes, fixed, given, reads, workload)
    inputs = {
        name: builder.buffer(identifier(name), type_.dtype, _shape(type_, sizes))
        for name, type_ in zip(graph.inputs, graph.input_types, strict=True)
    }
    values: dict[str, tuple[Tensor | None, ...]] = {name: (tensor,) for name, tensor in inputs.items()}
    for node in graph.nodes:
        builder.at_node(node)
        values[node.name] = _lower_node(node, builder, values)
        if _is_in_place(node):
            _replace_changed(graph, node, builder, values)
    found = [(each.name, values[each.node][each.item or 0]) for each in graph.outputs if each.node is not None]
    results = {name: tensor for name, tensor in found if tensor is not None}
    outputs, returns = _returned(results, {inputs[name]: name for name in sorted(gradients)}, builder)
    numbers, settled = frozenset(builder.taken), frozenset(builder.settled)
    given_names = frozenset(builder.given)
    inputs |= builder.given
    tensors, families = tuple(builder.tensors), tuple(builder.windows.found)
    return LoweredGraph(
        inputs, tensors, outputs, sizes, returns, numbers, settled, given_names, window_gradients=families
    )


@lru_cache(maxsize=1)
def supported_operators() -> tuple[str, ...]:
    """Every operator with a rule, spelled as in the table, sorted."""
    return tuple(sorted(RULES))


def _lower_node(
    node: GraphNode, builder: Builder, values: dict[str, tuple[Tensor | None, ...]]
) -> tuple[Tensor | None, ...]:
    name = node.op.replace("_.", ".", 1) if _is_in_place(node) else node.op
    call = Call(node.model_copy(update={"op": name}), builder, values)  # rules read the name
    rule = RULES.get(name) or RULES.get(".".join(name.split(".")[:2]))
    if rule is None:
        call.fail("there is no rule for it")
    result = rule(call)
    return result if isinstance(result, tuple) else (result,)


def _is_in_place(node: GraphNode) -> bool:
    """Return True for ``aten.clamp_min_.Tensor`` and others whose result is the changed first argument."""
    name = node.op.split(".")[1]
    return name.endswith("_") and not name.startswith("__")


def _replace_changed(
    graph: Graph, node: GraphNode, builder: Builder, values: dict[str, tuple[Tensor | None, ...]]
) -> None:
    """Rebind the name of a tensor changed in place to the new tensor. Fails for a tensor with views, which alias it."""
    changed = node.arguments[0]["node"]
    made_by = next((other for other in graph.nodes if other.name == changed), None)
    is_view = made_by is None or is_a(made_by.op, "view")
    has_views = any(is_a(other.op, "view") and {"node": changed} in list(other.arguments) for other in graph.nodes)
    if is_view or has_views:
        Call(node, builder, values).fail("it changes a tensor in place that others look at")
    values[changed] = values[node.name]


def _returned(
    results: dict[str, Tensor], gradients: dict[Tensor, str], builder: Builder
) -> tuple[tuple[LoweredOutput, ...], dict[str, str]]:
    """Return the outputs to write, and what holds each result. One tensor is written once where gradients are given;
    at least one result is written."""
    are_all_given = all(tensor in gradients for tensor in results.values())
    holders = {} if are_all_given else dict(gradients)
    outputs: list[LoweredOutput] = []
    returns: dict[str, str] = {}
    for name, tensor in results.items():
        returns[name] = holders.get(tensor, name) if gradients else name
        if returns[name] == name:
            taken = [entry.tensor for entry in outputs]
            outputs.append(LoweredOutput(name, _own(tensor, taken, builder, name)))
            holders[tensor] = name
    return tuple(outputs), returns


def _own(tensor: Tensor, taken: list[Tensor], builder: Builder, name: str) -> Tensor:
    """Return the tensor, or a copy of it where it is an input or another result already."""
    if not isinstance(tensor.definition, Buffer) and tensor not in taken:
        return tensor
    return builder.pointwise(tensor.dtype, tensor.shape, lambda index: Access(tensor, index), name=identifier(name))


def _shape(type_: TensorType, sizes: Sizes) -> Shape:
    return tuple(sizes.size(parse(dim)) for dim in type_.shape)
