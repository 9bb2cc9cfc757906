"""`kernel-lsp bench`: several tasks, one table, and the scores that the field reports; `bench filter`: are these tasks
worth measuring kernels on?"""

from __future__ import annotations

import asyncio
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.text import Text

from kernel_lsp.cli import console
from kernel_lsp.config import Settings, find_workspace, load_settings
from kernel_lsp.core.benchmark import BenchEntry, BenchReport, FilterReport, FilterResult, TaskFilters, bench_report
from kernel_lsp.core.event import Event, GenerationStarted, NewBest, StageStarted
from kernel_lsp.core.words import counted
from kernel_lsp.errors import UserError
from kernel_lsp.evolve.run.bench import BenchLedger, BenchPlan, bench_entries, ledger_name
from kernel_lsp.export.bench_page import (
    HEADINGS,
    detail_lines,
    kind_sentence,
    render_bench_page,
    score_line,
    table_cells,
    turnaround_lines,
    write_docs,
)
from kernel_lsp.source.suite import BenchTask, expand_targets, expand_tasks, sample_tasks
from kernel_lsp.verify.devices.device_names import parse_device
from kernel_lsp.verify.session.start import SessionStart
from kernel_lsp.verify.task_filters import filter_targets

MAX_DETAIL = 160
"""Characters of a row's failure in its line; the table at the end has all of it."""


class BenchView:
    """Use as a context manager. `n_kept` of `n_tasks` rows were finished by an earlier start."""

    def __init__(self, n_tasks: int, deadline_s: float, n_kept: int, n_set_aside: int) -> None:
        self._n_tasks, self._n_kept, self._n_done = n_tasks, n_kept, 0
        self._running: dict[str, str] = {}
        self._started = time.monotonic()
        self._status = console.stderr.status("starting")
        self._say(f"{counted(n_tasks, 'task')}, at most {duration(deadline_s)} each (--deadline)")
        if n_kept:
            self._say(f"{n_kept} of them finished in the last start")
        if n_set_aside:
            self._say(f"{counted(n_set_aside, 'row')} of the last start set aside: --resume keeps them")

    def __enter__(self) -> BenchView:
        if console.stderr.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def show(self, target: str, event: Event) -> None:
        """Show how far a task is."""
        if target not in self._running:
            self._running[target] = "starting"
            if not console.stderr.is_terminal:
                self._say(f"{target}: started")
        stage = _stage(event, target)
        if stage:
            self._running[target] = stage
            self._status.update(Text("; ".join(f"{name}: {now}" for name, now in self._running.items())))

    def finish(self, entry: BenchEntry) -> None:
        """Print a finished row, and the time that the others may take."""
        self._n_done += 1
        self._running.pop(entry.target, None)
        self._say(f"{self._n_done}/{self._n_tasks} {entry.target}: {_outcome(entry)}{self._left()}")

    def _left(self) -> str:
        n_run, n_left = self._n_done - self._n_kept, self._n_tasks - self._n_done
        if n_run <= 0 or n_left <= 0:
            return ""
        return f"; about {duration((time.monotonic() - self._started) / n_run * n_left)} left"

    def _say(self, text: str) -> None:
        console.stderr.print(text, markup=False)


def duration(seconds: float) -> str:
    """Return seconds or minutes, as a person says them."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _stage(event: Event, target: str) -> str:
    match event:
        case StageStarted():
            return event.message.partition(target)[0].partition(":")[0].strip()
        case GenerationStarted():
            return f"generation {event.generation + 1}/{event.n_generations}"
        case NewBest():
            return f"best {event.score_us:.4g} us ({event.score_kind})"
    return ""


def _outcome(entry: BenchEntry) -> str:
    if entry.status != "verified":
        return f"{entry.status}: {entry.detail[:MAX_DETAIL]}"
    parts = ["verified"]
    if entry.times:
        kind = "" if entry.kind == "measured" else f" ({entry.kind})"
        parts.append(f"{sum(each.ours_us for each in entry.times):.4g} us{kind}")
    if "best" in entry.speedups:
        parts.append(f"{entry.speedups['best']:.2f}x vs {entry.compared_with}")
    return ", ".join([*parts, f"{entry.elapsed_s:.0f} s"])


EXAMPLES_FILE = Path("examples") / "examples.toml"
RESULTS_FOLDER = Path(".kernel-lsp") / "bench"
"""In the workspace: the suite's folders stay as they are."""
PAGE, DATA = "report.html", "report.json"
STYLES = {"verified": "green", "none": "yellow", "refused": "red", "failed": "bold red"}
SHOWN = tuple(HEADINGS.index(name) for name in HEADINGS if name not in ("interval", "noise"))
"""Columns in a terminal; the page has all."""


