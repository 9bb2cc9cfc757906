"""What a model's recorded replies are worth: replayed through the whole search, then measured on a GPU.

    python benchmarks/recorded_runs.py replay [--only NAME]...            # any machine: which replies are right
    python benchmarks/recorded_runs.py measure [--group NAME]... [--device cuda]  # a GPU: their times against PyTorch's
    python benchmarks/recorded_runs.py report [FILE]                # any machine: what `measure` wrote, floors anew

`recorded_runs/` holds, for each task and strategy, the replies of one model as the `manual` provider took them:
prompts as sent, replies as received. `replay` runs `kernel-lsp optimize --replay` on the CPU executor, prints what
became of each reply and writes the kernels beside the recording. `measure` reaches a full verdict on each of these
kernels, on those of the search that went on from them (`recorded_refine.py`) and on the generator's seeds, and compares
the best of a search with the best of as many independent replies (best-of-n). Floors are computed, not measured:
`report` computes them anew, and writes them and the means into the file.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpu_facts import gpu_facts
from recorded_report import GROUPS, geomeans, print_report

from kernel_lsp.config import load_settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.measurement import Comparison, TimedBaseline
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.evaluate.cases import captured_sizes, graph_of
from kernel_lsp.evaluate.session import Session
from kernel_lsp.evolve.search import Proposer
from kernel_lsp.generate.program import plan_program
from kernel_lsp.gpu.estimate import estimate_eager
from kernel_lsp.gpu.floor import shown_floor
from kernel_lsp.gpu.specs import GpuSpec, find_gpu
from kernel_lsp.source.pytorch import read_target

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "recorded_runs"
STRATEGIES = ("evolve", "best-of-n")
REFINED = "refine"
"""The search that goes on from the others' kernels (`recorded_refine.py`)."""
GENERATIONS, PROPOSALS = 2, 2
"""Of each recording: four proposals, repairs beside them."""
N_SEEDS = 4
REPLAY_DEADLINE_S = 900
VERDICT_DEADLINE_S = 180.0
BASELINE_WAIT_S = 90.0
"""For torch.compile's modes, at a task's first verdict; they compile while other tasks are measured."""
N_TASKS_AT_ONCE = 4
"""Whose compilers share the CPU's cores. The GPU is held by one timing at a time."""
PRICES = (3, 15)
"""Of prompts and replies: an assumption, like the next."""
CHARACTERS_PER_TOKEN = 4
MEASURED = "recorded_runs-nvidia_h200-2026-11-21.json"
EMPTY_TARGET = "benchmarks/targets/one_number.py::one_more"
EMPTY_KERNEL = """// kernel-lsp: 1
// op: one_more(x: f32[1]) -> (out: f32[1])
// launch: one_more_kernel<<<1, 32>>>(x, out)

__global__ void one_more_kernel(const float* __restrict__ x, float* __restrict__ out) {
    if (threadIdx.x == 0) out[0] = x[0] + 1.0f;
}
"""
"""One number through one launch: no kernel that reads and writes anything takes less."""


@dataclass(frozen=True)
class RecordedTask:
    """A row of `tasks.toml`."""

    name: str
    target: str
    backward: bool

    def recording(self, strategy: str) -> Path:
        """Prompts and replies."""
        return FOLDER / f"{self.name}.{strategy}.jsonl"

    def kernels(self, strategy: str) -> Path:
        """What the replies hold, as `replay` wrote it."""
        return FOLDER / f"{self.name}.{strategy}.kernels.json"


def main() -> int:
    options = _options()
    tasks = [task for task in read_tasks() if not options.only or task.name in options.only]
    if options.command == "replay":
        return _replay_all(tasks)
    if options.command == "report":
        return asyncio.run(_report(Path(options.file or FOLDER.parent / "results" / MEASURED)))
    return asyncio.run(_measure_all(tasks, options.group or GROUPS, options.device, Path(options.out)))


# --- below: replaying


