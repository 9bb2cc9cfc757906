"""The time that a whole graph cannot beat: every input read once, every output written once, or all its arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import evaluate_int, parse
from kernel_lsp.core.task import Graph, TensorType
from kernel_lsp.gpu.roofline import floor_us
from kernel_lsp.gpu.specs import GpuSpec


def graph_floor_us(graph: Graph, sizes: Mapping[str, int], gpu: GpuSpec, n_operations: int) -> float:
    """Microseconds on `gpu` at the given sizes; `n_operations` are the floating-point operations of the graph."""
    n_bytes = graph_bytes(graph, sizes)
    dtype = graph.outputs[0].type.dtype if graph.outputs and graph.outputs[0].type is not None else DType.F32
    return floor_us(gpu, n_bytes=n_bytes, n_operations=n_operations, dtype=dtype)


def graph_bytes(graph: Graph, sizes: Mapping[str, int]) -> int:
    """Bytes of all inputs and outputs: the compulsory traffic."""
    types = [*graph.input_types, *(output.type for output in graph.outputs if output.type is not None)]
    return sum(_n_bytes(type_, sizes) for type_ in types)


def _n_bytes(type_: TensorType, sizes: Mapping[str, int]) -> int:
    return prod(evaluate_int(parse(dim), sizes) for dim in type_.shape) * type_.dtype.itemsize