@dataclass(frozen=True)
class BenchOptions:
    """Options of the command, as `app.bench` declares them."""

    backward: bool = False
    sample: int | None = None
    seed: int = 0
    every_configuration: bool = False
    resume: bool = False
    deadline_s: float = 900.0
    write_docs: Path | None = None
    rows: tuple[Path, ...] = ()
    """Reports of earlier runs whose rows are shown together; nothing runs then."""
    as_json: bool = False


def main(tasks: Sequence[str], options: BenchOptions, overrides: Mapping[str, Any]) -> int:
    """Run the command; returns the exit status."""
    if options.rows:
        return console.run_to_exit_status(_shown_together(tasks, options))
    return console.run_to_exit_status(_bench(tasks, options, overrides))


async def _bench(tasks: Sequence[str], options: BenchOptions, overrides: Mapping[str, Any]) -> int:
    suite = sample_tasks(_suite(tasks, options.backward), options.sample, options.seed)
    results = find_workspace(Path.cwd()) / RESULTS_FOLDER
    identity = {"tasks": [[task.target, task.backward] for task in suite], "overrides": dict(overrides)}
    ledger = BenchLedger(results / ledger_name(identity), resumed=options.resume)
    n_kept = len(ledger.kept(options.deadline_s).keys() & {task.target for task in suite})
    view = BenchView(len(suite), options.deadline_s, n_kept, ledger.n_set_aside)
    plan = BenchPlan(
        Path.cwd(),
        tuple(suite),
        overrides,
        results,
        options.deadline_s,
        options.every_configuration,
        devices=await _devices(load_settings(Path.cwd(), overrides)),
        on_event=view.show,
    )
    entries: list[BenchEntry] = []
    is_interrupted = False
    try:
        with view:
            async for entry in bench_entries(plan, ledger):
                entries.append(entry)
                view.finish(entry)
                report = bench_report(entries)
                (results / PAGE).write_text(render_bench_page(report), encoding="utf-8")
                (results / DATA).write_text(report.model_dump_json(), encoding="utf-8")
    except asyncio.CancelledError:  # SIGINT or SIGTERM: the finished rows are shown
        is_interrupted = True
        finished = f"{len(entries)} of {counted(len(suite), 'task')} finished"
        console.stderr.print(f"interrupted: {finished}; --resume runs the others", markup=False)
    status = _show(bench_report(entries), options)
    console.stderr.print(f"report: {results / PAGE}", markup=False)
    return console.EXIT_INTERRUPTED if is_interrupted else status


async def _devices(settings: Settings) -> tuple[str, ...]:
    """Return the GPUs that run tasks side by side, where all of this machine are asked for; else none."""
    name = parse_device(settings.device)
    if name.kind != "cuda" or name.index is not None:
        return ()
    async with SessionStart(settings) as start:
        start.check()
        return tuple(f"cuda:{index}" for index in range(len((await start.worker.describe()).devices)))


