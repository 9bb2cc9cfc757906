"""Predict the kernels that PyTorch's eager mode launches for a captured graph, and the time of each, those of the
vendor's libraries included.

Each ATen op is one pass over memory, or one library call; views are free. The captured graph is decomposed further than
eager runs it (a cross entropy is a dozen nodes and two kernels), so the nodes of one source line count as at most as
many kernels as the line has calls and operators; values internal to a merged kernel cause no traffic.

A roofline with an efficiency, plus a fixed part and a part per step of the inner dimension. The last two are fitted to
Linear 1600->128 with ReLU, batch 64, forward and backward (f32, H200), so they are not a prediction for that case.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.operators import base_op, is_a
from kernel_lsp.core.task import Graph, GraphNode
from kernel_lsp.gpu.floor import US_PER_S, peak_rate
from kernel_lsp.gpu.graph_values import GRADIENT_PREFIX, GraphValues, references_in
from kernel_lsp.gpu.specs import GpuSpec

PRODUCT_EFFICIENCY = 0.72
"""Fraction of the peak rate. Measured on one H200: 67 % (256 by 14336 by 4096, f32), 77 % (4096 cubed, f32), 82 % (8192
cubed, bf16)."""
CONVOLUTION_EFFICIENCY = 0.47
"""Fraction of the peak rate: 64 to 64 channels, 3x3, (32, 64, 56, 56), f32, takes 277 us with its bias (H200,
measured)."""
LIBRARY_BANDWIDTH_EFFICIENCY = 0.8
LIBRARY_FIXED_US = 6.0
LIBRARY_US_PER_INNER_STEP = 0.0085
FIXED_FADES_AT_US = 60.0
"""Decay constant of the fixed part, in microseconds: latency, which a product long enough to fill the GPU hides."""
ATTENTION_EFFICIENCY = 0.5
"""Fraction of the peak rate: 34 GFLOP in 1022 us (f32, heads of 64, H200, measured)."""


@dataclass(frozen=True)
class ProductShape:
    """`batch` products of (m, k) by (k, n). For a convolution m is positions, n output channels, k the window."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def n_operations(self) -> int:
        """Number of operations; a multiply-add counts as two."""
        return 2 * self.batch * self.m * self.n * self.k


def product_us(gpu: GpuSpec, shape: ProductShape, n_bytes: int, dtype: DType) -> float:
    """Estimate the device time of one matrix product, without the launch."""
    return _library_us(gpu, shape, n_bytes, peak_rate(gpu, dtype) * PRODUCT_EFFICIENCY)


def convolution_us(gpu: GpuSpec, shape: ProductShape, n_bytes: int, dtype: DType) -> float:
    """Estimate the device time of one convolution, without the launch and the bias."""
    return _library_us(gpu, shape, n_bytes, peak_rate(gpu, dtype) * CONVOLUTION_EFFICIENCY)


def _library_us(gpu: GpuSpec, shape: ProductShape, n_bytes: int, rate: float) -> float:
    compute_us = shape.n_operations / rate * US_PER_S
    memory_us = n_bytes / (gpu.bandwidth * LIBRARY_BANDWIDTH_EFFICIENCY) * US_PER_S
    roofline_us = max(compute_us, memory_us)
    latency_us = LIBRARY_FIXED_US + LIBRARY_US_PER_INNER_STEP * shape.k
    return roofline_us + latency_us * math.exp(-roofline_us / FIXED_FADES_AT_US)


def attention_us(gpu: GpuSpec, n_operations: int, n_bytes: int, dtype: DType) -> float:
    """Estimate the device time of a fused attention kernel, without the launch."""
    compute_us = n_operations / (peak_rate(gpu, dtype) * ATTENTION_EFFICIENCY) * US_PER_S
    memory_us = n_bytes / (gpu.bandwidth * LIBRARY_BANDWIDTH_EFFICIENCY) * US_PER_S
    return max(compute_us, memory_us)


