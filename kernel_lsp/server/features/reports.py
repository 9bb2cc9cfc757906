"""Render a run as Markdown."""

from __future__ import annotations

from kernel_lsp.core.measurement import EstimatedBaseline
from kernel_lsp.engine.messages import RunResult
from kernel_lsp.server.features.formatting import number_text


def run_report(result: RunResult) -> str:
    """Render the run's target, its result, and where that was verified."""
    summary = result.summary
    parts = [
        f"# {summary.target}",
        f"Run {summary.run_id}, started {summary.started}, {summary.status}; on {summary.device or 'no device yet'}.",
    ]
    advice = summary.recommendation
    if advice is not None and advice.headline:
        parts.append(f"**{advice.headline}** ({advice.kind}): {advice.detail}.")
    if summary.candidate_id is None:
        parts.append(f"No verified kernel: {summary.reason or 'the run has not ended'}.")
    else:
        parts.append(f"Winner `{summary.candidate_id}`: {summary.reason}.")
    for name, comparison in summary.comparisons.items():
        rows = [("ours", comparison.ours), (comparison.baseline_name, comparison.baseline)]
        rows += [(each.name, each.estimate) for each in comparison.baselines if isinstance(each, EstimatedBaseline)]
        shown = dict.fromkeys(f"| {title} | {number_text(number)} |" for title, number in rows)
        lines = (f"| {name} | time |", "|---|---|", *shown, f"| speedup | {comparison.speedup:.2g}x |")
        parts.append("\n".join(lines))
    parts += [f"Library step: {step} (a vendor library, not our kernel)." for step in summary.library_steps]
    parts += [f"File: {file.path}" for file in result.files]
    if result.problem:
        parts.append(result.problem)
    return "\n\n".join(parts) + "\n"
