"""Estimate the cost of each line of a target: the kernels of its nodes, scaled to the total."""

from __future__ import annotations

from collections.abc import Mapping

from kernel_lsp.core.measurement import Bound, Estimate, LineEstimate
from kernel_lsp.core.operators import base_op
from kernel_lsp.core.task import Graph, GraphNode, SourceLine, Task, TensorType
from kernel_lsp.engine.messages import TargetEstimate
from kernel_lsp.gpu.eager import EagerKernel, eager_run
from kernel_lsp.gpu.estimate import EAGER_GAP_US, LAUNCH_US, estimate_compiled, estimate_eager
from kernel_lsp.gpu.floor import floor_us, shown_floor
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.verify.model.cases import captured_sizes


def estimate_lines(target: str, task: Task, gpu: GpuSpec) -> TargetEstimate:
    """Estimate a captured task in eager mode, and each of its source lines, costliest first."""
    sizes = captured_sizes(task)
    estimate = estimate_eager(task.forward, sizes, gpu)
    kernels = {line: _kernels_of(line, task.forward, sizes, gpu) for line in _lines(task.forward)}
    alone_us = {line: _time_us(found) for line, found in kernels.items()}
    total_us = sum(alone_us.values()) or 1.0
    lines = [
        _line(line, found, alone_us[line] / total_us, _operations(line, task.forward), estimate, gpu)
        for line, found in kernels.items()
        if found
    ]
    return TargetEstimate(
        target=target,
        estimate=estimate,
        compiled=estimate_compiled(task.forward, sizes, gpu),
        floor_us=shown_floor(task.forward, sizes, gpu, estimate.n_operations).time_us,
        lines=tuple(sorted(lines, key=lambda line: -line.time_us)),
        notes=task.notes,
    )


def forward_floor_us(task: Task, gpu: GpuSpec) -> float:
    """Return the speed of light of a captured forward pass at its captured sizes: `TargetEstimate.floor_us`."""
    sizes = captured_sizes(task)
    return shown_floor(task.forward, sizes, gpu, estimate_eager(task.forward, sizes, gpu).n_operations).time_us


def _line(
    line: SourceLine,
    kernels: tuple[EagerKernel, ...],
    share: float,
    operations: tuple[str, ...],
    whole: Estimate,
    gpu: GpuSpec,
) -> LineEstimate:
    """Scale a line to the total; its interval scales in proportion."""
    n_bytes, n_operations = sum(kernel.n_bytes for kernel in kernels), sum(kernel.n_operations for kernel in kernels)
    return LineEstimate(
        file=line.file,
        line=line.line,
        text=line.text.strip(),
        operations=operations,
        time_us=share * whole.time_us,
        low_us=share * whole.low_us,
        high_us=share * whole.high_us,
        floor_us=floor_us(gpu, n_bytes=n_bytes, n_operations=n_operations),
        bound=_bound(kernels),
        share=share,
        bytes_moved=n_bytes,
        n_operations=n_operations,
        n_launches=len(kernels),
    )


def _bound(kernels: tuple[EagerKernel, ...]) -> Bound:
    """Return the dominant cost of the line, in the terms of `estimate_eager`."""
    parts: dict[Bound, float] = {"launch": len(kernels) * (LAUNCH_US + EAGER_GAP_US)}
    for kernel in kernels:
        bound: Bound = "library" if kernel.is_library else "memory"
        parts[bound] = parts.get(bound, 0.0) + kernel.device_us
    return max(parts, key=lambda name: parts[name])


def _operations(line: SourceLine, graph: Graph) -> tuple[str, ...]:
    return tuple(dict.fromkeys(base_op(node.op) for node in graph.nodes if node.source == line))


def _lines(graph: Graph) -> list[SourceLine]:
    return list(dict.fromkeys(node.source for node in graph.nodes if node.source is not None))


def _kernels_of(line: SourceLine, graph: Graph, sizes: Mapping[str, int], gpu: GpuSpec) -> tuple[EagerKernel, ...]:
    """Return the kernels of the line's nodes, given the results of all other nodes."""
    inside = [node for node in graph.nodes if node.source == line]
    given = [node for node in graph.nodes if node.source != line and _single(node) is not None]
    part = Graph(
        inputs=(*graph.inputs, *(node.name for node in given)),
        input_types=(*graph.input_types, *(type_ for node in given if (type_ := _single(node)) is not None)),
        nodes=tuple(inside),
        outputs=graph.outputs,
    )
    return eager_run(part, sizes, gpu).kernels


def _single(node: GraphNode) -> TensorType | None:
    """Return the type of the node's first result; a line that uses another result is priced without it."""
    return node.types[0] if node.types else None


def _time_us(kernels: tuple[EagerKernel, ...]) -> float:
    return sum(kernel.device_us + LAUNCH_US + EAGER_GAP_US for kernel in kernels)