def _replay_all(tasks: Sequence[RecordedTask]) -> int:
    rows = [(task, strategy, _replay(task, strategy)) for task, strategy in _recorded(tasks)]
    print(f"{'task':<22}{'strategy':<12}{'replies':>8}{'right':>7}{'verified':>10}{'best us':>9}{'seeds us':>9}")
    shares = []
    for task, strategy, kernels in rows:
        right = [kernel for kernel in kernels if kernel["outcome"] == "correct"]
        best = min((kernel["time_us"] for kernel in right if kernel["time_us"]), default=math.nan)
        seeds = next((kernel["best_before_us"] for kernel in kernels if kernel["best_before_us"]), math.nan)
        verified = "yes" if right else "no"
        print(f"{task.name:<22}{strategy:<12}{len(kernels):>8}{len(right):>7}{verified:>10}{best:>9.2f}{seeds:>9.2f}")
        shares += [best / seeds] if strategy == "evolve" else []
    if shares:
        spread = f"{statistics.median(shares):.2f}x ({min(shares):.2f}x to {max(shares):.2f}x)"
        print(f"estimated time of the best reply of a search against the best seed: median {spread}")
    n_tasks, n_verified = _n_verified(rows)
    n_replies = sum(len(kernels) for _, _, kernels in rows)
    n_right = sum(kernel["outcome"] == "correct" for _, _, kernels in rows for kernel in kernels)
    print(f"{n_verified} of {n_tasks} tasks have a right kernel from a reply")
    print(f"{n_right} of {n_replies} replies are right; two strategies share those to the same prompts")
    accepted = {kernel["kernel"] for _, _, kernels in rows for kernel in kernels if kernel["outcome"] == "correct"}
    _print_cost([task.recording(strategy) for task, strategy, _ in rows], len(accepted))
    print("times are estimates for the GPU that the recordings name; `measure` measures")
    return 0


def _print_cost(recordings: Sequence[Path], n_accepted: int) -> None:
    """What the same prompts and replies would cost. Nobody counted tokens: a person's chat does not say them, nor what
    a model thought before it replied."""
    lines = [json.loads(line) for path in recordings for line in path.read_text().splitlines()]
    asked = {line["key"]: line for line in lines if "request" in line}
    n_prompt = sum(len(message["content"]) for line in asked.values() for message in line["request"]["messages"])
    n_reply = sum(len(line["outcome"].get("text", "")) for line in asked.values())
    prompt_usd, reply_usd = (price / 1e6 / CHARACTERS_PER_TOKEN for price in PRICES)
    cost = n_prompt * prompt_usd + n_reply * reply_usd
    print(f"{len(asked)} different replies: {n_prompt} characters of prompts, {n_reply} of replies")
    print(
        f"at {PRICES[0]}:{PRICES[1]} US dollars a million tokens, {CHARACTERS_PER_TOKEN} characters each, thinking not"
    )
    print(f"counted: ${cost:.2f}, ${cost / max(n_accepted, 1):.3f} for each accepted kernel")


def _n_verified(rows: Sequence[tuple[RecordedTask, str, list[dict[str, Any]]]]) -> tuple[int, int]:
    names = {task.name for task, _, _ in rows}
    right = {task.name for task, _, kernels in rows if any(kernel["outcome"] == "correct" for kernel in kernels)}
    return len(names), len(right)


def _recorded(tasks: Sequence[RecordedTask]) -> Iterator[tuple[RecordedTask, str]]:
    for task in tasks:
        for strategy in STRATEGIES:
            if task.recording(strategy).is_file():
                yield task, strategy


def _replay(task: RecordedTask, strategy: str) -> list[dict[str, Any]]:
    """The kernels of the replies with their outcomes; they are kept beside the recording."""
    with tempfile.TemporaryDirectory() as parent:
        # Prompts quote the seeds, and these name their task's folder as seen from where the kernel will lie.
        folder, out = Path(parent) / task.name, Path(parent) / f"out_{task.name}"
        folder.mkdir()
        target = copy_target(task, folder)
        search = ["--generations", str(GENERATIONS), "--proposals", str(PROPOSALS), "--strategy", strategy]
        replay = ["--model", "manual", "--replay", str(task.recording(strategy)), "--device", "cpu", "--out", str(out)]
        backward = ["--backward"] if task.backward else []
        kernel_lsp(["optimize", target, *search, *replay, *backward], folder)
        return keep_kernels(task, strategy, folder)


