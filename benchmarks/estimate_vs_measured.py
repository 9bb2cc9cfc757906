"""Compare our estimates with times measured on one H200: the tables of docs/estimates.md.

    python benchmarks/estimate_vs_measured.py

`estimate_vs_measured_gpu.py` made the measurements (device time: the GPU was kept busy until the CPU had launched all;
L2 overwritten before each of 40 samples; medians; f32 without TF32). Here torch captures graphs; no GPU is needed.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from estimate_vs_measured_launches import LAUNCHES, Launch
from recorded_tasks import read_tasks

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.measurement import COMPILE, Estimate
from kernel_lsp.core.plan import BoundLaunch, BoundOperation, BoundTensor, ScalarArgument, TensorArgument
from kernel_lsp.core.profile import LaunchCounters
from kernel_lsp.core.task import Graph, Task
from kernel_lsp.core.verdict import Built
from kernel_lsp.gpu.estimate import estimate_compiled, estimate_eager, estimate_operation
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.process.interpreter import find_python
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.ptx.executor import BlockSample, BufferFile, ExecutionReport, PtxExecutor, RunOptions
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.toolchain.nvrtc.discovery import find_toolchain

HERE = Path(__file__).parent
TARGETS = HERE / "estimate_vs_measured_targets.py"
MEASURED = HERE / "estimate_vs_measured_h200.json"
RECORDED = HERE / "results" / "recorded_runs-nvidia_h200-2026-11-21.json"
"""Recorded runs with the times of eager and the modes of `torch.compile`."""
GPU = find_gpu("H200")
EARLIER_US = {"conv_relu_pool": 30.3, "cross_entropy": 7.3, "linear": 15.5}
"""Measured in an earlier run on an H200, by events without keeping the GPU busy. No constant was fitted to them."""


@dataclass(frozen=True)
class Row:
    """An estimate beside its measurement."""

    name: str
    measured_us: float
    estimate: Estimate

    @property
    def ratio(self) -> float:
        return self.estimate.time_us / self.measured_us


def main() -> None:
    measured = json.loads(MEASURED.read_text())
    print(f"{measured['gpu']}, torch {measured['torch']}\n")
    _print("eager PyTorch (constants fitted to these)", asyncio.run(eager_rows(measured["eager_us"])))
    _print("eager PyTorch, other calls", asyncio.run(eager_rows(EARLIER_US)))
    _print("torch.compile (its launch was chosen by these)", asyncio.run(compiled_rows()))
    _print("our launches (constants fitted to these)", asyncio.run(launch_rows(measured["launch_us"])))


async def eager_rows(measured_us: Mapping[str, float]) -> list[Row]:
    """Every measured call that has a target."""
    async with Worker(await find_python(None)) as worker:
        text = TARGETS.read_text()
        names = [name for name in measured_us if f"def {_symbol(name, text)}(" in text]
        return [Row(name, measured_us[name], await _eager(name, text, worker)) for name in names]


async def compiled_rows() -> list[Row]:
    """Every recorded task, forward and backward, whose `torch.compile` was timed; later tasks have no recording."""
    recorded = json.loads(RECORDED.read_text())["tasks"]
    rows = []
    async with Worker(await find_python(None)) as worker:
        for task in [each for each in read_tasks() if each.name in recorded]:
            times = next(iter(recorded[task.name]["summary"].values()))["times"]
            captured = await worker.capture(read_target(task.target, HERE.parent), with_backward=task.backward)
            for operation, each in times.items():
                graph = _graph(captured, "backward" if operation.endswith("_backward") else "forward")
                sizes = {symbol.name: symbol.captured for symbol in captured.symbols}
                rows.append(Row(operation, each["baselines_us"][COMPILE], estimate_compiled(graph, sizes, GPU)))
    return rows


async def launch_rows(measured_us: Mapping[str, float]) -> list[Row]:
    """Every launch of `LAUNCHES`, from the counters of a few of its blocks."""
    with tempfile.TemporaryDirectory() as folder:
        async with Compiler(find_toolchain()) as compiler, PtxExecutor() as executor:
            return [
                Row(launch.name, measured_us[launch.name], await _launch(launch, compiler, executor, Path(folder)))
                for launch in LAUNCHES
            ]


# --- below: one estimate


def _symbol(name: str, text: str) -> str:
    """A backward has a target of its own only where its sizes differ."""
    return name if f"def {name}(" in text else name.removesuffix("_backward")


async def _eager(name: str, text: str, worker: Worker) -> Estimate:
    source = read_target(f"{TARGETS.name}::{_symbol(name, text)}", HERE)
    is_backward = name.endswith("_backward")
    task = await worker.capture(source, with_backward=is_backward)
    sizes = {symbol.name: symbol.captured for symbol in task.symbols}
    return estimate_eager(_graph(task, "backward" if is_backward else "forward"), sizes, GPU)


def _graph(task: Task, direction: str) -> Graph:
    if direction == "forward":
        return task.forward
    assert task.backward is not None, f"{task.name} has no backward"
    return task.backward


async def _launch(launch: Launch, compiler: Compiler, executor: PtxExecutor, folder: Path) -> Estimate:
    built = await compiler.compile(BuildRequest(text=launch.text, name_expressions=("k",)))
    assert isinstance(built, Built), built
    bound = _bound(launch)
    counters = await _counters(launch, built, bound, executor, folder)
    return estimate_operation(bound, counters, built.kernels, built.symbols, GPU)


def _bound(launch: Launch) -> BoundOperation:
    step = BoundLaunch(
        kernel="k",
        grid=(launch.grid, 1, 1),
        block=(launch.block, 1, 1),
        shared_bytes=0,
        arguments=(
            TensorArgument(tensor="x"),
            TensorArgument(tensor="y"),
            ScalarArgument(cuda_type="int", value=launch.argument),
        ),
    )
    shape = (launch.n_elements,)
    x = BoundTensor(name="x", dtype=DType.F32, shape=shape, role="input")
    y = BoundTensor(name="y", dtype=DType.F32, shape=shape, role="output")
    return BoundOperation(name=launch.name, dims={}, tensors=(x, y), steps=(step,))


async def _counters(
    launch: Launch, built: Built, bound: BoundOperation, executor: PtxExecutor, folder: Path
) -> Sequence[LaunchCounters]:
    await executor.load(built.ptx, "kernel.cu")
    buffers = []
    for tensor in bound.tensors:
        path = folder / tensor.name
        with path.open("wb") as file:
            file.truncate(tensor.n_bytes)  # sparse: zeros that take no disk
        role = "input" if tensor.role == "input" else "output"
        buffers.append(BufferFile(tensor.name, path, tensor.n_bytes, role, f"f32[{launch.n_elements}]"))
    options = RunOptions(sample=BlockSample(4), n_traced_blocks=2)
    report = await executor.run(buffers, bound.steps, built.symbols, options)
    assert isinstance(report, ExecutionReport), report
    return report.counters


# --- below: tables


def _print(title: str, rows: Sequence[Row]) -> None:
    print(f"{title}\n{'':<42} {'measured us':>11} {'estimated us':>12} {'interval us':>20} {'ratio':>6}  bound")
    for row in rows:
        print(_line(row))
    errors = [abs(row.ratio - 1) for row in rows]
    inside = sum(row.estimate.low_us <= row.measured_us <= row.estimate.high_us for row in rows)
    print(
        f"median error {statistics.median(errors):.0%}, {sum(error <= 0.3 for error in errors)} of {len(rows)} within "
        f"30 %, {inside} inside their interval, rank correlation {_rank_correlation(rows):.3f}\n"
    )


def _line(row: Row) -> str:
    interval = f"[{row.estimate.low_us:.4g}, {row.estimate.high_us:.4g}]"
    return (
        f"{row.name:<42} {row.measured_us:>11.4g} {row.estimate.time_us:>12.4g} {interval:>20} "
        f"{row.ratio:>6.2f}  {row.estimate.bound}"
    )


def _rank_correlation(rows: Sequence[Row]) -> float:
    """Spearman's."""
    measured = _ranks([row.measured_us for row in rows])
    estimated = _ranks([row.estimate.time_us for row in rows])
    return statistics.correlation(measured, estimated)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [float(order.index(value)) for value in values]


if __name__ == "__main__":
    main()
