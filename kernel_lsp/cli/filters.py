"""`kernel-lsp bench filter`: are these tasks worth measuring kernels on?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_lsp.cli import console
from kernel_lsp.config import load_settings
from kernel_lsp.core.filter import FilterReport, FilterResult, TaskFilters
from kernel_lsp.core.words import counted
from kernel_lsp.errors import UserError
from kernel_lsp.source.suite import expand_targets
from kernel_lsp.verify.tasks.filters import filter_targets

STYLES = {"passed": "green", "flagged": "bold red", "skipped": "dim"}


def main(tasks: Sequence[str], overrides: Mapping[str, Any], as_json: bool) -> int:
    """Run the command; returns the exit status."""
    return console.run_to_exit_status(_filter(tasks, overrides, as_json))


async def _filter(tasks: Sequence[str], overrides: Mapping[str, Any], as_json: bool) -> int:
    if not tasks:
        raise UserError("no tasks given", next_step="kernel-lsp bench filter FOLDER model.py::Block")
    settings = load_settings(Path.cwd(), overrides)
    with console.stage(f"examining {counted(len(tasks), 'task')}"):
        targets = expand_targets(tasks, Path.cwd())
        report = FilterReport(tasks=await filter_targets(targets, Path.cwd(), settings))
    if as_json:
        console.print_json(report)
    else:
        _print(report)
    return console.EXIT_OK if report.n_good == len(report.tasks) else console.EXIT_NO


def _print(report: FilterReport) -> None:
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
            rows.append((f"  {name:<16} {result.status:<8} {numbers}  {why}".rstrip(), STYLES[result.status]))
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
