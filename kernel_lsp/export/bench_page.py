"""The offline HTML page of a benchmark: its table, and plots as SVG, without a script."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from kernel_lsp.core.benchmark import BaselineGroup, BenchEntry, BenchReport, BenchScore, fast_share
from kernel_lsp.core.measurement import Ratio
from kernel_lsp.export.report import render_bench

WIDTH, LABEL_WIDTH, BAR_HEIGHT, PLOT_HEIGHT, MARGIN = 900, 320, 9, 240, 40
"""Sizes of the plots, in SVG units."""
MAX_LOG2 = 4.0
"""Bars of speedups end at 16 times, either way."""
FAST_P_END = 4.0

Point = tuple[float, float]
HEADINGS = (
    *("task", "result", "time, us", "interval", "vs eager", "vs compile", "vs peers"),
    *("claim", "noise", "of limit", "first, s", "s", "advice", "times are"),
)
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
"""Marks around the part of a page that the command writes."""


def render_bench_page(report: BenchReport) -> str:
    """Return the page as one text."""
    title = f"kernel-lsp bench, {report.date}"
    kind = html.escape(kind_sentence(report).replace("**", ""))
    word = "" if report.kind == "measured" else f" ({report.kind})"
    lines = [*(score_line(score, report) for score in report.scores), *turnaround_lines(report)]
    scores = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{report.n_verified} of {len(report.entries)} tasks verified. <strong>{kind}</strong></p><ul>{scores}</ul>",
        f"<h2>Speedup per task{word}</h2>{_speedups(report)}",
        f"<h2>Share of the speed of light{word}</h2>{_limits(report.entries)}",
        f"<h2>fast_p{word}: share of tasks more than p times as fast</h2>{_fast_p(report)}",
        f"<h2>Time to result: verified tasks over seconds spent</h2>{_progress(report.entries)}",
        f"<h2>All rows{word}</h2>{_table(report.entries)}{_details(report.entries)}",
    ]
    return render_bench(title, "\n".join(body), report.model_dump_json())


def _speedups(report: BenchReport) -> str:
    """Return bars on a logarithmic axis whose middle is 1."""
    groups = [score.baseline for score in report.scores if score.baseline != "best"]
    timed = [entry for entry in report.entries if entry.speedups]
    middle = LABEL_WIDTH + (WIDTH - LABEL_WIDTH) / 2
    scale = (WIDTH - middle - MARGIN) / MAX_LOG2
    parts, y = [], 10.0
    for entry in timed:
        parts.append(_text(LABEL_WIDTH - 8, y + BAR_HEIGHT, entry.target, "end"))
        for group in groups:
            if group in entry.speedups:
                length = scale * max(-MAX_LOG2, min(MAX_LOG2, math.log2(entry.speedups[group])))
                end = middle + length + (4 if length >= 0 else -4)
                parts.append(_bar(min(middle, middle + length), y, abs(length), group, f"{group} {entry.target}"))
                anchor = "start" if length >= 0 else "end"
                parts.append(_text(end, y + BAR_HEIGHT - 1, f"{entry.speedups[group]:.2f}", anchor))
            y += BAR_HEIGHT + 2
        y += 6
    parts.append(f'<line class="one" x1="{middle:.1f}" x2="{middle:.1f}" y1="0" y2="{y:.1f}"/>')
    return _legend(groups) + _svg(parts, y)


def _limits(entries: Sequence[BenchEntry]) -> str:
    """Return bars whose full width is the speed of light."""
    width = WIDTH - LABEL_WIDTH - MARGIN
    parts, y = [], 10.0
    for entry in entries:
        share = entry.share_of_limit
        if share is not None:
            parts.append(_text(LABEL_WIDTH - 8, y + BAR_HEIGHT, entry.target, "end"))
            parts.append(_bar(LABEL_WIDTH, y, width * min(1.0, share), "limit", entry.target))
            parts.append(_text(LABEL_WIDTH + width * min(1.0, share) + 4, y + BAR_HEIGHT - 1, f"{share:.0%}"))
            y += BAR_HEIGHT + 8
    return _svg(parts, y)


def _fast_p(report: BenchReport) -> str:
    groups = [score.baseline for score in report.scores]
    steps = [index * FAST_P_END / 80 for index in range(81)]
    lines = [(group, [(p, fast_share(report.entries, group, p)) for p in steps]) for group in groups]
    return _legend(groups) + _curves(lines, FAST_P_END, 1.0, "p", "share")


def _progress(entries: Sequence[BenchEntry]) -> str:
    """Return the number of verified tasks over the time spent so far, in the order of the run."""
    points: list[Point] = [(0.0, 0.0)]
    for entry in entries:
        elapsed, n_verified = points[-1]
        points.append((elapsed + entry.elapsed_s, n_verified + (entry.status == "verified")))
    return _curves([("best", points)], max(points[-1][0], 1.0), max(points[-1][1], 1.0), "seconds", "tasks")


def _curves(lines: Sequence[tuple[str, Sequence[Point]]], x_end: float, y_end: float, x_name: str, y_name: str) -> str:
    bottom, right = PLOT_HEIGHT - MARGIN, WIDTH - MARGIN
    parts = [
        f'<line class="axis" x1="{MARGIN}" x2="{right}" y1="{bottom}" y2="{bottom}"/>',
        f'<line class="axis" x1="{MARGIN}" x2="{MARGIN}" y1="10" y2="{bottom}"/>',
        _text(right, bottom + 16, f"{x_name}: 0 to {x_end:.3g}", "end"),
        _text(MARGIN + 4, 18, f"{y_name}: 0 to {y_end:.3g}"),
    ]
    for name, points in lines:
        placed = (
            f"{MARGIN + x / x_end * (right - MARGIN):.1f},{bottom - y / y_end * (bottom - 10):.1f}" for x, y in points
        )
        parts.append(f'<polyline class="{name}" points="{" ".join(placed)}"/>')
    return _svg(parts, PLOT_HEIGHT)


def _table(entries: Sequence[BenchEntry]) -> str:
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in HEADINGS)
    rows = "".join(_row(entry) for entry in entries)
    return f'<div class="scroll"><table class="rows"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _details(entries: Sequence[BenchEntry]) -> str:
    """Return a list of what the rows' cells leave out: why some have no kernel, and what speaks against others."""
    lines = (f"<li>{html.escape(line)}</li>" for entry in entries for line in detail_lines(entry))
    return f"<ul>{''.join(lines)}</ul>"