# Fractions of the copy bandwidth that ATen's kernels reach, each from one or two calls measured on one H200.
POINTWISE_EFFICIENCY = 0.95
HALF_PRECISION_EFFICIENCY = 0.72
"""Pointwise kernels on 16-bit types."""
BROADCAST_EFFICIENCY = 0.68
"""Pointwise kernels with a broadcast operand, which ATen does not vectorize."""
REDUCTION_EFFICIENCY = 0.8
ROW_KERNEL_EFFICIENCY = 0.52
"""Softmax and norms of long rows, which are read twice."""
POOL_EFFICIENCY = 0.52
POOL_BACKWARD_EFFICIENCY = 0.22
ROW_KERNEL_CYCLES_PER_ELEMENT = 4.0
"""Cycles per element of a row kernel. ATen's layer norm uses one block per row of any length: 8290 us for one row of
4,194,304 elements on one H200 at 1.98 GHz (measured) are 3.9 cycles each."""

ATTENTION_CALL = "scaled_dot_product_attention"
FUNCTION_KERNELS = {"cross_entropy": 2, "mse_loss": 2, "l1_loss": 2, "smooth_l1_loss": 2, "huber_loss": 2, "kl_div": 2}
"""Number of kernels that one call in the user's code launches, where it is not one."""


@dataclass(frozen=True)
class EagerKernel:
    """One kernel or library call. `device_us` excludes the launch."""

    op: str
    device_us: float
    n_bytes: int
    n_operations: int
    is_library: bool = False


@dataclass(frozen=True)
class EagerRun:
    """All kernels of a graph. Nodes without a source line (a backward pass) cannot be limited by it: with one kernel
    per run of such nodes, eager would launch `n_inflated` fewer and take `inflated_us` less."""

    kernels: tuple[EagerKernel, ...]
    inflated_us: float = 0.0
    n_inflated: int = 0


def eager_run(graph: Graph, sizes: Mapping[str, int], gpu: GpuSpec) -> EagerRun:
    """Return the kernels that eager mode launches for `graph`, in order. Raises ExpressionError for a size without a
    value."""
    values = GraphValues(graph, sizes)
    kernels: list[EagerKernel] = []
    inflated_us, n_inflated = 0.0, 0
    for place, group in groupby(launching_nodes(graph), key=place_of):
        if place is not None and ATTENTION_CALL in place.text:
            kernels.append(fused_attention(list(group), values, gpu))
            continue
        runs = [_Run(tuple(nodes), _priced(nodes, values, gpu), heavy) for nodes, heavy in _runs(group)]
        n_heavy = sum(len(run.kernels) for run in runs if run.is_heavy)
        for run in runs:
            if place is not None and not run.is_heavy:
                kernels += _limited(run, _n_kernels_of_text(place.text) - n_heavy, values)
                continue
            kernels += run.kernels
            if place is None and not run.is_heavy:
                inflated_us += run.device_us - _merged(run, 1, values).device_us
                n_inflated += len(run.kernels) - 1
    return EagerRun(tuple(kernels), inflated_us, n_inflated)


def node_kernels(node: GraphNode, values: GraphValues, gpu: GpuSpec) -> list[EagerKernel]:
    """Return the kernels of one node, mostly one."""
    op = node.op
    if is_a(op, "product"):
        return [_product(node, values, gpu)]
    if is_a(op, "convolution"):
        return _convolution(node, values, gpu)
    if is_a(op, "row"):
        return [_row_kernel(node, values, gpu)]
    if is_a(op, "two_pass"):
        return _two_passes(node, values, gpu)
    if is_a(op, "attention"):
        return [_attention(node, values, gpu)]
    return [_pass(node, values, gpu)]


def _pass(node: GraphNode, values: GraphValues, gpu: GpuSpec) -> EagerKernel:
    """Estimate one pass over memory: pointwise, reduction, gather, copy, or an unknown operator."""
    op = base_op(node.op)
    output = values.output_bytes(node)
    n_bytes = 2 * output if is_a(node.op, "gather") or op == "cat" else values.input_bytes(node) + output
    n_operations = max((prod(values.shape_of(key)) for key in values.references(node)), default=0)
    return EagerKernel(op, memory_us(gpu, n_bytes, _efficiency(node, values)), n_bytes, n_operations)


