"""Estimate the cost of each line of a target, from captures that are cached while the engine lives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from kernel_lsp.config import load_settings
from kernel_lsp.core.digest import sha256_of
from kernel_lsp.core.measurement import Bound, Estimate, LineEstimate
from kernel_lsp.core.model import Noun
from kernel_lsp.core.operators import base_op
from kernel_lsp.core.task import Graph, GraphNode, SourceLine, Task, TensorType
from kernel_lsp.engine.generated import origin_of
from kernel_lsp.engine.messages import EstimateTarget, TargetEstimate
from kernel_lsp.errors import SettingError
from kernel_lsp.gpu.eager import EagerKernel, eager_run
from kernel_lsp.gpu.estimate import EAGER_GAP_US, LAUNCH_US, estimate_compiled, estimate_eager
from kernel_lsp.gpu.floor import floor_us, shown_floor
from kernel_lsp.gpu.specs import GpuSpec, find_gpu
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


CAPTURED_NAME = "captured.json"
"""File name in the folder of the job that captures."""
MAX_KEPT = 64
"""Maximum number of targets; one takes up to some megabytes of disk."""


class Captured(Noun):
    """A target's captured task. `generated` is the file built from a notebook's cells, if the target is in one."""

    task: Task
    generated: Path | None = None


class Captures:
    """Captures by target and interpreter, in a folder of the engine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, request: EstimateTarget, folder: Path) -> None:
        """Store the capture that a job left in its folder, if any, and evict the oldest."""
        with suppress(OSError, SettingError):  # on failure the next estimate captures again
            self._folder.mkdir(exist_ok=True)
            (folder / CAPTURED_NAME).replace(self._path(request))
            kept = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
            for path in kept[:-MAX_KEPT]:
                path.unlink()

    def has(self, request: EstimateTarget) -> bool:
        """Return True when the target was captured under the interpreter of the request's settings."""
        try:
            return self._path(request).is_file()
        except SettingError:
            return False

    def estimate(self, request: EstimateTarget) -> TargetEstimate:
        """Estimate the cached capture for the GPU of the request's settings. Raises SettingError."""
        captured = Captured.model_validate_json(self._path(request).read_bytes())
        gpu = find_gpu(load_settings(request.directory, request.settings).target_gpu)
        return estimate_captured(captured, request.target, gpu)

    def _path(self, request: EstimateTarget) -> Path:
        python = load_settings(request.directory, request.settings).python
        about = json.dumps([str(request.directory), request.target, bool(request.cells), str(python)])
        return self._folder / f"{sha256_of(about)}.json"


def estimate_captured(captured: Captured, target: str, gpu: GpuSpec) -> TargetEstimate:
    """Estimate each line, numbered as in the file or in the concatenated cells."""
    found = estimate_lines(target, captured.task, gpu)
    return found if captured.generated is None else _in_cells(found, captured.generated)


def _in_cells(found: TargetEstimate, generated: Path) -> TargetEstimate:
    """Convert lines of the generated file to lines of the cells, which have one line less above them."""
    notebook = str(origin_of(generated).file)
    lines = [
        line.model_copy(update={"file": notebook, "line": line.line - 1})
        for line in found.lines
        if Path(line.file) == generated
    ]
    return found.model_copy(update={"lines": tuple(lines)})
