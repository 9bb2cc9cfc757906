"""Time what a candidate is compared with: eager and every mode of torch.compile, on the tasks of published kernels.

    python benchmarks/gpu_baselines.py [--task NAME[:backward]]... [--wait-s 420] [--out FOLDER] [--device 0|cpu]

All modes are compiled first, several tasks at a time; then each task's baselines are timed in turn, alone on the GPU.
The result is one JSON file (by default under ``benchmarks/results``) and a table in microseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernel_lsp.config import load_settings
from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import evaluate_int, parse
from kernel_lsp.core.measurement import BaselineResult, TimedBaseline, TimeFloor
from kernel_lsp.core.plan import BoundOperation, BoundTensor
from kernel_lsp.core.task import Graph, Task, TensorType
from kernel_lsp.errors import SettingError
from kernel_lsp.gpu.estimate import time_floor
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.process.case_files import CaseFiles, CaseTensor
from kernel_lsp.process.worker_client import OperationName
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.verify.model.cases import captured_sizes, graph_of, shapes_for
from kernel_lsp.verify.session.session import Session
from kernel_lsp.verify.timing.baseline_cache import BaselineCache
from kernel_lsp.verify.timing.baselines import MODES, Baselines, Job
from kernel_lsp.verify.timing.operation import baseline_job
from kernel_lsp.verify.timing.result import measurement
from kernel_lsp.verify.timing.rounds import Rounds, SubjectFailed, TimingPlan, measure_in_turn

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TARGETS = ROOT / "benchmarks" / "targets" / "published_tasks.py"
TASKS = (
    *("layer_norm", "rms_norm", "llama_feed_forward", "ResNetBlock", "conv_relu_pool", "cross_entropy", "linear"),
    *("linear_relu", "cross_entropy:backward", "linear:backward", "linear_relu:backward", "max_pool:backward"),
)
N_GROUPS = 3
"""Compiled side by side, each with a process per mode."""
NUMPY_DTYPES = {DType.F32: np.float32, DType.I64: np.int64}


@dataclass(frozen=True)
class Prepared:
    """One task, captured, with its inputs on disk."""

    name: str
    task: Task
    direction: OperationName
    bound: BoundOperation
    job: Job


def main() -> int:
    arguments = parse_arguments()
    print(table(asyncio.run(run(arguments))))
    return 0


async def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(prefix="baselines-"))
    settings = load_settings(ROOT, {"device": "cpu", "sandbox": arguments.sandbox})
    try:
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(Session(settings))
            tasks = [await prepare(session, name, folder, arguments.device) for name in arguments.task or TASKS]
            groups = [tasks[index::N_GROUPS] for index in range(N_GROUPS) if tasks[index::N_GROUPS]]
            all_baselines = [
                await stack.enter_async_context(
                    Baselines(
                        lambda: session.new_worker(session.worker.python),
                        BaselineCache(folder),
                        device=arguments.device,
                    )
                )
                for _ in groups
            ]
            await asyncio.gather(
                *(compile_all(b, group, arguments.wait_s) for b, group in zip(all_baselines, groups, strict=True))
            )
            entries = {}
            for baselines, group in zip(all_baselines, groups, strict=True):
                async with baselines.held():
                    for prepared in group:
                        entries[prepared.name] = await time_baselines(baselines, prepared)
                        print(table([entries[prepared.name]]), flush=True)
                        write(arguments.out, list(entries.values()))
        return [entries[prepared.name] for prepared in tasks]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def compile_all(baselines: Baselines, group: list[Prepared], wait_s: float) -> None:
    deadline = asyncio.get_running_loop().time() + wait_s
    for prepared in group:
        await baselines.offer(prepared.job)
    for prepared in group:
        await baselines.wait(prepared.job, max(0.0, deadline - asyncio.get_running_loop().time()))
        print(f"{prepared.name}: {'ready' if baselines.is_complete(prepared.job) else 'not all ready'}", flush=True)


async def prepare(session: Session, name: str, folder: Path, device: int | str) -> Prepared:
    symbol, _, suffix = name.partition(":")
    direction: OperationName = "backward" if suffix else "forward"
    task = await session.capture(read_target(f"{TARGETS}::{symbol}", ROOT), with_backward=direction == "backward")
    graph = graph_of(task, direction)
    shapes = shapes_for(graph, captured_sizes(task))
    files = write_inputs(task, graph, shapes, folder / name.replace(":", "_"))
    bound = bound_operation(task, graph, shapes)
    return Prepared(name, task, direction, bound, baseline_job(task, device, bound, direction, files))


def bound_operation(task: Task, graph: Graph, shapes: dict[str, tuple[int, ...]]) -> BoundOperation:
    """Return what a candidate's operation would read and write."""
    inputs = [
        BoundTensor(name=name, dtype=type_.dtype, shape=shapes[name], role="input")
        for name, type_ in zip(graph.inputs, graph.input_types, strict=True)
    ]
    outputs = [
        BoundTensor(
            name=output.name, dtype=output.type.dtype, shape=shape_of(output.type, captured_sizes(task)), role="output"
        )
        for output in graph.outputs
        if output.type is not None
    ]
    return BoundOperation(name=task.name, dims={}, tensors=(*inputs, *outputs), steps=())


