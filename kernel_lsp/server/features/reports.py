"""Render a run as Markdown."""

from __future__ import annotations

from kernel_lsp.engine.messages import RunResult
from kernel_lsp.server.features.formatting import number_text


def run_report(result: RunResult) -> str:
    """Render the run's target, its result, and where that was verified."""
    summary = result.summary
    parts = [
        f"# {summary.target}",
        f"Run {summary.run_id}, started {summary.started}, {summary.status}; on {summary.device or 'no device yet'}.",
    ]
    if summary.candidate_id is None:
        parts.append(f"No verified kernel: {summary.reason or 'the run has not ended'}.")
    else:
        parts.append(f"Winner `{summary.candidate_id}`: {summary.reason}.")
    for name, comparison in summary.comparisons.items():
        baseline = comparison.baseline_name
        parts.append(
            f"| {name} | time |\n|---|---|\n"
            f"| ours | {number_text(comparison.ours)} |\n"
            f"| {baseline} | {number_text(comparison.baseline)} |\n"
            f"| speedup | {comparison.speedup:.2g}x |"
        )
    parts += [f"Library step: {step} (a vendor library, not our kernel)." for step in summary.library_steps]
    parts += [f"File: {file.path}" for file in result.files]
    if result.problem:
        parts.append(result.problem)
    return "\n\n".join(parts) + "\n"