async def _shown_together(tasks: Sequence[str], options: BenchOptions) -> int:
    """Show the rows of several reports as one, e.g. of one run per GPU. Raises UserError for another file."""
    if tasks:
        raise UserError("give TASKS or --rows, not both", next_step="--rows runs nothing")
    reports = []
    for path in options.rows:
        try:
            reports.append(BenchReport.model_validate_json(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not written by `kernel-lsp bench`"
            step = f"name the {DATA} of a run, in {RESULTS_FOLDER}"
            raise UserError(f"no report of a benchmark: {reason}", file=str(path), next_step=step) from None
    together = bench_report([entry for report in reports for entry in report.entries])
    return _show(together.model_copy(update={"date": max(report.date for report in reports)}), options)


def _show(report: BenchReport, options: BenchOptions) -> int:
    if options.write_docs is not None:
        write_docs(options.write_docs, report)
    if options.as_json:
        console.print_json(report)
    else:
        _print(report)
    return console.EXIT_OK if report.n_verified == len(report.entries) else console.EXIT_NO


def _suite(tasks: Sequence[str], backward: bool) -> list[BenchTask]:
    """Return the tasks given, or the examples of the checkout that we stand in. Raises UserError without either."""
    if tasks:
        _check_that_they_exist(tasks)
        return expand_tasks(tasks, Path.cwd(), backward)
    if not EXAMPLES_FILE.is_file():
        raise UserError(
            "no targets given, and there is no examples/examples.toml here",
            next_step="kernel-lsp bench model.py::Block FOLDER",
        )
    examples = tomllib.loads(EXAMPLES_FILE.read_text(encoding="utf-8"))["example"]
    return [
        BenchTask(str(EXAMPLES_FILE.parent / example["target"]), backward and example["backward"])
        for example in examples
        if "kernel" not in example
    ]


def _check_that_they_exist(tasks: Sequence[str]) -> None:
    """Raise UserError for a task without a file or folder: hours later it would be one row among others."""
    for task in tasks:
        if not (Path.cwd() / task.partition("::")[0]).exists():
            raise UserError("there is no such file or folder", file=task, next_step="check the path: nothing was run")


def _print(report: BenchReport) -> None:
    say = partial(console.stdout.print, markup=False)
    rows = [table_cells(entry) for entry in report.entries]
    widths = [max(len(row[column]) for row in (HEADINGS, *rows)) for column in range(len(HEADINGS))]
    say(_line(HEADINGS, widths), style="dim")
    for entry, row in zip(report.entries, rows, strict=True):
        say(_line(row, widths), style=STYLES[entry.status])
    for entry in report.entries:
        for line in detail_lines(entry):
            say(line)
    say()
    for line in [*(score_line(score, report) for score in report.scores), *turnaround_lines(report)]:
        say(line)
    say(f"{report.n_verified} of {len(report.entries)} verified. {kind_sentence(report).replace('**', '')}")


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cells[column].ljust(widths[column]) for column in SHOWN).rstrip()


STATUS_STYLES = {"passed": "green", "flagged": "bold red", "skipped": "dim"}


@console.command
async def run_filters(tasks: Sequence[str], options: BenchOptions, overrides: Mapping[str, Any]) -> int:
    """Run `bench filter`. `--sample` and `--seed` hold; other options of a search raise UserError."""
    if not tasks:
        raise UserError("no tasks given", next_step="kernel-lsp bench filter FOLDER model.py::Block")
    settings = load_settings(Path.cwd(), overrides)
    if ignored := _not_of_filters(options, overrides, settings.device):
        raise UserError(f"bench filter has no {', '.join(ignored)}", next_step="it examines tasks, and optimizes none")
    _check_that_they_exist(tasks)
    found = [BenchTask(target) for target in expand_targets(tasks, Path.cwd())]
    targets = [task.target for task in sample_tasks(found, options.sample, options.seed)]
    with console.stage(f"examining {counted(len(targets), 'task')}"):
        report = FilterReport(tasks=await filter_targets(targets, Path.cwd(), settings))
    if options.as_json:
        console.print_json(report)
    else:
        _print_filters(report)
    return console.EXIT_OK if report.n_good == len(report.tasks) else console.EXIT_NO


def _not_of_filters(options: BenchOptions, overrides: Mapping[str, Any], device: str) -> list[str]:
    """Return the options given that filters would ignore: they examine tasks on this machine."""
    given = {
        "--backward": options.backward,
        "--every-configuration": options.every_configuration,
        "--resume": options.resume,
        "--write-docs": options.write_docs is not None,
        "--rows": bool(options.rows),
        "--generations": overrides["generations"] is not None,
        "--proposals": overrides["proposals"] is not None,
        f"--device {device}": parse_device(device).kind in ("ssh", "ray"),
    }
    return [option for option, is_given in given.items() if is_given]


def _print_filters(report: FilterReport) -> None:
    for task in report.tasks:
        style = "bold green" if task.is_good else "bold red"
        word = "refused" if task.refused else "good" if task.is_good else f"{len(task.flagged)} flagged"
        where = (
            f", {counted(len(task.configurations), 'configuration')} on {task.device}" if task.configurations else ""
        )
        console.stdout.print(f"{task.target}: {word}{where}", style=style, markup=False)
        if task.refused:
            console.stdout.print(f"  {task.refused}", markup=False)
        else:
            for line, style in _lines(task):
                console.stdout.print(line, style=style, markup=False)
    console.stdout.print(f"{report.n_good}/{counted(len(report.tasks), 'task')} passed every filter", markup=False)


def _lines(task: TaskFilters) -> list[tuple[str, str]]:
    """One row per filter: what it flagged, else the configuration that came closest."""
    rows = [(f"  {'filter':<16} {'result':<8} {'number':>9} {'threshold':>9}  where and why", "dim")]
    for name in dict.fromkeys(result.filter for result in task.results):
        for result in _shown([result for result in task.results if result.filter == name]):
            place = f"line {result.line}: " if result.line is not None else ""
            where = f"({result.configuration})" if result.configuration and len(task.configurations) > 1 else ""
            why = " ".join(part for part in (f"{place}{result.message}", where) if part)
            numbers = f"{_number(result.number):>9} {_number(result.threshold):>9}"
            rows.append((f"  {name:<16} {result.status:<8} {numbers}  {why}".rstrip(), STATUS_STYLES[result.status]))
    return rows


def _shown(results: Sequence[FilterResult]) -> list[FilterResult]:
    flagged = [result for result in results if result.status == "flagged"]
    if flagged:
        return list(flagged)
    passed = [result for result in results if result.status == "passed"]
    if not passed:
        return list(results[:1])
    return [min(passed, key=lambda result: result.number if result.number is not None else 0.0)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