def shape_of(type_: TensorType, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(evaluate_int(parse(dim), sizes) for dim in type_.shape)


def write_inputs(task: Task, graph: Graph, shapes: dict[str, tuple[int, ...]], folder: Path) -> CaseFiles:
    """Normal values; integers within their range; variances, which are never negative, between 0.5 and 1.5."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    ranges = {tensor.name: tensor.integer_range for tensor in task.tensors}
    tensors = []
    for name, type_ in zip(graph.inputs, graph.input_types, strict=True):
        if type_.dtype is DType.I64:
            low, high = ranges.get(name) or (0, 2)
            values = draw.integers(low, high, size=shapes[name])
        elif "var" in name:
            values = draw.uniform(0.5, 1.5, size=shapes[name])
        else:
            values = draw.standard_normal(shapes[name], dtype=np.float32)
        path = folder / f"{name}.bin"
        values.astype(NUMPY_DTYPES[type_.dtype]).tofile(path)
        tensors.append(CaseTensor(name, path, type_.dtype, shapes[name]))
    return CaseFiles("normal", 0, tuple(tensors))


async def time_baselines(baselines: Baselines, prepared: Prepared) -> dict[str, Any]:
    results: list[BaselineResult] = []
    while subjects := baselines.subjects(prepared.job):
        try:
            rounds = await measure_in_turn(subjects, (), TimingPlan(), seed=0)
        except SubjectFailed as failed:
            await baselines.drop(prepared.job, failed)
            continue
        results += timed(subjects, rounds, prepared)
        break
    results += baselines.others(prepared.job, [result.name for result in results])
    floor = floor_of(prepared, results)
    return {
        "task": prepared.name,
        "configuration": prepared.job.configuration,
        "floor": floor.model_dump(mode="json") if floor is not None else None,
        "baselines": [result.model_dump(mode="json") for result in results],
    }


def timed(subjects: list[Any], rounds: Rounds, prepared: Prepared) -> list[TimedBaseline]:
    return [
        TimedBaseline(name=subject.name, measurement=measurement(subject, rounds, prepared.bound, seed=0))
        for subject in subjects
    ]


def floor_of(prepared: Prepared, results: list[BaselineResult]) -> TimeFloor | None:
    gpu = next((result.measurement.gpu for result in results if isinstance(result, TimedBaseline)), "")
    try:
        return time_floor(graph_of(prepared.task, prepared.direction), prepared.bound, find_gpu(gpu))
    except SettingError:
        return None


# --- below: reporting


def table(entries: list[dict[str, Any]]) -> str:
    lines = []
    for entry in entries:
        cells = [f"{entry['task']:<24}"]
        for name in MODES:
            found = next((b for b in entry["baselines"] if b["name"] == name), None)
            is_timed = found is not None and found["kind"] == "timed"
            cells.append(f"{name} {found['measurement']['time_us']:.4g}" if is_timed and found else f"{name} -")
        floor = entry["floor"]
        cells.append(f"floor {floor['time_us']:.3g}" if floor else "no floor")
        lines.append("  ".join(cells))
        lines += [f"    {b['name']}: {b['reason']}" for b in entry["baselines"] if b["kind"] == "missing"]
    return "\n".join(lines)


def write(folder: Path, entries: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    timed = [b["measurement"] for entry in entries for b in entry["baselines"] if b["kind"] == "timed"]
    if not timed:
        return
    first = timed[0]
    facts = {name: first[name] for name in ("gpu", "gpu_uuid", "driver", "torch_version", "date", "tf32")}
    path = folder / f"gpu_baselines-{str(facts['gpu']).lower().replace(' ', '_')}-{facts['date']}.json"
    path.write_text(json.dumps({**facts, "tasks": entries}, indent=1) + "\n", encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--task", action="append", choices=TASKS)
    parser.add_argument("--wait-s", type=float, default=420.0)
    parser.add_argument("--device", default=0, type=lambda text: text if text == "cpu" else int(text))
    parser.add_argument("--sandbox", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
