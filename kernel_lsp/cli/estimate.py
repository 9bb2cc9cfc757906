"""`kernel-lsp estimate`: the predicted time of PyTorch code, or of a kernel, on a GPU that need not be here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernel_lsp.cli import console
from kernel_lsp.config import Settings, load_settings
from kernel_lsp.core.measurement import COMPILE, EAGER, Estimate
from kernel_lsp.engine.captures import estimate_lines
from kernel_lsp.gpu.floor import EMPTY_KERNEL_US
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.verify.session.check_kernel import KERNEL_SUFFIXES, EstimateReport, estimate_kernel
from kernel_lsp.verify.session.session import Session

LABEL_WIDTH = 12
"""Minimum characters of the column of names."""
PLACE_WIDTH = 5
"""Minimum characters of the column of lines."""


@console.command
async def main(target: str, overrides: Mapping[str, Any], as_json: bool) -> int:
    settings = load_settings(Path.cwd(), overrides)
    find_gpu(settings.target_gpu)  # an unknown GPU is reported before anything runs
    if target.endswith(KERNEL_SUFFIXES):
        with console.stage(f"checking {target}"):
            report = await estimate_kernel(Path(target), Path.cwd(), settings)
    else:
        report = await _estimate_target(target, settings)
    if as_json:
        console.print_json(report)
    else:
        _print(report)
    return console.EXIT_OK if report.estimates else console.EXIT_COULD_NOT


async def _estimate_target(target: str, settings: Settings) -> EstimateReport:
    source = read_target(target, Path.cwd())
    with console.stage(f"capturing {target}"):
        async with Session(settings) as session:
            task = await session.capture(source, with_backward=False)
            found = estimate_lines(target, task, session.gpu)
    assert found.compiled is not None
    return EstimateReport(
        target=target,
        estimates={EAGER: found.estimate, COMPILE: found.compiled},
        floor_us=found.floor_us,
        lines=found.lines,
        notes=found.notes,
    )


def _print(report: EstimateReport) -> None:
    say = console.stdout.print
    say(report.target, style="bold", markup=False)
    width = max([LABEL_WIDTH, *map(len, report.estimates)])
    for name, estimate in report.estimates.items():
        say(f"  {name:<{width}} {_line(estimate)}", markup=False)
    if report.floor_us is not None:
        say(f"  {'roofline':<{width}} {_roofline(report.floor_us)}", markup=False)
    file = str(Path.cwd() / report.target.partition("::")[0])
    places = [line.place(file) for line in report.lines]
    width = max([PLACE_WIDTH, *map(len, places)])
    if places:
        say(f"\n  {'share':>5}  {'time':>10}  {'line':>{width}}  code, in eager", style="dim", markup=False)
    for line, place in zip(report.lines, places, strict=True):
        say(f"  {line.share:>5.0%}  {line.time_us:>7.3g} us  {place:>{width}}  {line.text}", markup=False)
    for note in report.notes:
        say(f"  note: {note}", markup=False)


def _roofline(floor_us: float) -> str:
    basis = "inputs read and outputs written once" if floor_us > EMPTY_KERNEL_US else "an empty kernel takes as long"
    return f"{floor_us:.3g} us: the speed of light, {basis}"


def _line(estimate: Estimate) -> str:
    launches = f"{estimate.n_launches} launch{'es' if estimate.n_launches != 1 else ''}"
    return (
        f"{estimate.time_us:.3g} us [{estimate.low_us:.3g}, {estimate.high_us:.3g}] estimated on {estimate.gpu}, "
        f"{estimate.bound}-bound, {estimate.bytes_moved / 1e6:.3g} MB, {launches} ({estimate.method}, {estimate.date})"
    )
