"""The table of a benchmark: one row per task, as cells for a terminal, a Markdown page and an HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernel_lsp.core.benchmark import BaselineGroup, BenchEntry, BenchReport, BenchScore
from kernel_lsp.core.measurement import Ratio, TimedBaseline

HEADINGS = (
    *("task", "result", "time, us", "interval", "vs eager", "vs compile", "vs peers"),
    *("claim", "noise", "of limit", "s", "advice", "times are"),
)
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
"""Marks around the part of a page that the command writes."""


def table_cells(entry: BenchEntry) -> tuple[str, ...]:
    """Return the cells below `HEADINGS`. Forward and backward count together; a ratio is theirs over ours."""
    share = entry.share_of_limit
    return (
        entry.target,
        entry.status,
        f"{sum(time.ours_us for time in entry.times):.4g}" if entry.times else "",
        _interval(entry),
        *(_ratio(entry, group) for group in ("eager", "compile", "peers")),
        _claim(entry),
        f"{max(ratio.noise_floor for ratio in ratios):.1%}" if (ratios := _ratios(entry)) else "",
        f"{share:.0%}" if share is not None else "",
        f"{entry.elapsed_s:.0f}" if entry.elapsed_s else "",
        (entry.recommendation.headline or "use the kernel") if entry.recommendation is not None else "",
        _source(entry),
    )


def score_line(score: BenchScore, report: BenchReport) -> str:
    """Describe the scores against one group, with the mean over ratios and the mean over claims."""
    fast = ", ".join(f"fast_{fast.p:g} {fast.share:.0%}" for fast in score.fast)
    means = [f"geomean {score.geomean:.2f}x"] if score.geomean is not None else []
    if score.geomean_claimed is not None and report.kind != "estimated":
        means.append(f"{score.geomean_claimed:.2f}x with no difference as 1.00")
    compared = f"{score.n_compared} of {score.n_tasks} compared"
    return f"against {score.baseline} ({report.kind}, {compared}): {', '.join([*means, fast])}"


def markdown(report: BenchReport) -> str:
    """Return the report as Markdown: heading, table, scores, and why rows have no time."""
    lines = [
        f"{report.n_verified} of {len(report.entries)} tasks verified, {report.date}. {kind_sentence(report)}",
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"|{'---|' * len(HEADINGS)}",
        *(f"| {' | '.join(_escaped(cell) for cell in table_cells(entry))} |" for entry in report.entries),
        "",
        *(f"- {score_line(score, report)}" for score in report.scores),
        *(f"- {entry.target}: {entry.detail}" for entry in report.entries if entry.status != "verified"),
    ]
    return "\n".join(lines) + "\n"


def kind_sentence(report: BenchReport) -> str:
    """State where the times come from. An estimate is called one in every table."""
    return {
        "measured": "All times are measured.",
        "estimated": "**All times are estimated: no GPU ran these kernels.**",
        "mixed": "**Some times are estimated**: the last column says which.",
        "none": "There are no times.",
    }[report.kind]


def write_docs(page: Path, report: BenchReport) -> None:
    """Replace the part of the page between the marks; append it where there are none."""
    text = page.read_text(encoding="utf-8") if page.exists() else "# Benchmark\n"
    before, found, rest = text.partition(BEGIN)
    after = rest.partition(END)[2] if found else ""
    block = f"{BEGIN}\n{markdown(report)}{END}"
    page.write_text(f"{before if found else before.rstrip() + chr(10) * 2}{block}{after or chr(10)}", encoding="utf-8")


def _interval(entry: BenchEntry) -> str:
    both = [time.comparison.ours for time in entry.times if time.comparison is not None]
    if not both:
        return ""
    return f"{sum(ours.low_us for ours in both):.4g} to {sum(ours.high_us for ours in both):.4g}"


def _ratio(entry: BenchEntry, group: BaselineGroup) -> str:
    return f"{entry.speedups[group]:.2f}x" if group in entry.speedups else ""


def _claim(entry: BenchEntry) -> str:
    return ", ".join(entry.claims) or ("no claim" if entry.times else "")


def _ratios(entry: BenchEntry) -> Sequence[Ratio]:
    baselines = (b for time in entry.times if time.comparison is not None for b in time.comparison.baselines)
    return [b.ratio for b in baselines if isinstance(b, TimedBaseline) and b.ratio is not None]


def _source(entry: BenchEntry) -> str:
    """Return the kind of the times, the GPU, the configurations covered and the library calls."""
    if not entry.times:
        return ""
    notes = [f"{entry.kind} on {', '.join(sorted({time.gpu for time in entry.times}))}"]
    if entry.n_configurations > 1:
        notes.append(f"{entry.n_covered} of {entry.n_configurations} configurations")
    if entry.library_steps:
        notes.append(f"with {', '.join(entry.library_steps)}")
    return ", ".join(notes)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
