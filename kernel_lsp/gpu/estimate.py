"""Predict times: of PyTorch's eager mode for a graph, and of our operations from the executor's counters.

Both are models, not measurements, and give an interval. `docs/estimates.md` gives their accuracy.

`time_floor` is the roofline bound of an operation, and the time below which a measurement is impossible. Only work that
every correct kernel must do counts as necessary. Inputs of a product or a pointwise operation are, where all of their
results are required. What a gather may leave unread is not, nor what a shortcut in arithmetic may save.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import evaluate_int, parse
from kernel_lsp.core.measurement import COMPILE, EAGER, Bound, Estimate, EstimatedBaseline, TimeFloor
from kernel_lsp.core.operators import is_a
from kernel_lsp.core.plan import (
    BoundFill,
    BoundLaunch,
    BoundLibraryStep,
    BoundOperation,
    BoundTensor,
    TensorArgument,
    tensors_in,
)
from kernel_lsp.core.profile import LaunchCounters
from kernel_lsp.core.task import Graph, GraphNode, TensorType, names_in
from kernel_lsp.core.verdict import KernelFacts
from kernel_lsp.gpu.compiled import compiled_run
from kernel_lsp.gpu.eager import (
    POINTWISE_EFFICIENCY,
    EagerRun,
    attention_us,
    convolution_shape,
    convolution_us,
    eager_run,
    product_shape,
    product_us,
)
from kernel_lsp.gpu.floor import US_PER_S, peak_rate, products_behind_sums, shown_floor
from kernel_lsp.gpu.launch import Traffic, launch_time, occupancy
from kernel_lsp.gpu.specs import GpuSpec

LAUNCH_US = 2.2
"""Duration of a nearly empty kernel, in microseconds: 64 rows of 1024 take 4.3 us with their latency (one H200)."""
EAGER_GAP_US = 1.2
"""Additional microseconds per eager launch: an addition of 64 numbers takes 3.46 us on one H200 (measured)."""
RELATIVE_ERROR = 0.30
"""Relative error of the model when bound by memory or arithmetic; comparable analytical models report 20 to 35 %."""
ABSOLUTE_ERROR_US = 1.5
"""Absolute error of launches and latencies in microseconds, which dominates small times."""
L2_SHARE_FOR_REUSE = 0.5
"""Maximum share of L2 for tensors to stay resident from one launch to the next."""
DEFAULT_REGISTERS = 32
"""Registers per thread for a kernel without ptxas data."""
SUMS_LEADING_DIMS = "aten::tensordot"
"""Product that the generator calls for sums over all dims but the last."""
ATTENTION_STEPS = {
    "aten::scaled_dot_product_attention": 2,
    "sdpa::forward": 2,
    "sdpa::backward": 7,
    "sdpa::forward_kept": 2,
    "sdpa::backward_kept": 5,
}
"""Products of queries, keys and columns of each: the gradients need five, after those of the forward pass."""


def estimate_eager(graph: Graph, sizes: Mapping[str, int], gpu: GpuSpec) -> Estimate:
    """Estimate the GPU time of the kernels that eager PyTorch launches for `graph`, with `sizes` for its symbols,
    without TF32. Excludes CPU launch time, which overlaps with the GPU unless the kernels are short.

    Raises ExpressionError for a size without a value.
    """
    run = eager_run(graph, sizes, gpu)
    return _estimate_run(graph, sizes, gpu, run, LAUNCH_US + EAGER_GAP_US, "ATen ops")


def estimate_compiled(graph: Graph, sizes: Mapping[str, int], gpu: GpuSpec) -> Estimate:
    """Estimate the same of `torch.compile`: one kernel for each fused part of `graph`, and its library calls."""
    return _estimate_run(graph, sizes, gpu, compiled_run(graph, sizes, gpu), LAUNCH_US, "the fused graph")


def estimate_baselines(graph: Graph, sizes: Mapping[str, int], gpu: GpuSpec) -> tuple[EstimatedBaseline, ...]:
    """Estimate every way to run `graph` in PyTorch that has a model: eager and `torch.compile`."""
    return (
        EstimatedBaseline(name=EAGER, estimate=estimate_eager(graph, sizes, gpu)),
        EstimatedBaseline(name=COMPILE, estimate=estimate_compiled(graph, sizes, gpu)),
    )


def estimate_operation(
    bound: BoundOperation,
    counters: Sequence[LaunchCounters],
    kernels: Sequence[KernelFacts],
    symbols: Mapping[str, str],
    gpu: GpuSpec,
) -> Estimate:
    """Estimate the GPU time of one bound operation. `counters` has one entry per launch, in order; `kernels` are
    ptxas's facts, matched to launches through `symbols` (name expression -> symbol). Steps that only make what a
    backward is given of its forward do not count.

    Raises ValueError when `counters` do not match the launches.
    """
    launches = bound.launches
    if len(launches) != len(counters):
        raise ValueError(f"{len(launches)} launches and {len(counters)} counters")
    counters = counters[bound.n_launches_before :]
    bound = bound.timed
    model = _OperationModel(bound, tuple(kernels), symbols, gpu)
    remaining = iter(counters)
    parts = [model.step(step, next(remaining) if isinstance(step, BoundLaunch) else None) for step in bound.steps]
    return model.estimate(parts)


def _estimate_run(
    graph: Graph, sizes: Mapping[str, int], gpu: GpuSpec, run: EagerRun, launch_us: float, what: str
) -> Estimate:
    total_us = sum(kernel.device_us for kernel in run.kernels) + launch_us * len(run.kernels)
    parts: dict[Bound, float] = {"launch": launch_us * len(run.kernels)}
    for kernel in run.kernels:
        bound: Bound = "library" if kernel.is_library else "memory"
        parts[bound] = parts.get(bound, 0.0) + kernel.device_us
    certain_us = total_us - run.inflated_us - launch_us * run.n_inflated
    shapes, dtypes = _graph_shapes(graph, sizes)
    return Estimate(
        time_us=total_us,
        low_us=_low(certain_us, len(run.kernels) - run.n_inflated),
        high_us=_high(total_us, len(run.kernels)),
        gpu=gpu.name,
        bound=max(parts, key=lambda name: parts[name]),
        bytes_moved=sum(kernel.n_bytes for kernel in run.kernels),
        n_operations=sum(kernel.n_operations for kernel in run.kernels),
        n_launches=len(run.kernels),
        shapes=shapes,
        dtypes=dtypes,
        date=_today(),
        method=f"roofline over {what}, {gpu.bandwidth_kind} bandwidth",
    )


@dataclass(frozen=True)
class _StepTime:
    """One step. `n_bytes` is its compulsory traffic."""

    device_us: float
    bound: Bound
    n_bytes: int
    n_operations: int
    n_launches: int = 1


class _OperationModel:
    """Walk the steps of one operation and track what earlier steps left in L2."""

    def __init__(
        self, bound: BoundOperation, kernels: Sequence[KernelFacts], symbols: Mapping[str, str], gpu: GpuSpec
    ) -> None:
        self._bound, self._symbols, self._gpu = bound, symbols, gpu
        self._facts = {facts.symbol: facts for facts in kernels} | {facts.kernel: facts for facts in kernels}
        self._tensors = {tensor.name: tensor for tensor in bound.tensors}
        self._touched: set[str] = set()

    def step(self, step: BoundLaunch | BoundFill | BoundLibraryStep, counters: LaunchCounters | None) -> _StepTime:
        if isinstance(step, BoundLaunch) and counters is not None:
            return self._launch(step, counters)
        if isinstance(step, BoundFill):
            return self._fill(step)
        assert isinstance(step, BoundLibraryStep)
        return self._library(step)

    def estimate(self, steps: Sequence[_StepTime]) -> Estimate:
        n_launches = sum(step.n_launches for step in steps)
        total_us = sum(step.device_us for step in steps) + LAUNCH_US * n_launches
        parts: dict[Bound, float] = {"launch": LAUNCH_US * n_launches}
        for step in steps:
            parts[step.bound] = parts.get(step.bound, 0.0) + step.device_us
        shown = [tensor for tensor in self._bound.tensors if tensor.role != "scratch"]
        return Estimate(
            time_us=total_us,
            low_us=_low(total_us, n_launches),
            high_us=_high(total_us, n_launches),
            gpu=self._gpu.name,
            bound=max(parts, key=lambda name: parts[name]),
            bytes_moved=sum(step.n_bytes for step in steps),
            n_operations=sum(step.n_operations for step in steps),
            n_launches=n_launches,
            shapes={tensor.name: tensor.shape for tensor in shown},
            dtypes={tensor.name: tensor.dtype.value for tensor in shown},
            date=_today(),
            method=f"executor counters, {self._gpu.bandwidth_kind} bandwidth",
        )

    def _launch(self, step: BoundLaunch, counters: LaunchCounters) -> _StepTime:
        facts = self._facts.get(self._symbols.get(step.kernel, ""), self._facts.get(step.kernel))
        resident = occupancy(
            self._gpu.architecture,
            n_threads_per_block=step.n_threads_per_block,
            n_registers=facts.n_registers if facts else DEFAULT_REGISTERS,
            shared_bytes=step.shared_bytes + (facts.shared_bytes if facts else 0),
        )
        traffic = self._traffic(step, counters)
        time = launch_time(counters, resident, traffic, self._gpu)
        scale = counters.n_blocks / max(1, counters.n_blocks_run)
        return _StepTime(
            time.device_us, time.bound, traffic.compulsory_bytes, round(counters.n_floating_operations * scale)
        )

    def _traffic(self, step: BoundLaunch, counters: LaunchCounters) -> Traffic:
        """Return the traffic: at most each argument once, and at most the bytes requested, as a gather reads little of
        its table."""
        names = [argument.tensor for argument in step.arguments if isinstance(argument, TensorArgument)]
        tensors = [self._tensors[name] for name in dict.fromkeys(names)]
        scale = counters.n_blocks / max(1, counters.n_blocks_run)
        readable = self._n_bytes(tensors, "input", "scratch") or self._n_bytes(tensors, "output")
        writable = self._n_bytes(tensors, "output", "scratch") or self._n_bytes(tensors, "input")
        read_bytes = min(round(counters.global_load_bytes * scale), readable)
        written_bytes = min(round(counters.global_store_bytes * scale), writable)
        cached = sum(tensor.n_bytes for tensor in tensors if tensor.name in self._touched)
        self._touched |= {tensor.name for tensor in tensors} if self._stays_in_l2() else set()
        return Traffic(read_bytes, written_bytes, min(cached, read_bytes))

    def _stays_in_l2(self) -> bool:
        return sum(tensor.n_bytes for tensor in self._bound.tensors) <= L2_SHARE_FOR_REUSE * self._gpu.l2_bytes

    def _n_bytes(self, tensors: Sequence[BoundTensor], *roles: str) -> int:
        return sum(tensor.n_bytes for tensor in tensors if tensor.role in roles)

    def _fill(self, step: BoundFill) -> _StepTime:
        n_bytes = self._tensors[step.tensor].n_bytes
        return _StepTime(n_bytes / (self._gpu.bandwidth * POINTWISE_EFFICIENCY) * US_PER_S, "memory", n_bytes, 0)

    def _library(self, step: BoundLibraryStep) -> _StepTime:
        operands = [self._tensors[name] for name in tensors_in(step.arguments)]
        results = [self._tensors[name] for name in step.results]
        n_bytes = sum(tensor.n_bytes for tensor in {tensor.name: tensor for tensor in operands + results}.values())
        op = step.function
        if is_a(op, "product") and operands and results:
            left = operands[1] if is_a(op, "biased") else operands[0]
            factor = (prod(left.shape[:-1]),) if op == SUMS_LEADING_DIMS else left.shape
            shape, time_us = product_shape(factor, results[0].shape), product_us
        elif is_a(op, "convolution") and len(operands) > 1 and results:
            is_transposed = len(step.arguments) > 6 and step.arguments[6] is True
            shapes = (operands[0].shape, operands[1].shape, results[0].shape)
            shape = convolution_shape(*shapes, is_transposed=is_transposed)
            time_us = convolution_us
        elif op in ATTENTION_STEPS and len(operands) > 2 and results:
            return self._library_attention(operands[0], operands[1], n_bytes, ATTENTION_STEPS[op])
        else:
            memory_us = n_bytes / (self._gpu.bandwidth * POINTWISE_EFFICIENCY) * US_PER_S
            return _StepTime(memory_us, "library", n_bytes, sum(prod(tensor.shape) for tensor in results))
        dtype = results[0].dtype if results else DType.F32
        n_launches = 2 if is_a(op, "convolution") and len(operands) > 2 else 1
        return _StepTime(time_us(self._gpu, shape, n_bytes, dtype), "library", n_bytes, shape.n_operations, n_launches)

    def _library_attention(self, query: BoundTensor, key: BoundTensor, n_bytes: int, n_products: int) -> _StepTime:
        """Estimate the products of a fused attention; a causal one needs about half of them."""
        n_operations = 2 * n_products * key.shape[-2] * prod(query.shape)
        return _StepTime(attention_us(self._gpu, n_operations, n_bytes, query.dtype), "library", n_bytes, n_operations)


def _low(time_us: float, n_launches: int) -> float:
    return max(0.2 * time_us, time_us / (1 + RELATIVE_ERROR) - ABSOLUTE_ERROR_US * max(1, n_launches) ** 0.5)


def _high(time_us: float, n_launches: int) -> float:
    return time_us * (1 + RELATIVE_ERROR) + ABSOLUTE_ERROR_US * max(1, n_launches) ** 0.5


def _graph_shapes(graph: Graph, sizes: Mapping[str, int]) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    shapes, dtypes = {}, {}
    for name, type_ in zip(graph.inputs, graph.input_types, strict=True):
        shapes[name] = tuple(evaluate_int(parse(dim), sizes) for dim in type_.shape)
        dtypes[name] = type_.dtype.value
    return shapes, dtypes


def _today() -> str:
    return datetime.date.today().isoformat()


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


def _n_input_bytes(bound: BoundOperation) -> int:
    return sum(tensor.n_bytes for tensor in bound.inputs)


def _memory_s(needed: frozenset[str], bound: BoundOperation, gpu: GpuSpec) -> float:
    """Return the seconds of compulsory memory traffic. Written data may still be in L2 when the kernel has ended. An
    input that only the forward's own steps take is not read, nor is more of what they made than a shortcut needs."""
    given = {tensor.name for tensor in bound.inputs}
    bound, needed = bound.timed, needed & given
    n_read = sum(tensor.n_bytes for tensor in bound.inputs if tensor.name in needed)
    n_written = sum(tensor.n_bytes for tensor in bound.outputs)
    return (n_read + max(0, n_written - gpu.l2_bytes)) / gpu.datasheet_bandwidth