def _efficiency(node: GraphNode, values: GraphValues) -> float:
    op = base_op(node.op)
    if is_a(node.op, "pool", "pool_backward"):
        return POOL_EFFICIENCY if is_a(node.op, "pool") else POOL_BACKWARD_EFFICIENCY
    n_result = prod(values.output_shape(node))
    stored = [values.storage[key] // values.types[key].dtype.itemsize for key in values.references(node)]
    if any(n > n_result for n in stored):
        return REDUCTION_EFFICIENCY
    if op != "cat" and len(stored) > 1 and any(1 < n < n_result for n in stored):
        return BROADCAST_EFFICIENCY
    return HALF_PRECISION_EFFICIENCY if values.dtype(node).itemsize == 2 else POINTWISE_EFFICIENCY


def memory_us(gpu: GpuSpec, n_bytes: int, efficiency: float) -> float:
    """Return the microseconds that `n_bytes` take at this fraction of the bandwidth."""
    return n_bytes / (gpu.bandwidth * efficiency) * US_PER_S


def _row_kernel(node: GraphNode, values: GraphValues, gpu: GpuSpec) -> EagerKernel:
    """Estimate a kernel with one block per row; few long rows leave the GPU idle."""
    first = values.references(node)[0]
    shape = values.shape_of(first)
    n_row = _row_length(node, shape)
    n_rows = prod(shape) // max(n_row, 1)
    n_bytes = values.input_bytes(node) + values.output_bytes(node)
    n_rows_per_sm = -(-n_rows // gpu.n_sms)
    row_us = n_rows_per_sm * n_row * ROW_KERNEL_CYCLES_PER_ELEMENT / gpu.clock_hz * US_PER_S
    is_starved = n_rows < gpu.n_sms
    device_us = max(memory_us(gpu, n_bytes, ROW_KERNEL_EFFICIENCY), row_us if is_starved else 0.0)
    return EagerKernel(base_op(node.op), device_us, n_bytes, 8 * prod(shape))


def _row_length(node: GraphNode, shape: Sequence[int]) -> int:
    """Return the elements normalized together: the product of a norm's sizes, or a softmax's dim."""
    argument = node.arguments[1] if len(node.arguments) > 1 else None
    if isinstance(argument, (list, tuple)):
        return prod(shape[len(shape) - len(argument) :])
    if isinstance(argument, int) and shape:
        return shape[argument]
    return shape[-1] if shape else 1


def _two_passes(node: GraphNode, values: GraphValues, gpu: GpuSpec) -> list[EagerKernel]:
    """Estimate two passes: statistics, then the result."""
    n_input, n_output = values.input_bytes(node), values.output_bytes(node)
    n_elements = prod(values.shape_of(values.references(node)[0]))
    op = base_op(node.op)
    return [
        EagerKernel(f"{op} statistics", memory_us(gpu, n_input, REDUCTION_EFFICIENCY), n_input, 4 * n_elements),
        EagerKernel(op, memory_us(gpu, n_input + n_output, BROADCAST_EFFICIENCY), n_input + n_output, 4 * n_elements),
    ]


def _product(node: GraphNode, values: GraphValues, gpu: GpuSpec) -> EagerKernel:
    operands = values.references(node)
    matrices = operands[1:3] if is_a(node.op, "biased") else operands[:2]
    left = values.shape_of(matrices[0])
    result = values.output_shape(node)
    shape = product_shape(left, result)
    n_bytes = values.input_bytes(node) + values.output_bytes(node)
    time_us = product_us(gpu, shape, n_bytes, values.dtype(node))
    return EagerKernel(base_op(node.op), time_us, n_bytes, shape.n_operations, is_library=True)


def product_shape(left: Sequence[int], result: Sequence[int]) -> ProductShape:
    """Return the product from `left`, summed over its last dim, to `result`."""
    k = left[-1] if left else 1
    n = result[-1] if len(result) >= 2 else 1
    m = result[-2] if len(result) >= 2 else prod(result)
    return ProductShape(batch=prod(result[:-2]), m=m, n=n, k=k)


def _convolution(node: GraphNode, values: GraphValues, gpu: GpuSpec) -> list[EagerKernel]:
    """Estimate the convolution, and its bias as a separate pass (cuDNN through ATen)."""
    operands = values.references(node)
    source, weight = (values.shape_of(operand) for operand in operands[:2])
    result = values.output_shape(node)
    n_bytes = values.input_bytes(node) + values.output_bytes(node)
    shape = convolution_shape(source, weight, result, is_transposed=_is_transposed(node))
    time_us = convolution_us(gpu, shape, n_bytes, values.dtype(node))
    kernels = [EagerKernel("convolution", time_us, n_bytes, shape.n_operations, is_library=True)]
    if len(operands) > 2:
        n_output = values.output_bytes(node)
        bias_us = memory_us(gpu, 2 * n_output, BROADCAST_EFFICIENCY)
        kernels.append(EagerKernel("convolution bias", bias_us, 2 * n_output, prod(result)))
    return kernels


def convolution_shape(
    source: Sequence[int], weight: Sequence[int], result: Sequence[int], *, is_transposed: bool
) -> ProductShape:
    """Return a convolution as a product: positions by window by channels. `weight` is (out, in / groups, *window), or
    (in, out / groups, *window) when transposed, where each position of the source is multiplied by the window."""
    window = prod(weight[2:])
    if is_transposed:
        return ProductShape(batch=1, m=prod(source) // max(source[1], 1), n=weight[1], k=weight[0] * window)
    return ProductShape(batch=1, m=prod(result) // max(result[1], 1), n=result[1], k=weight[1] * window)


def _is_transposed(node: GraphNode) -> bool:
    return len(node.arguments) > 6 and node.arguments[6] is True


def _attention(node: GraphNode, values: GraphValues, gpu: GpuSpec) -> EagerKernel:
    query, key = (values.shape_of(reference) for reference in values.references(node)[:2])
    n_operations = 4 * prod(query) * key[-2]
    n_bytes = values.input_bytes(node) + values.output_bytes(node)
    time_us = attention_us(gpu, n_operations, n_bytes, values.dtype(node))
    return EagerKernel(base_op(node.op), time_us, n_bytes, n_operations, is_library=True)


def fused_attention(nodes: Sequence[GraphNode], values: GraphValues, gpu: GpuSpec) -> EagerKernel:
    """Merge a decomposed attention call, which eager runs fused."""
    names = {node.name for node in nodes}
    entering = {key for node in nodes for key in values.references(node) if key[0] not in names}
    n_bytes = sum(values.storage[key] for key in entering) + values.output_bytes(nodes[-1])
    n_operations = sum(kernel.n_operations for kernel in _priced(nodes, values, gpu) if kernel.is_library)
    time_us = attention_us(gpu, n_operations, n_bytes, values.dtype(nodes[-1]))
    return EagerKernel(ATTENTION_CALL, time_us, n_bytes, n_operations, is_library=True)


@dataclass(frozen=True)
class _Line:
    """A source line and the submodule in which it ran."""

    file: str
    line: int
    text: str
    module_path: str | None


def launching_nodes(graph: Graph) -> list[GraphNode]:
    """Return the nodes that launch kernels: no views, no constants, nothing that a forward has kept."""
    needed = _after_gradients(graph) if _is_backward(graph) else graph.nodes
    return [node for node in needed if not is_a(node.op, "view") and not _is_scalar_fill(node)]


def _is_backward(graph: Graph) -> bool:
    results = all(output.name.startswith(GRADIENT_PREFIX) for output in graph.outputs)
    return results and any(name.startswith(GRADIENT_PREFIX) for name in graph.inputs)


def _after_gradients(graph: Graph) -> list[GraphNode]:
    """Return the nodes that depend on a gradient. Eager keeps from the forward what a backward graph recomputes."""
    known = {name for name in graph.inputs if name.startswith(GRADIENT_PREFIX)}
    found = []
    for node in graph.nodes:
        if any(name in known for name, _ in references_in((node.arguments, node.keywords))):
            known.add(node.name)
            found.append(node)
    return found


def _is_scalar_fill(node: GraphNode) -> bool:
    """Return True for a constant of the capture that eager holds as a Python number."""
    return is_a(node.op, "fill") and all(type_ is None or not type_.shape for type_ in node.types)


def place_of(node: GraphNode) -> _Line | None:
    """Return the source line of a node; None for a node without one."""
    if node.source is None:
        return None
    return _Line(node.source.file, node.source.line, node.source.text, node.module_path)


@dataclass(frozen=True)
class _Run:
    """Consecutive nodes of one line, either all multi-pass or all simple, and their kernels."""

    nodes: tuple[GraphNode, ...]
    kernels: tuple[EagerKernel, ...]
    is_heavy: bool

    @property
    def device_us(self) -> float:
        return sum(kernel.device_us for kernel in self.kernels)


def _runs(group: Iterable[GraphNode]) -> Iterator[tuple[list[GraphNode], bool]]:
    for heavy, run in groupby(group, key=lambda node: is_a(node.op, "several_passes")):
        yield list(run), heavy


def _priced(nodes: Sequence[GraphNode], values: GraphValues, gpu: GpuSpec) -> tuple[EagerKernel, ...]:
    return tuple(kernel for node in nodes for kernel in node_kernels(node, values, gpu))


def _limited(run: _Run, n_of_text: int, values: GraphValues) -> Sequence[EagerKernel]:
    """Limit the kernels of a line's simple nodes to those that its text can launch, per repetition."""
    n_most = _n_repeats([node.op for node in run.nodes]) * max(1, n_of_text)
    if len(run.kernels) <= n_most:
        return run.kernels
    merged = _merged(run, n_most, values)
    share = EagerKernel(merged.op, merged.device_us / n_most, merged.n_bytes // n_most, merged.n_operations // n_most)
    return [share] * n_most


def _merged(run: _Run, n_kernels: int, values: GraphValues) -> EagerKernel:
    """Merge a run into `n_kernels`: its external traffic stays, and a share of the internal."""
    all_bytes = sum(kernel.n_bytes for kernel in run.kernels)
    names = {node.name for node in run.nodes}
    entering = {key for node in run.nodes for key in values.references(node) if key[0] not in names}
    outer = min(all_bytes, sum(values.storage[key] for key in entering) + values.output_bytes(run.nodes[-1]))
    inside = (n_kernels - 1) / (len(run.kernels) - 1) if len(run.kernels) > 1 else 0.0
    n_bytes = outer + round((all_bytes - outer) * inside)
    device_us = run.device_us * n_bytes / all_bytes if all_bytes else run.device_us
    n_operations = sum(kernel.n_operations for kernel in run.kernels)
    return EagerKernel(" + ".join(base_op(node.op) for node in run.nodes), device_us, n_bytes, n_operations)


def _n_repeats(ops: Sequence[str]) -> int:
    """Count the repetitions of the shortest period: a loop on one line."""
    for length in range(1, len(ops) // 2 + 1):
        if len(ops) % length == 0 and list(ops) == list(ops[:length]) * (len(ops) // length):
            return len(ops) // length
    return 1


_STRINGS_AND_COMMENTS = re.compile(r"'[^']*'|\"[^\"]*\"|#.*")
_CALL = re.compile(r"(?P<name>[A-Za-z_]\w*)\s*\(")
_OPERATOR = re.compile(r"\*\*|//|<<|>>|[<>=!]=|(?<![=(,*])[+\-*/@%&|^<>](?!=)|[+\-*/@%&|^]=")


def _n_kernels_of_text(text: str) -> int:
    """Count the calls and operators of a line of Python, its maximum number of launches; at least one."""
    code = _STRINGS_AND_COMMENTS.sub(" ", text)
    calls = [FUNCTION_KERNELS.get(match["name"], 1) for match in _CALL.finditer(code)]
    return max(1, sum(calls) + len(_OPERATOR.findall(code)))
