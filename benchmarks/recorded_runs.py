"""Measure what a model's recorded replies are worth: replayed through the whole search, then measured on a GPU.

    python benchmarks/recorded_runs.py replay [--only NAME]...            # any machine: which replies are right
    python benchmarks/recorded_runs.py measure [--group NAME]... [--device cuda]  # a GPU: their times against PyTorch's
    python benchmarks/recorded_runs.py report [FILE]                # any machine: what `measure` wrote, floors anew

`recorded_runs/` holds, for each task and strategy, the replies of one model as the `manual` provider took them:
prompts as sent, replies as received. `replay` runs `kernel-lsp optimize --replay` on the CPU executor, prints what
became of each reply and writes the kernels beside the recording. `measure` reaches a full verdict on each of these
kernels, on those of the search that went on from them (`recorded_search.py`) and on the generator's seeds, and compares
the best of a search with the best of as many independent replies (best-of-n). Floors are computed, not measured:
`report` computes them anew, and writes them and the means into the file.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu_facts import gpu_facts
from recorded_replay import replay_all
from recorded_report import GROUPS, geomeans, print_report
from recorded_tasks import FOLDER, REFINED, ROOT, STRATEGIES, RecordedTask, read_tasks

from kernel_lsp.config import load_settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.measurement import Comparison, TimedBaseline
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.evolve.run.search import Proposer
from kernel_lsp.generate.program import plan_program
from kernel_lsp.gpu.estimate import estimate_eager
from kernel_lsp.gpu.floor import shown_floor
from kernel_lsp.gpu.specs import GpuSpec, find_gpu
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.verify.model.cases import captured_sizes, graph_of
from kernel_lsp.verify.session.session import Session

N_SEEDS = 4
VERDICT_DEADLINE_S = 180.0
BASELINE_WAIT_S = 90.0
"""For torch.compile's modes, at a task's first verdict; they compile while other tasks are measured."""
N_TASKS_AT_ONCE = 4
"""Tasks at once, whose compilers share the CPU's cores. The GPU is held by one timing at a time."""
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


def main() -> int:
    options = _options()
    tasks = [task for task in read_tasks() if not options.only or task.name in options.only]
    if options.command == "replay":
        return replay_all(tasks)
    if options.command == "report":
        return asyncio.run(_report(Path(options.file or FOLDER.parent / "results" / MEASURED)))
    return asyncio.run(_measure_all(tasks, options.group or GROUPS, options.device, Path(options.out)))


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
        source = read_target(EMPTY_TARGET, ROOT)
        task = await session.capture(source, with_backward=False)
        verifier = await session.verifier(source, task)
        facts = await gpu_facts(session)
        verdict = await verifier.verify(Candidate(text=EMPTY_KERNEL, origin=Origin(proposer="user")), "full")
    times = [each.ours.time_us for each in verdict.times.values() if each.ours.kind == "measured"]
    name = verifier.device_name.split(",")[0] if times else "cpu"
    return name.lower().replace(" ", "_"), facts, round(times[0], 3) if times else None


async def _measure(task: RecordedTask, groups: Sequence[str], device: str) -> dict[str, Any]:
    settings = load_settings(ROOT, {"device": device, "baseline_wait_s": BASELINE_WAIT_S})
    async with Session(settings) as session:
        source = read_target(task.target, ROOT)
        captured = await session.capture(source, with_backward=task.backward)
        verifier = await session.verifier(source, captured)
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
                verdicts[text] = await asyncio.wait_for(verifier.verify(candidate, "full"), VERDICT_DEADLINE_S)
            except TimeoutError:
                print(f"{task.name}: a verdict took over {VERDICT_DEADLINE_S:.0f} s", file=sys.stderr)
    found = {name: [verdicts[text] for text in group if text in verdicts] for name, group in texts.items()}
    return {
        "gpu": verifier.device_name,
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
