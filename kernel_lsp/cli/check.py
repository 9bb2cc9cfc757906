"""`kernel-lsp check`: one kernel against PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernel_lsp.cli import console
from kernel_lsp.config import load_settings
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.recommendation import detail_lines, one_line
from kernel_lsp.core.verdict import BuildFailed, Unsupported, Verdict
from kernel_lsp.core.words import counted
from kernel_lsp.errors import SettingError, page
from kernel_lsp.gpu.occupancy_text import occupancy_text
from kernel_lsp.gpu.specs import GpuSpec, find_gpu
from kernel_lsp.plan.parser import parse as parse_plan
from kernel_lsp.source.launch_blocks import base_name, launched_blocks
from kernel_lsp.verify.session.start import SessionStart

NOT_GENERAL = "not-general"
"""`verify/foreign/check_foreign.py` finds it; importing that takes numpy."""
STRICT_ALONE = f"--tolerance is for host code: kernels with a launch plan have the strict one ({page('checks.md')})"
STYLES = {
    Severity.ERROR: "red",
    Severity.WARNING: "yellow",
    Severity.INFORMATION: "",
    Severity.HINT: "dim",
}


@console.command
async def main(kernel: Path, task: str | None, overrides: Mapping[str, Any], as_json: bool) -> int:
    settings = load_settings(Path.cwd(), overrides)
    async with SessionStart(settings) as start:
        with console.stage(f"checking {kernel}"):
            # Takes half a second, and the worker has begun.
            from kernel_lsp.verify.session.check_kernel import check_kernel

            verdict = await check_kernel(kernel, task, Path.cwd(), settings, start)
        # Said before all processes have ended: a GPU's driver takes a third of a second for that.
        if as_json:
            console.print_json(verdict)
        else:
            print_verdict(verdict, kernel, settings.target_gpu)
            if is_ignored(overrides.get("tolerance"), verdict):
                console.stdout.print(f"  note      {STRICT_ALONE}", markup=False)
    return exit_status(verdict)


def is_ignored(tolerance: str | None, verdict: Verdict) -> bool:
    """Return True for a tolerance that the verdict was not reached under: one of a kernel with a launch plan."""
    is_named = any(note.startswith("tolerance:") for note in verdict.notes)
    return tolerance not in (None, "strict") and not is_named and not isinstance(verdict.outcome, Unsupported)


def exit_status(verdict: Verdict) -> int:
    """0 correct, 1 wrong or unsafe, 2 it could not be checked."""
    if verdict.is_correct:
        return console.EXIT_OK
    return console.EXIT_COULD_NOT if isinstance(verdict.outcome, Unsupported) else console.EXIT_NO


def print_verdict(verdict: Verdict, kernel: Path, gpu: str) -> None:
    """The outcome, what was checked, the findings at their lines, each kernel's facts, and the times."""
    say, file = console.stdout.print, str(kernel)
    outcome = verdict.outcome
    title = outcome.kind.replace("_", " ")
    if verdict.is_correct and any(finding.code == NOT_GENERAL for finding in verdict.findings):
        title = "correct for the task, not general"
    say(f"{file}: {title}", style="bold green" if verdict.is_correct else "bold red", markup=False)
    if outcome.kind == "correct":
        families = sorted({case.family for case in outcome.cases})
        say(
            f"  checked   {counted(len(outcome.cases), 'case')} on the {verdict.device}: {', '.join(families)}",
            markup=False,
        )
    elif not isinstance(outcome, BuildFailed):
        say(f"  because   {outcome.message}", markup=False)
    for name, found in verdict.by_tolerance.items():
        say(f"  under     {name}: {found}", style="green" if found == "correct" else "red", markup=False)
    for finding in _all_findings(verdict):
        say(f"  {describe_finding(finding, file)}", style=STYLES[finding.severity], markup=False)
    for line in _kernel_lines(verdict, kernel.read_text(encoding="utf-8", errors="replace"), gpu):
        say(f"  {line}", markup=False)
    for step in verdict.library_steps:
        say(f"  library   {step} does part of the work", markup=False)
    for name, comparison in verdict.times.items():
        say(f"  time      {name}: {one_line(comparison)}", markup=False)
        for line in detail_lines(comparison):
            say(f"            {line}", markup=False)
    _print_configurations(verdict)
    for note in verdict.notes:
        say(f"  note      {note}", markup=False)


def _kernel_lines(verdict: Verdict, text: str, gpu: str) -> Iterator[str]:
    """Yield what ptxas reports of each kernel, and its occupancy at its launches."""
    launched = launched_blocks(text, parse_plan(text).plan)
    for facts in verdict.kernels:
        spills = facts.spill_store_bytes + facts.spill_load_bytes
        text = f"{facts.n_registers} registers, {facts.shared_bytes} bytes shared, {spills} bytes spilled"
        yield f"kernel    {facts.kernel}: {text}"
        if found := occupancy_text(facts, launched.get(base_name(facts.kernel), ()), _gpu(verdict, gpu)):
            yield f"          {found}"


def _gpu(verdict: Verdict, target: str) -> GpuSpec:
    """Return the GPU that the kernel was built for: the one that ran it, else the target."""
    try:
        return find_gpu(verdict.device)
    except SettingError:
        return find_gpu(target)


def _print_configurations(verdict: Verdict) -> None:
    if not verdict.configurations:
        return
    n_served = sum(outcome.is_served for outcome in verdict.configurations)
    text = f"{n_served} of {counted(len(verdict.configurations), 'configuration')} of the task served"
    console.stdout.print(f"  serves    {text}", markup=False)
    for outcome in verdict.configurations:
        if not outcome.is_served:
            console.stdout.print(f"  not       {outcome.name}: {outcome.message}", style="yellow", markup=False)


def describe_finding(finding: Finding, file: str) -> str:
    """`file:line:column: severity: message [source/code]`, as compilers print it."""
    place = ":".join(str(part) for part in (file, finding.line, finding.column) if part is not None)
    where = f" (block {finding.block}, thread {finding.thread})" if finding.block and finding.thread else ""
    times = f", {finding.n_occurrences} times" if finding.n_occurrences > 1 else ""
    return f"{place}: {finding.severity}: {finding.message}{where}{times} [{finding.source}/{finding.code}]"


def _all_findings(verdict: Verdict) -> list[Finding]:
    """Each once: the outcome's own first."""
    return list(dict.fromkeys((*getattr(verdict.outcome, "findings", ()), *verdict.findings)))
