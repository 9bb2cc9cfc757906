"""The speed of light (roofline bound) of a graph: compulsory bytes at the memory's bandwidth, or its arithmetic at the
unit's rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.operators import base_op, is_a
from kernel_lsp.core.task import Graph, GraphNode, GraphOutput, names_in
from kernel_lsp.gpu.graph_values import GRADIENT_PREFIX, GraphValues
from kernel_lsp.gpu.specs import GpuSpec

US_PER_S = 1e6


TF32_PRODUCTS = 3
"""Products of TF32 that add up to one of f32's accuracy: a = a_high + a_low, without a_low * b_low."""


def floor_us(gpu: GpuSpec, *, n_bytes: int, n_operations: int, rate: float | None = None) -> float:
    """Return the larger of `n_bytes` at the best known bandwidth of `gpu` and `n_operations` at `rate` per second, in
    microseconds; the default rate is that of f32 pipes. A shorter measured time is a measurement error."""
    return max(n_bytes / gpu.bandwidth, n_operations / (rate or gpu.f32_rate)) * US_PER_S


def product_rate(gpu: GpuSpec, dtype: DType) -> float:
    """Return the operations per second of matrix products and convolutions at the accuracy of `dtype`: those of f32 may
    be three of TF32 on tensor cores."""
    rate = peak_rate(gpu, dtype)
    return max(rate, gpu.tf32_rate / TF32_PRODUCTS) if dtype is DType.F32 else rate


def peak_rate(gpu: GpuSpec, dtype: DType) -> float:
    """Return the operations per second for `dtype`: tensor cores for f16 and bf16 if available, else the f32 (or f64)
    pipes, which also stand for integers."""
    if dtype is DType.F64:
        return gpu.f64_rate
    tensor = {DType.F16: gpu.f16_rate, DType.BF16: gpu.bf16_rate}.get(dtype, 0.0)
    return tensor or gpu.f32_rate


MEGA, GIGA, TERA = 1e6, 1e9, 1e12
EMPTY_KERNEL_US = 1.18
"""Device time of an empty kernel in microseconds, measured on one H200 (``empty_kernel_us`` of
benchmarks/results/recorded_runs-nvidia_h200-2026-11-21.json): any computation takes one launch."""


@dataclass(frozen=True)
class Floor:
    """Time in microseconds. `basis` names the binding limit, e.g. ``134 MB at 4.3 TB/s (measured)``."""

    time_us: float
    basis: str


def shown_floor(
    graph: Graph, sizes: Mapping[str, int], gpu: GpuSpec, n_operations: int, n_saved_bytes: int = 0
) -> Floor:
    """Return the speed of light to display: the graph's, or an empty kernel's if that is longer."""
    floor = graph_floor(graph, sizes, gpu, n_operations, n_saved_bytes)
    empty = Floor(EMPTY_KERNEL_US, f"a kernel that does nothing: {EMPTY_KERNEL_US} us")
    return max(floor, empty, key=lambda each: each.time_us)


def graph_floor(
    graph: Graph, sizes: Mapping[str, int], gpu: GpuSpec, n_operations: int, n_saved_bytes: int = 0
) -> Floor:
    """Return the larger time: compulsory bytes at the best known bandwidth, or `n_operations`, the graph's
    floating-point operations, at the peak rate of its result's dtype; that of products of f32 is the tensor cores'
    for three of TF32 each, and sums may make all of it unnecessary. `n_saved_bytes` of the traffic are spared by what a
    forward kept. Raises ExpressionError for a size without a value."""
    dtype = graph.outputs[0].type.dtype if graph.outputs and graph.outputs[0].type is not None else DType.F32
    n_bytes = graph_bytes(graph, sizes) - n_saved_bytes
    products = {node.name for node in graph.nodes if is_a(node.op, "tensor_cores")}
    has_products = bool(products)
    if has_products and products <= products_behind_sums(graph):
        n_operations = 0
    rate = product_rate(gpu, dtype) if has_products else peak_rate(gpu, dtype)
    time_us = floor_us(gpu, n_bytes=n_bytes, n_operations=n_operations, rate=rate)
    if time_us > floor_us(gpu, n_bytes=n_bytes, n_operations=0):
        return Floor(time_us, f"{n_operations / GIGA:.3g} GFLOP at {rate / TERA:.3g} TFLOP/s")
    bandwidth = f"{gpu.bandwidth / TERA:.3g} TB/s ({gpu.bandwidth_kind})"
    return Floor(time_us, f"{n_bytes / MEGA:.3g} MB at {bandwidth}")


LINEAR = frozenset({"add", "sub", "rsub", "mul", "div", "neg"})
AVERAGES = ("avg_pool", "adaptive_avg_pool")