def _row(entry: BenchEntry) -> str:
    cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in table_cells(entry))
    title = html.escape("; ".join((entry.detail, *filter(None, [entry.cut_short]))), quote=True)
    return f'<tr class="{entry.status}" title="{title}">{cells}</tr>'


def _legend(names: Sequence[str]) -> str:
    keys = (f'<rect class="{name}" width="10" height="10"/>{_text(14, 10, name)}' for name in names)
    return "<div>" + " ".join(f'<svg class="plot" width="90" height="14">{key}</svg>' for key in keys) + "</div>"


def _bar(x: float, y: float, width: float, group: str, title: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{BAR_HEIGHT}"'
    return f'<rect class="{group}" {place}><title>{html.escape(title)}</title></rect>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _svg(parts: Sequence[str], height: float) -> str:
    if not parts:
        return "<p>No row has this figure.</p>"
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    return f'<svg class="plot" role="img" {size}>{"".join(parts)}</svg>'


def table_cells(entry: BenchEntry) -> tuple[str, ...]:
    """Return the cells below `HEADINGS`. Forward and backward count together; a ratio is theirs over ours."""
    share = entry.share_of_limit
    return (
        entry.target,
        f"{entry.status}, cut short" if entry.cut_short else entry.status,
        f"{sum(time.ours_us for time in entry.times):.4g}" if entry.times else "",
        _interval(entry),
        *(_ratio(entry, group) for group in ("eager", "compile", "peers")),
        _claim(entry),
        f"{max(ratio.noise_floor for ratio in ratios):.1%}" if (ratios := _ratios(entry)) else "",
        f"{share:.0%}" if share is not None else "",
        f"{entry.first_kernel_s:.0f}" if entry.first_kernel_s is not None else "",
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
    claimed = [entry.claimed.get(score.baseline, 0.0) for entry in report.entries if entry.status == "verified"]
    n_as_fast = sum(ratio >= 1.0 for ratio in claimed)
    compared = f"{score.n_compared} of {score.n_tasks} compared, {n_as_fast} at least as fast"
    n_partial = sum(bool(entry.untimed) for entry in report.entries if score.baseline in entry.speedups)
    if n_partial and score.baseline in ("compile", "best"):
        compared += f", {n_partial} without a time of every mode of torch.compile"
    return f"against {score.baseline} ({report.kind}, {compared}): {', '.join([*means, fast])}"


def turnaround_lines(report: BenchReport) -> list[str]:
    """Describe how long the tasks took; empty where none has a time."""
    ended = [entry for entry in report.entries if entry.status in ("verified", "none")]
    figures = {
        "seconds from the captured task to its first correct kernel with a time": [
            entry.first_kernel_s for entry in report.entries if entry.first_kernel_s is not None
        ],
        "seconds of a search": [entry.stages_s["search"] for entry in ended if "search" in entry.stages_s],
        "seconds of a full check": [entry.stages_s["full check"] for entry in ended if "full check" in entry.stages_s],
        "seconds from the start of a task to its result": [entry.elapsed_s for entry in ended],
    }
    known = {name: found for name, found in figures.items() if found}
    return [f"{name}: {median(found):.1f} in the median, {max(found):.1f} at most" for name, found in known.items()]


def detail_lines(entry: BenchEntry) -> list[str]:
    """Describe why a row is not verified, why its search was cut short, and what else speaks against its kernel."""
    found = [entry.detail] if entry.status != "verified" else []
    found += [f"cut short: {entry.cut_short}"] if entry.cut_short else []
    if entry.recommendation is not None and entry.recommendation.headline:
        found.append(entry.recommendation.sentence)
    return [f"{entry.target}: {line}" for line in found]


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
        *(f"- {line}" for line in turnaround_lines(report)),
        *(f"- {line}" for entry in report.entries if not _is_whole(entry) for line in detail_lines(entry)),
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
    """Return the claims, with the modes of PyTorch that they lack."""
    claims = ", ".join(entry.claims) or ("no claim" if entry.times else "")
    return f"{claims}; no time of {', '.join(entry.untimed)}" if entry.untimed else claims


def _ratios(entry: BenchEntry) -> Sequence[Ratio]:
    """Return the comparisons with the best of PyTorch, which claims are about."""
    found = (time.comparison.ratio for time in entry.times if time.comparison is not None)
    return [ratio for ratio in found if ratio is not None]


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


def _is_whole(entry: BenchEntry) -> bool:
    """Check whether the row has every figure that a page of documentation shows."""
    return entry.status == "verified" and not entry.cut_short


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