def _product_s(graph: Graph, needed: frozenset[str], sizes: Mapping[str, int], gpu: GpuSpec) -> float:
    """Return the seconds of the largest matrix product alone: later operations may make the others unnecessary, by
    association, and sums those before them. f32 counts at the tensor cores' rate, where several products of fewer bits
    can form an exact one."""
    found, summed = 0.0, products_behind_sums(graph)
    for node in graph.nodes:
        if is_a(node.op, "product") and node.name in needed - summed and node.types[0] is not None:
            dtype = node.types[0].dtype
            rate = peak_rate(gpu, dtype)
            fastest = max(rate, gpu.tf32_rate) if dtype is DType.F32 else rate
            found = max(found, _n_operations(graph, node, sizes) / fastest)
    return found


def _n_operations(graph: Graph, node: GraphNode, sizes: Mapping[str, int]) -> int:
    """Return the operations of a product, two per multiply-add."""
    result = _shape(node.types[0], sizes)
    first = node.reads[is_a(node.op, "biased")]
    shape = _shape(graph.value_types()[first], sizes)
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


def _needed(graph: Graph) -> frozenset[str]:
    """Return the values of which every element is needed for the outputs, as far as the operations show."""
    needed = {output.node for output in graph.outputs if output.node is not None}
    for node in reversed(graph.nodes):
        if node.name in needed and is_a(node.op, "needs_all"):
            needed.update(names_in((node.arguments, node.keywords)))
    return frozenset(needed)


def _shape(type_: TensorType | None, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate_int(parse(dim), sizes) for dim in type_.shape) if type_ is not None else ()