def products_behind_sums(graph: Graph) -> frozenset[str]:
    """Return the products and convolutions of which nothing but sums is read, with linear arithmetic in between: a
    kernel may sum a factor first, and then has a fraction of their arithmetic to do."""
    readers: dict[str, list[GraphNode]] = {}
    for node in graph.nodes:
        for name in names_in((node.arguments, node.keywords)):
            readers.setdefault(name, []).append(node)
    stored = {output.node for output in graph.outputs}
    summed: set[str] = set()
    for node in reversed(graph.nodes):
        found = readers.get(node.name, [])
        is_summed = bool(found) and all(_sums_up(reader) or reader.name in summed for reader in found)
        is_linear = is_a(node.op, "tensor_cores", "view", "copy", "cast") or base_op(node.op) in LINEAR
        if is_summed and is_linear and node.name not in stored:
            summed.add(node.name)
    return frozenset(node.name for node in graph.nodes if node.name in summed and is_a(node.op, "tensor_cores"))


def _sums_up(node: GraphNode) -> bool:
    """Return True for a sum, a mean or an average pool."""
    is_sum = is_a(node.op, "reduction") and is_a(node.op, "sums")
    return is_sum or base_op(node.op).startswith(AVERAGES)


def added_bases(bases: Sequence[str]) -> str:
    """Name the limits of several floors that add up, each of them once."""
    counts = Counter(bases)
    return " + ".join(basis if n == 1 else f"{n} x ({basis})" for basis, n in counts.items())


def graph_bytes(graph: Graph, sizes: Mapping[str, int]) -> int:
    """Return the compulsory traffic: all inputs and outputs, but only the gathered rows of a table and the kept part of
    a slice. Repeated rows count repeatedly, up to the whole table."""
    values = GraphValues(graph, sizes)
    asked = _Asked(values)
    for node in reversed(graph.nodes):
        asked.spread(node)
    read = sum(asked.n_of((name, 0)) * values.types[name, 0].dtype.itemsize for name in graph.inputs)
    written = sum(
        prod(values.shape(output.type)) * output.type.dtype.itemsize
        for output in written_outputs(graph)
        if output.type is not None
    )
    return round(read) + written


def written_outputs(graph: Graph) -> list[GraphOutput]:
    """Return the outputs that a kernel must write. Autograd takes one tensor for several gradients, also one that a
    backward is given."""
    given = {name for name in graph.inputs if name.startswith(GRADIENT_PREFIX)}
    by_value = {(each.node, each.item): each for each in reversed(graph.outputs) if each.node is not None}
    return [output for output in by_value.values() if output.node not in given]


@dataclass
class _Asked:
    """Requested elements by value; `scattered` marks values of which a gather takes individual elements."""

    values: GraphValues
    numbers: dict[tuple[str, int], float] = field(default_factory=dict)
    scattered: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        for output in written_outputs(self.values.graph):
            for key in self.values.types:
                if key[0] == output.node:
                    self._add(key, self.size(key))

    def n_of(self, key: tuple[str, int]) -> float:
        return min(self.numbers.get(key, 0.0), self.size(key))

    def size(self, key: tuple[str, int]) -> int:
        return prod(self.values.shape_of(key))

    def spread(self, node: GraphNode) -> None:
        """Propagate the requests for a node's results to its operands."""
        results = [(node.name, item) for item in range(len(node.types)) if (node.name, item) in self.values.types]
        n_asked = sum(self.n_of(key) for key in results)
        operands = self.values.references(node)
        if not n_asked or not operands or is_a(node.op, "fill"):
            return
        first, others = operands[0], operands[1:]
        if is_a(node.op, "gather"):
            self._add(first, n_asked, is_scattered=True)
        elif is_a(node.op, "view"):
            self._add(first, n_asked, is_scattered=any(key in self.scattered for key in results))
        else:
            share = n_asked / (sum(map(self.size, results)) or 1)
            self._spread_evenly(node.op, operands, n_asked, share, any(key in self.scattered for key in results))
            return
        for other in others:
            self._add(other, self.size(other))

    def _spread_evenly(
        self, op: str, operands: list[tuple[str, int]], n_asked: float, share: float, is_scattered: bool
    ) -> None:
        """Propagate to rows: one element of a row's result needs the row, and each scattered element its own row."""
        if is_scattered and is_a(op, "together", "several_passes"):
            share, is_scattered = 1.0, False
        for operand in operands:
            size = self.size(operand)
            self._add(operand, min(size, n_asked) if is_scattered else share * size, is_scattered=is_scattered)

    def _add(self, key: tuple[str, int], number: float, *, is_scattered: bool = False) -> None:
        self.numbers[key] = self.numbers.get(key, 0.0) + number
        if is_scattered:
            self.scattered.add(key)
