"""`kernel-lsp estimate`: the predicted time of PyTorch code, or of a kernel, on a GPU that need not be here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernel_lsp.cli import console
from kernel_lsp.config import load_settings
from kernel_lsp.core.measurement import Estimate
from kernel_lsp.verify.session.estimates import EstimateReport, estimate_target


def main(target: str, overrides: Mapping[str, Any], as_json: bool) -> int:
    """Run the command; returns the exit status."""
    return console.run_to_exit_status(_estimate(target, overrides, as_json))


async def _estimate(target: str, overrides: Mapping[str, Any], as_json: bool) -> int:
    settings = load_settings(Path.cwd(), overrides)
    report = await estimate_target(target, Path.cwd(), settings)
    if as_json:
        console.print_json(report)
    else:
        _print(report)
    return console.EXIT_OK


def _print(report: EstimateReport) -> None:
    console.stdout.print(report.target, style="bold", markup=False)
    for name, estimate in report.estimates.items():
        console.stdout.print(f"  {name:<12} {_line(estimate)}", markup=False)
    for note in report.notes:
        console.stdout.print(f"  note: {note}", markup=False)


def _line(estimate: Estimate) -> str:
    launches = f"{estimate.n_launches} launch{'es' if estimate.n_launches != 1 else ''}"
    return (
        f"{estimate.time_us:.3g} us [{estimate.low_us:.3g}, {estimate.high_us:.3g}] estimated on {estimate.gpu}, "
        f"{estimate.bound}-bound, {estimate.bytes_moved / 1e6:.3g} MB, {launches} ({estimate.method}, {estimate.date})"
    )
