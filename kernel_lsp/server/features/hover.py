"""Hovers: the cost of a target, a line or a kernel."""

from __future__ import annotations

from kernel_lsp.core.verdict import KernelFacts
from kernel_lsp.errors import SettingError
from kernel_lsp.gpu.occupancy_text import occupancy_text
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.server.analysis.analysis_types import Analysis, Kernel, Target
from kernel_lsp.server.documents.documents import Document
from kernel_lsp.server.features.formatting import (
    amount_text,
    bold_number_text,
    comparison_lines,
    facts_text,
    profile_text,
    recorded_of,
    recorded_text,
    result_text,
    shapes_text,
    time_text,
    verdict_text,
)
from kernel_lsp.server.knowledge import Knowledge, KnownEstimate

NO_PLAN = (
    "Not compiled yet: save the file, or run *Check now*. Without a launch plan at the top of the file "
    "(*Add a launch plan*) it is compiled, and neither checked nor timed."
)
STALE = " *(stale: the code has changed since)*"
MAX_LINES_LISTED = 6
MANY = 99.5
"""Ratio to the speed of light from which two significant digits would print as a power of ten."""
MIN_FLOOR_US = 1e-6
"""Smallest roofline bound, in microseconds: avoids a division by zero for lines without memory traffic."""


def python_hover(document: Document, analysis: Analysis, knowledge: Knowledge, line: int, pending: str) -> str:
    """Return Markdown for a line, empty without information. `pending` describes a running estimate, or how to start
    one."""
    target = analysis.target_at(line)
    if target is None:
        return ""
    if line in (target.line, target.forward_line):
        return _target_text(document, target, knowledge, pending)
    return _line_text(document, target, knowledge, line)


def cuda_hover(document: Document, analysis: Analysis, knowledge: Knowledge, line: int, gpu: str) -> str:
    """Return Markdown for a line of a kernel, empty without information."""
    kernel, check = analysis.kernel_at(line), knowledge.check(document.uri)
    if kernel is None or (line != kernel.line and "__global__" not in document.line_text(line)):
        return _profiled_text(document, knowledge, line)
    parts = [f"**{kernel.name}**"]
    if check is None and not analysis.has_plan:
        return f"{parts[0]}\n\n{NO_PLAN}"
    if check is None:
        return f"{parts[0]}\n\nNot compiled yet: save the file, or run *Check now*."
    stale = STALE if check.serial != document.serial else ""
    for facts in check.facts(kernel.name):
        parts.append(
            "; ".join(filter(None, (f"`{facts.kernel}`: {facts_text(facts)}", _occupancy(kernel, facts, gpu))))
        )
    parts.append(f"{verdict_text(check.verdict)}{stale}")
    parts.append("\n".join(f"{line}{stale}" for line in comparison_lines(check.verdict.times)))
    if not check.verdict.times and check.verdict.estimate is not None:
        parts.append(f"{bold_number_text(check.verdict.estimate)}; {shapes_text(check.verdict.estimate)}{stale}")
    return "\n\n".join(filter(None, parts))


def _target_text(document: Document, target: Target, knowledge: Knowledge, pending: str) -> str:
    parts = [f"**{target.symbol}**" + (f" with `{target.inputs}`" if target.inputs else "")]
    if target.problem:
        parts.append(f"No time: {target.problem}.")
        parts += [f"Add above line {line + 1}: `{text}`" for line, text in target.pragmas]
    known = knowledge.estimate(document.uri, target.symbol)
    if known is not None:
        parts += _estimate_parts(known, STALE if known.digest != target.digest else "", document.name)
    elif not target.problem and pending:
        parts.append(pending)
    parts.append(recorded_text(recorded_of(document.file, target.symbol)))
    result = knowledge.last_result(document.file, target.symbol)
    if result is not None:
        stale = STALE if knowledge.is_stale(result, target) else ""
        parts.append(f"Optimized: {result_text(result)}{stale}")
        parts.append("\n".join(f"{line}{stale}" for line in comparison_lines(result.comparisons)))
    return "\n\n".join(filter(None, parts))


