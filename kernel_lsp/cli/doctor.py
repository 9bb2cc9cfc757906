"""`kernel-lsp doctor`: what was found, what it enables, and how to fix the rest."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernel_lsp.cli import console
from kernel_lsp.cli.machine import Check, DoctorReport, examine
from kernel_lsp.config import load_settings

MARKS = {"ok": ("ok     ", "green"), "missing": ("missing", "yellow"), "broken": ("broken ", "red")}

MIN_WIDTH = 40
"""Minimum characters shown of what was found, however narrow the terminal."""


def main(overrides: Mapping[str, Any], as_json: bool, is_verbose: bool = False) -> int:
    """Run the command; returns the exit status: 0 when the main job can run."""
    return console.run_to_exit_status(_doctor(overrides, as_json, is_verbose))


async def _doctor(overrides: Mapping[str, Any], as_json: bool, is_verbose: bool) -> int:
    settings = load_settings(Path.cwd(), overrides)
    with console.stage("examining this machine"), tempfile.TemporaryDirectory(prefix="kernel-lsp-") as scratch:
        report = await examine(settings, Path.cwd(), Path(scratch))
    if as_json:
        console.print_json(report)
    else:
        _print(report, is_verbose)
    return console.EXIT_OK if report.can_optimize else console.EXIT_NO


def _print(report: DoctorReport, is_verbose: bool) -> None:
    width = max(len(check.name) for check in report.checks)
    for check in report.checks:
        _print_check(check, width, is_verbose)
    if not is_verbose:
        console.stdout.print("details: `kernel-lsp doctor --verbose`", style="dim", markup=False)
    verdict = (
        "ready: `kernel-lsp optimize` works here" if report.can_optimize else "not ready: fix what is marked above"
    )
    console.stdout.print(verdict, style="bold green" if report.can_optimize else "bold red", markup=False)


def _print_check(check: Check, width: int, is_verbose: bool) -> None:
    """Print one line, and how to fix what the main job needs; all there is with `is_verbose`."""
    mark, style = MARKS[check.status]
    is_optional = check.status == "missing" and not check.is_required
    if is_optional:
        mark, style = "none   ", "dim"
    found = check.found if is_verbose else _first_clause(f"for {check.enables}" if is_optional else check.found, width)
    console.stdout.print(f"{mark} {check.name:<{width}}  {found}", style=style, markup=False)
    indent = f"{'':<8}{'':<{width}}  "
    if check.status != "ok" and is_verbose:
        console.stdout.print(f"{indent}for: {check.enables}", markup=False)
    if check.fix and (is_verbose or (check.status != "ok" and not is_optional)):
        console.stdout.print(f"{indent}fix: {check.fix}", markup=False)


def _first_clause(text: str, width: int) -> str:
    """Return the first clause, cut to what is left of a line beside the name."""
    left = max(MIN_WIDTH, console.stdout.width - width - len("missing   "))
    clause = text.split(";")[0].split("\n")[0]
    return clause if len(clause) <= left else f"{clause[: left - 3]}..."
