"""`kernel-lsp bench`: several targets, one table, and the scores that the field reports."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_lsp.cli import console
from kernel_lsp.config import find_workspace
from kernel_lsp.core.benchmark import BenchEntry, BenchReport, BenchScore
from kernel_lsp.core.event import RunFinished, TaskCaptured
from kernel_lsp.errors import KernelLspError, UserError
from kernel_lsp.evolve.run.optimize import start_request
from kernel_lsp.source.suite import expand_targets
from kernel_lsp.verify.tasks.bench_score import bench_report, bench_time, speedups

SUITE_FILE = Path("examples") / "examples.toml"
RESULTS_FOLDER = Path(".kernel-lsp") / "bench"
"""In the workspace: the suite's folders stay as they are."""


def main(tasks: Sequence[str], backward: bool, overrides: Mapping[str, Any], as_json: bool) -> int:
    """Run the command; returns the exit status."""
    return console.run_to_exit_status(_bench(tasks, backward, overrides, as_json))


async def _bench(tasks: Sequence[str], backward: bool, overrides: Mapping[str, Any], as_json: bool) -> int:
    suite = _suite(tasks, backward)
    entries: list[BenchEntry] = []
    for target, with_backward in suite:
        console.stderr.print(f"{len(entries) + 1} of {len(suite)}: {target}", markup=False)
        entries.append(await _run(target, with_backward, overrides))
    report = bench_report(entries)
    if as_json:
        console.print_json(report)
    else:
        _print(report)
    return console.EXIT_OK if report.n_verified == len(entries) else console.EXIT_NO


def _suite(tasks: Sequence[str], backward: bool) -> list[tuple[str, bool]]:
    """The targets given, with the tasks of folders, or the examples of the checkout that we stand in. Raises UserError
    without either."""
    if tasks:
        return [(target, backward) for target in expand_targets(tasks, Path.cwd())]
    if not SUITE_FILE.is_file():
        raise UserError(
            "no targets given, and there is no examples/examples.toml here",
            next_step="kernel-lsp bench model.py::Block FOLDER",
        )
    examples = tomllib.loads(SUITE_FILE.read_text(encoding="utf-8"))["example"]
    return [
        (str(SUITE_FILE.parent / example["target"]), backward and example["backward"])
        for example in examples
        if "kernel" not in example
    ]


async def _run(target: str, backward: bool, overrides: Mapping[str, Any]) -> BenchEntry:
    finished: RunFinished | None = None
    captured: TaskCaptured | None = None
    out = find_workspace(Path.cwd()) / RESULTS_FOLDER / re.sub(r"[^\w.]+", "_", target).strip("_.")
    try:
        async for event in start_request(Path.cwd(), target, backward, {**overrides, "out_directory": out}).events():
            finished = event if isinstance(event, RunFinished) else finished
            captured = event if isinstance(event, TaskCaptured) else captured
    except KernelLspError as error:
        return BenchEntry(target=target, status="refused", detail=error.message)
    assert finished is not None, "a run ends with RunFinished or raises"
    times = tuple(bench_time(name, comparison) for name, comparison in finished.comparisons.items())
    return BenchEntry(
        target=target,
        status="verified" if finished.candidate_id is not None else "none",
        detail=finished.reason,
        times=times,
        speedups=speedups(times),
        library_steps=finished.library_steps,
        n_configurations=len(captured.configurations) + captured.n_uncovered if captured is not None else 1,
        n_covered=len(captured.configurations) if captured is not None else 1,
        elapsed_s=finished.elapsed_s,
        cost_usd=finished.cost_usd,
    )


# --- below: text


def _print(report: BenchReport) -> None:
    say = console.stdout.print
    width = max([len(entry.target) for entry in report.entries] or [0])
    say(f"{'task':<{width}}  {'result':<9} {'ours us':>9} {'eager':>7} {'compile':>7}  how", style="dim", markup=False)
    for entry in report.entries:
        style = {"verified": "green", "none": "yellow", "refused": "red"}[entry.status]
        say(_row(entry, width), style=style, markup=False)
    for entry in report.entries:
        if entry.status != "verified":
            say(f"{entry.target}: {entry.detail}", markup=False)
    say()
    for score in report.scores:
        say(_score(score, report), markup=False)
    say(f"{report.n_verified} of {len(report.entries)} verified", markup=False)


def _row(entry: BenchEntry, width: int) -> str:
    ours = f"{sum(time.ours_us for time in entry.times):.4g}" if entry.times else ""
    ratios = [f"{entry.speedups[group]:.2f}x" if group in entry.speedups else "" for group in ("eager", "compile")]
    gpus = ", ".join(sorted({time.gpu for time in entry.times}))
    how = f"{entry.kind} on {gpus}" if entry.times else ""
    notes = [how, f"{entry.elapsed_s:.0f} s" if entry.elapsed_s else ""]
    if entry.n_configurations > 1:
        notes.append(f"{entry.n_covered} of {entry.n_configurations} configurations")
    if entry.library_steps:
        notes.append(f"with {', '.join(entry.library_steps)}")
    shown = ", ".join(note for note in notes if note)
    return f"{entry.target:<{width}}  {entry.status:<9} {ours:>9} {ratios[0]:>7} {ratios[1]:>7}  {shown}".rstrip()


def _score(score: BenchScore, report: BenchReport) -> str:
    fast = ", ".join(f"fast_{fast.p:g} {fast.share:.0%}" for fast in score.fast)
    mean = f"geomean {score.geomean:.2f}x" if score.geomean is not None else ""
    return f"against {score.baseline} ({report.kind}, {score.n_compared} of {score.n_tasks} compared): {mean}, {fast}"
