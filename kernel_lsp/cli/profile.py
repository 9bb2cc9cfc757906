"""`kernel-lsp profile`: where a kernel's time goes, and what would help most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_lsp.cli import console
from kernel_lsp.cli.check import STYLES, describe_finding
from kernel_lsp.config import load_settings
from kernel_lsp.core.profile import KernelProfile, ProfileReport
from kernel_lsp.core.words import counted
from kernel_lsp.plan.codes import PlanCode
from kernel_lsp.verify.profile.profile import profile_kernel
from kernel_lsp.verify.session.plain_build import NO_PLAN

MAX_LINES, MAX_EAGER = 12, 5
MIN_SHARE = 0.01


@console.command
async def main(kernel: Path, task: str | None, overrides: Mapping[str, Any], as_json: bool) -> int:
    settings = load_settings(Path.cwd(), overrides)
    with console.stage(f"profiling {kernel}"):
        report = await profile_kernel(kernel, task, Path.cwd(), settings)
    if as_json:
        console.print_json(report)
    elif isinstance(report, ProfileReport):
        _print(report, kernel.read_text(encoding="utf-8", errors="replace").splitlines())
    elif any(finding.code == PlanCode.NO_PLAN for finding in getattr(report, "findings", ())):
        console.stdout.print(f"{kernel}: unsupported: {NO_PLAN}", style="bold red", markup=False)
        console.stdout.print(f"  next: kernel-lsp plan {kernel} --write drafts the plan", markup=False)
    else:
        message = getattr(report, "message", "")
        reason = f": {message}" if message else ""
        console.stdout.print(f"{kernel}: {report.kind.replace('_', ' ')}{reason}", style="bold red", markup=False)
        for finding in getattr(report, "findings", ()):
            console.stdout.print(f"  {describe_finding(finding, str(kernel))}", markup=False)
    return console.EXIT_OK if isinstance(report, ProfileReport) else console.EXIT_COULD_NOT


def _print(report: ProfileReport, source: Sequence[str]) -> None:
    say = console.stdout.print
    say(f"{report.file}: {report.kind} profile, {report.date}", style="bold", markup=False)
    say(report.summary(), markup=False)
    for kernel in report.kernels:
        say()
        for text in _kernel_lines(kernel, source):
            say(text, markup=False)
    for finding in report.findings:
        say(f"  {describe_finding(finding, report.file)}", style=STYLES[finding.severity], markup=False)
    if report.eager:
        say(f"\nPyTorch launches {counted(len(report.eager), 'kernel')} for the forward:", markup=False)
        for eager in report.eager[:MAX_EAGER]:
            say(f"  {eager.time_us:9.3g} us  {eager.n_calls} x {eager.name[:90]}", markup=False)
    say()
    for run in report.tools:
        detail = f"{run.version}, {run.elapsed_s:.1f} s" if run.status == "ran" else run.reason
        say(f"  {run.tool}: {run.status} ({detail})", style="dim", markup=False)
    for note in report.notes:
        say(f"  note: {note}", markup=False)


def _kernel_lines(kernel: KernelProfile, source: Sequence[str]) -> list[str]:
    time = f"{kernel.time_us:.4g} us, " if kernel.time_us is not None else ""
    achieved = f" ({kernel.achieved_occupancy:.0%} achieved)" if kernel.achieved_occupancy is not None else ""
    facts = (
        f"{time}{kernel.n_registers} registers, {kernel.shared_bytes} bytes shared, {kernel.spill_bytes} spilled, "
        f"occupancy {kernel.occupancy:.0%}{achieved}, {kernel.n_waves:.2g} waves"
    )
    lines = [f"{kernel.kernel}: {facts}"]
    shown = sorted((line for line in kernel.lines if line.share >= MIN_SHARE), key=lambda line: -line.share)
    for line in shown[:MAX_LINES]:
        text = source[line.line - 1].strip() if 0 < line.line <= len(source) else ""
        _, _, facts = line.in_words().partition(", ")
        lines.append(f"  {line.share:>4.0%} | line {line.line:>4} | {text}")
        lines += [f"       |           | {facts}"] if facts else []
    return lines
