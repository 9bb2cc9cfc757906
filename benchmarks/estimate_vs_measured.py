"""How far our estimate of eager PyTorch is from times measured on one H200: a table for docs/estimates.md.

    python benchmarks/estimate_vs_measured.py

The measured times are of one run (2026-11-20; CUDA events, L2 flushed, variants interleaved, median of 60; fp32 with
TF32 off; torch 2.11+cu130). They are of the whole call. No GPU is needed here; torch is, to capture the graphs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.core.measurement import Estimate
from kernel_lsp.core.task import Graph, Task
from kernel_lsp.gpu.estimate import estimate_eager
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.process.worker_client import Worker, find_python
from kernel_lsp.source.pytorch import read_target

TARGETS = Path(__file__).with_name("estimate_vs_measured_targets.py")
GPU = "H200"


@dataclass(frozen=True)
class Row:
    """One measured call. `fitted` rows gave the model a constant and so say nothing of its accuracy."""

    symbol: str
    direction: str
    measured_us: float
    fitted: bool = False


ROWS = (
    Row("layer_norm", "forward", 8290, fitted=True),
    Row("rms_norm", "forward", 591, fitted=True),
    Row("llama_ffw", "forward", 2016, fitted=True),
    Row("conv_relu_pool", "forward", 30.3),
    Row("cross_entropy", "forward", 7.3),
    Row("linear", "forward", 15.5, fitted=True),
    Row("linear_relu", "forward", 26.0, fitted=True),
    Row("cross_entropy", "backward", 135),
    Row("linear", "backward", 271),
    Row("linear_relu", "backward", 396),
    Row("Pool", "backward", 90),
)


def main() -> None:
    estimates = asyncio.run(estimate_rows())
    print(f"{'task':<26} {'measured us':>11} {'estimated us':>12} {'interval us':>18} {'ratio':>6}  bound    note")
    for row, estimate in zip(ROWS, estimates, strict=True):
        print(_line(row, estimate))


async def estimate_rows() -> list[Estimate]:
    """Our estimate for each row of `ROWS`."""
    async with Worker(await find_python(None)) as worker:
        return [await _estimate(row, worker) for row in ROWS]


async def _estimate(row: Row, worker: Worker) -> Estimate:
    source = read_target(f"{TARGETS.name}::{row.symbol}", TARGETS.parent)
    task = await worker.capture(source, with_backward=row.direction == "backward")
    sizes = {symbol.name: symbol.captured for symbol in task.symbols}
    return estimate_eager(_graph(task, row.direction), sizes, find_gpu(GPU))


def _graph(task: Task, direction: str) -> Graph:
    if direction == "forward":
        return task.forward
    assert task.backward is not None, f"{task.name} has no backward"
    return task.backward


def _line(row: Row, estimate: Estimate) -> str:
    interval = f"[{estimate.low_us:.3g}, {estimate.high_us:.3g}]"
    notes = ["fitted"] if row.fitted else []
    notes += [] if estimate.low_us <= row.measured_us <= estimate.high_us else ["outside"]
    return (
        f"{row.symbol + ' ' + row.direction:<26} {row.measured_us:>11.4g} {estimate.time_us:>12.4g} {interval:>18} "
        f"{estimate.time_us / row.measured_us:>6.2f}  {estimate.bound:<8} {', '.join(notes)}"
    )


if __name__ == "__main__":
    main()
