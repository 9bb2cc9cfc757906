"""Compute the roofline bound of an operation, and the time below which a measurement is impossible.

Only work that every correct kernel must do counts as necessary. Inputs of a product or a pointwise operation are, where
all of their results are required. What a gather may leave unread is not, nor what a shortcut in arithmetic may save.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import evaluate_int, parse
from kernel_lsp.core.measurement import TimeFloor
from kernel_lsp.core.operators import is_a
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.task import Graph, GraphNode, TensorType
from kernel_lsp.gpu.estimate import estimate_eager
from kernel_lsp.gpu.floor import US_PER_S, peak_rate, shown_floor
from kernel_lsp.gpu.specs import GpuSpec

MARGIN = 0.9
"""Share of the limit below which a time is impossible: clocks and timers are not exact."""


def time_floor(graph: Graph, bound: BoundOperation, gpu: GpuSpec) -> TimeFloor:
    """Return the bounds of one operation on one GPU, for its bound shapes."""
    needed, sizes = _needed(graph), _symbol_sizes(graph, bound)
    n_operations = estimate_eager(graph, sizes, gpu).n_operations
    shown = shown_floor(graph, sizes, gpu, n_operations, max(0, _n_input_bytes(bound) - _n_input_bytes(bound.timed)))
    impossible_s = max(_memory_s(needed, bound, gpu), _product_s(graph, needed, sizes, gpu))
    impossible_us = MARGIN * impossible_s * US_PER_S
    return TimeFloor(time_us=shown.time_us, impossible_below_us=impossible_us, basis=shown.basis)


# --- below: what every right kernel takes, in seconds


def _n_input_bytes(bound: BoundOperation) -> int:
    return sum(tensor.n_bytes for tensor in bound.tensors if tensor.role == "input")


def _memory_s(needed: frozenset[str], bound: BoundOperation, gpu: GpuSpec) -> float:
    """Return the seconds of compulsory memory traffic. Written data may still be in L2 when the kernel has ended. An
    input that only the forward's own steps take is not read, nor is more of what they made than a shortcut needs."""
    given = {tensor.name for tensor in bound.tensors if tensor.role == "input"}
    bound, needed = bound.timed, needed & given
    n_read = sum(tensor.n_bytes for tensor in bound.tensors if tensor.role == "input" and tensor.name in needed)
    n_written = sum(tensor.n_bytes for tensor in bound.tensors if tensor.role == "output")
    return (n_read + max(0, n_written - gpu.l2_bytes)) / gpu.datasheet_bandwidth


def _product_s(graph: Graph, needed: frozenset[str], sizes: Mapping[str, int], gpu: GpuSpec) -> float:
    """Return the seconds of the largest matrix product alone: later operations may make the others unnecessary, by
    association. f32 counts at the tensor cores' rate, where several products of fewer bits can form an exact one."""
    found = 0.0
    for node in graph.nodes:
        if is_a(node.op, "product") and node.name in needed and node.types[0] is not None:
            dtype = node.types[0].dtype
            rate = peak_rate(gpu, dtype)
            fastest = max(rate, gpu.tf32_rate) if dtype is DType.F32 else rate
            found = max(found, _n_operations(graph, node, sizes) / fastest)
    return found


def _n_operations(graph: Graph, node: GraphNode, sizes: Mapping[str, int]) -> int:
    """Return the operations of a product, two per multiply-add."""
    result = _shape(node.types[0], sizes)
    first = next(iter(_references(node.arguments[1 if is_a(node.op, "biased") else 0 :])))
    shape = _shape(_type_of(graph, first), sizes)
    return 2 * prod(result) * (shape[-1] if shape else 0)


def _symbol_sizes(graph: Graph, bound: BoundOperation) -> dict[str, int]:
    """Return the size of each symbol that is a dim of an input by itself."""
    shapes = {tensor.name: tensor.shape for tensor in bound.tensors}
    return {
        dim: size
        for name, type_ in zip(graph.inputs, graph.input_types, strict=True)
        for dim, size in zip(type_.shape, shapes.get(name, ()), strict=False)
        if dim.isidentifier()
    }


# --- below: what is asked for


def _needed(graph: Graph) -> frozenset[str]:
    """Return the values of which every element is needed for the outputs, as far as the operations show."""
    needed = {output.node for output in graph.outputs if output.node is not None}
    for node in reversed(graph.nodes):
        if node.name in needed and is_a(node.op, "needs_all"):
            needed.update(_references((node.arguments, node.keywords)))
    return frozenset(needed)


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if "node" in value:
            yield str(value["node"])
            return
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _references(inner)


def _type_of(graph: Graph, name: str) -> TensorType | None:
    if name in graph.inputs:
        return graph.input_types[graph.inputs.index(name)]
    return next((node.types[0] for node in graph.nodes if node.name == name), None)


def _shape(type_: TensorType | None, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate_int(parse(dim), sizes) for dim in type_.shape) if type_ is not None else ()
