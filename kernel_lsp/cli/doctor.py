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


def main(overrides: Mapping[str, Any], as_json: bool) -> int:
    """Run the command; returns the exit status: 0 when the main job can run."""
    return console.run_to_exit_status(_doctor(overrides, as_json))


async def _doctor(overrides: Mapping[str, Any], as_json: bool) -> int:
    settings = load_settings(Path.cwd(), overrides)
    with console.stderr.status("looking"), tempfile.TemporaryDirectory(prefix="kernel-lsp-") as scratch:
        report = await examine(settings, Path.cwd(), Path(scratch))
    if as_json:
        console.print_json(report)
    else:
        _print(report)
    return console.EXIT_OK if report.can_optimize else console.EXIT_NO


def _print(report: DoctorReport) -> None:
    width = max(len(check.name) for check in report.checks)
    for check in report.checks:
        _print_check(check, width)
    verdict = (
        "ready: `kernel-lsp optimize` works here" if report.can_optimize else "not ready: fix what is marked above"
    )
    console.stdout.print(verdict, style="bold green" if report.can_optimize else "bold red", markup=False)


def _print_check(check: Check, width: int) -> None:
    mark, style = MARKS[check.status]
    if check.status == "missing" and not check.is_required:
        mark, style = "none   ", "dim"
    console.stdout.print(f"{mark} {check.name:<{width}}  {check.found}", style=style, markup=False)
    if check.status != "ok":
        console.stdout.print(f"{'':<8}{'':<{width}}  for: {check.enables}", markup=False)
    if check.fix:
        console.stdout.print(f"{'':<8}{'':<{width}}  fix: {check.fix}", markup=False)