def keep_kernels(task: RecordedTask, strategy: str, folder: Path) -> list[dict[str, Any]]:
    """The kernels of the last run in `folder`, with their outcomes; they are kept beside the recording."""
    kernel_lsp(["export", "last", "--format", "jsonl", "--out", "rows.jsonl"], folder)
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    kept = ("slot", "round", "operator", "name", "outcome", "time_us", "best_before_us", "feedback", "kernel")
    kernels = [{name: row[name] for name in kept} for row in rows]
    task.kernels(strategy).write_text(json.dumps(kernels, indent=1) + "\n")
    return kernels


def copy_target(task: RecordedTask, folder: Path) -> str:
    """The target's name inside of `folder`, as it was when it was recorded."""
    file, colons, symbol = task.target.partition("::")
    source = ROOT / file
    if source.is_dir():
        shutil.copytree(source, folder, dirs_exist_ok=True)
        return "."
    shutil.copy(source, folder)
    return f"{source.name}{colons}{symbol}"


def kernel_lsp(arguments: Sequence[str | Path], directory: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "kernel_lsp", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=REPLAY_DEADLINE_S, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


# --- below: measuring


async def _measure_all(tasks: Sequence[RecordedTask], groups: Sequence[str], device: str, out: Path) -> int:
    """Groups that are not measured now stay as they are in the results of the day, if there are any."""
    out.mkdir(parents=True, exist_ok=True)
    side_by_side = asyncio.Semaphore(N_TASKS_AT_ONCE)
    gpu, facts, empty_us = await _empty_kernel(device)
    path = out / f"recorded_runs-{gpu}-{datetime.date.today().isoformat()}.json"
    report: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"tasks": {}}
    report |= {"date": datetime.date.today().isoformat(), "device": device, **facts, "empty_kernel_us": empty_us}

    async def one(task: RecordedTask) -> None:
        async with side_by_side:
            try:
                found = await _measure(task, groups, device)
            except Exception as error:  # one task's failure must not lose the others' measurements
                found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({task.name: found.get("summary", found.get("error"))}), flush=True)
        known = report["tasks"].setdefault(task.name, {})
        for part in ("summary", "kernels"):
            known[part] = {**known.get(part, {}), **found.get(part, {})}
        known |= {key: value for key, value in found.items() if key in ("gpu", "error")}
        report["geomeans"] = geomeans(report)
        path.write_text(json.dumps(report, indent=1) + "\n")

    await asyncio.gather(*(one(task) for task in tasks))
    print_report(report)
    return 0


async def _empty_kernel(device: str) -> tuple[str, dict[str, str], float | None]:
    """The GPU's name as files have it, what it is, and how long the smallest kernel takes there; None where nothing is
    measured."""
    settings = load_settings(ROOT, {"device": device, "baseline_wait_s": 0.0})
    async with Session(settings) as session:
        task = await session.capture(read_target(EMPTY_TARGET, ROOT), with_backward=False)
        evaluator = await session.evaluator(task)
        facts = await gpu_facts(session)
        verdict = await evaluator.evaluate(Candidate(text=EMPTY_KERNEL, origin=Origin(proposer="user")), "full")
    times = [each.ours.time_us for each in verdict.times.values() if each.ours.kind == "measured"]
    name = evaluator.device_name.split(",")[0] if times else "cpu"
    return name.lower().replace(" ", "_"), facts, round(times[0], 3) if times else None


async def _measure(task: RecordedTask, groups: Sequence[str], device: str) -> dict[str, Any]:
    settings = load_settings(ROOT, {"device": device, "baseline_wait_s": BASELINE_WAIT_S})
    async with Session(settings) as session:
        captured = await session.capture(read_target(task.target, ROOT), with_backward=task.backward)
        evaluator = await session.evaluator(captured)
        texts: dict[str, list[str]] = {}
        if "generator" in groups:
            proposals = Proposer(plan_program(captured, gpu=session.gpu), seed=0).propose(N_SEEDS, 0, [])
            texts["generator"] = [proposal.text for proposal in proposals]
        for strategy in (*STRATEGIES, REFINED):
            if strategy in groups and task.kernels(strategy).is_file():
                kernels = json.loads(task.kernels(strategy).read_text())
                texts[strategy] = [kernel["kernel"] for kernel in kernels if kernel["kernel"]]
        verdicts: dict[str, Verdict] = {}
        for text in dict.fromkeys(text for group in texts.values() for text in group):
            candidate = Candidate(text=text, origin=Origin(proposer="user"))
            try:
                verdicts[text] = await asyncio.wait_for(evaluator.evaluate(candidate, "full"), VERDICT_DEADLINE_S)
            except TimeoutError:
                print(f"{task.name}: a verdict took over {VERDICT_DEADLINE_S:.0f} s", file=sys.stderr)
    found = {name: [verdicts[text] for text in group if text in verdicts] for name, group in texts.items()}
    return {
        "gpu": evaluator.device_name,
        "summary": {name: _best(group) for name, group in found.items()},
        "kernels": {name: [_facts(verdict) for verdict in group] for name, group in found.items()},
    }