def _estimate_parts(known: KnownEstimate, stale: str, file: str) -> list[str]:
    estimate, floor_us = known.estimate.estimate, known.estimate.floor_us
    n = estimate.n_launches
    moved = f"{amount_text(estimate.bytes_moved, 'B')} moved, {amount_text(estimate.n_operations, 'FLOP')}"
    parts = [
        f"PyTorch eager: {bold_number_text(estimate)}{stale}",
        *_compiled_text(known),
        f"{estimate.bound}-bound; {moved}, {n} launch{'es' if n != 1 else ''}",
    ]
    if floor_us > 0:
        parts.append(f"{_floor_text(estimate.time_us, floor_us)} (roofline: inputs read and outputs written once)")
    listed = known.estimate.lines[:MAX_LINES_LISTED]
    rows = [
        f"| {line.share:.0%} | {time_text(line.time_us)} | {line.place(file)} | `{_cell(line.text)}` |"
        for line in listed
    ]
    if rows:
        parts.append("\n".join(["| share | time | line | code |", "|--:|--:|--:|---|", *rows]))
    return parts


def _compiled_text(known: KnownEstimate) -> tuple[str, ...]:
    compiled = known.estimate.compiled
    return () if compiled is None else (f"torch.compile: {bold_number_text(compiled)}, from {compiled.method}",)


def _line_text(document: Document, target: Target, knowledge: Knowledge, line: int) -> str:
    for now, found, is_stale in knowledge.lines(document, (target,)):
        if now == line:
            known = knowledge.estimate(document.uri, target.symbol)
            assert known is not None
            estimate = known.estimate.estimate
            n = found.n_launches
            moved = f"{amount_text(found.bytes_moved, 'B')} moved, {amount_text(found.n_operations, 'FLOP')}"
            return "\n\n".join(
                (
                    f"**{time_text(found.time_us)}** [{found.low_us:.3g}, {found.high_us:.3g}], {found.share:.0%} of "
                    f"`{target.symbol}` in PyTorch eager, estimated on {estimate.gpu}, {estimate.date}"
                    f"{STALE if is_stale else ''}",
                    f"{found.bound}-bound; {moved}, {n} launch{'es' if n != 1 else ''} ({', '.join(found.operations)})",
                    f"{_floor_text(found.time_us, found.floor_us)} (roofline: its bytes moved once at full speed)",
                )
            )
    return ""


def _floor_text(time_us: float, floor_us: float) -> str:
    ratio = time_us / max(floor_us, MIN_FLOOR_US)
    shown = f"{ratio:.2g}" if ratio < MANY else f"{ratio:,.0f}"
    return f"{shown}x the speed of light of {time_text(floor_us)}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")


def _profiled_text(document: Document, knowledge: Knowledge, line: int) -> str:
    known, found = knowledge.profile(document), knowledge.profiled_lines(document).get(line)
    if known is None or not found:
        return ""
    stale = STALE if knowledge.is_profile_stale(document) else ""
    report = known.report
    counted = "Counted by the PTX executor (CPU)"
    how = {
        "measured": f"Measured on {report.device}",
        "events": f"{counted}; {report.time_us:.4g} us on {report.device}",
        "executor": counted,
    }[report.kind]
    shapes = ", ".join(f"{name} {list(shape)}" for name, shape in report.shapes.items())
    advice = [f"- {each.title}: {each.evidence}" for each in report.advice if each.line == line + 1 and not stale]
    return "\n\n".join([f"{profile_text(found)}{stale}", *advice, f"{how}, {report.date}; {shapes}"])


def _occupancy(kernel: Kernel, facts: KernelFacts, gpu: str) -> str:
    """Format the occupancy; empty if the file launches no block of a constant size, or for an unknown GPU."""
    try:
        return occupancy_text(facts, kernel.blocks, find_gpu(gpu))
    except SettingError:
        return ""