async def _report(path: Path) -> int:
    """Print the table of measured kernels with the floors that this version computes, and keep these in the file."""
    report = json.loads(path.read_text())
    gpu = find_gpu(next(task["gpu"].split(",")[0] for task in report["tasks"].values()))
    async with Session(load_settings(ROOT, {"device": "cpu"})) as session:
        for task in read_tasks():
            captured = await session.capture(read_target(task.target, ROOT), with_backward=task.backward)
            for times in _all_times(report["tasks"].get(task.name, {})):
                for operation, each in times.items():
                    each["floor_us"] = round(_floor_us(captured, operation.endswith("_backward"), gpu), 3)
    report |= {"floors_of": datetime.date.today().isoformat(), "geomeans": geomeans(report)}
    path.write_text(json.dumps(report, indent=1) + "\n")
    print_report(report)
    return 0


def _all_times(task: dict[str, Any]) -> Iterator[dict[str, dict[str, Any]]]:
    for best in task.get("summary", {}).values():
        yield best.get("times", {})
    for kernels in task.get("kernels", {}).values():
        yield from (kernel["times"] for kernel in kernels)


def _floor_us(task: Task, is_backward: bool, gpu: GpuSpec) -> float:
    graph = graph_of(task, "backward" if is_backward else "forward")
    sizes = captured_sizes(task)
    return shown_floor(graph, sizes, gpu, estimate_eager(graph, sizes, gpu).n_operations).time_us


def _best(group: Sequence[Verdict]) -> dict[str, Any]:
    """The best right kernel by its time over all operations, with its speed-ups by direction."""
    right = [verdict for verdict in group if verdict.is_correct and verdict.times]
    if not right:
        return {"n": len(group), "n_right": 0}
    best = min(right, key=lambda verdict: sum(comparison.ours.time_us for comparison in verdict.times.values()))
    return {"n": len(group), "n_right": len(right), "times": _facts(best)["times"]}


def _facts(verdict: Verdict) -> dict[str, Any]:
    return {
        "candidate": verdict.candidate_id,
        "outcome": verdict.outcome.kind,
        "message": getattr(verdict.outcome, "message", ""),
        "evaluate_s": round(verdict.evaluate_s, 3),
        "times": {name: _times(comparison) for name, comparison in verdict.times.items()},
    }


def _times(comparison: Comparison) -> dict[str, Any]:
    timed = [baseline for baseline in comparison.baselines if isinstance(baseline, TimedBaseline)]
    return {
        "kind": comparison.ours.kind,
        "ours_us": round(comparison.ours.time_us, 3),
        "floor_us": round(comparison.floor.time_us, 3) if comparison.floor else None,
        "baseline": comparison.baseline_name,
        "speedup": round(comparison.speedup, 4),
        "claim": comparison.ratio.claim if comparison.ratio else "not compared",
        "baselines_us": {baseline.name: round(baseline.measurement.time_us, 3) for baseline in timed},
    }


def read_tasks() -> list[RecordedTask]:
    """Those of `tasks.toml`."""
    return [RecordedTask(**row) for row in tomllib.loads((FOLDER / "tasks.toml").read_text())["task"]]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("replay", "measure", "report"))
    parser.add_argument("file", nargs="?", help="what `measure` wrote, for `report`; the H200's by default")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--group", action="append", choices=GROUPS, help="what to measure; all groups by default")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results"))
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
