"""Lenses and inlay hints: the commands for a target or kernel and its latest result, the cost of each line, and the
profile of each kernel line."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from lsprotocol import types

from kernel_lsp.core.profile import LineProfile
from kernel_lsp.engine.messages import RunSummary
from kernel_lsp.rules.finding import TextRange
from kernel_lsp.server.analysis.analysis_types import Analysis, Target
from kernel_lsp.server.documents.documents import Document
from kernel_lsp.server.documents.edits import line_range, to_range
from kernel_lsp.server.features.formatting import (
    check_text,
    facts_text,
    profile_text,
    recorded_of,
    result_text,
    share_text,
    time_text,
)
from kernel_lsp.server.knowledge import Knowledge, KnownCheck


def python_lenses(document: Document, analysis: Analysis, knowledge: Knowledge) -> list[types.CodeLens]:
    """Return the lenses above each target."""
    return [
        types.CodeLens(line_range(document, target.line), command)
        for target in analysis.targets
        for command in _target_commands(document, target, knowledge)
    ]


def cuda_lenses(document: Document, analysis: Analysis, knowledge: Knowledge) -> list[types.CodeLens]:
    """Return the lenses above the plan and each kernel."""
    check = knowledge.check(document.uri)
    stale = " (stale)" if check is not None and check.serial != document.serial else ""
    lenses = []
    if analysis.has_plan and document.path is not None:
        title = f"Check now: {_check_title(check)}{stale}" if check is not None else "Check now"
        about = {"uri": document.uri}
        lenses.append(types.CodeLens(line_range(document, 0), _command(title, "kernelLsp.check", about)))
        lenses.append(types.CodeLens(line_range(document, 0), _command("Profile", "kernelLsp.profile", about)))
    for kernel in analysis.kernels if check is not None else ():
        assert check is not None
        for facts in check.facts(kernel.name):
            command = _command(f"{facts_text(facts)}{stale}", "kernelLsp.check", {"uri": document.uri})
            lenses.append(types.CodeLens(line_range(document, kernel.line), command))
    return lenses


def _check_title(check: KnownCheck) -> str:
    return ", ".join(filter(None, (check_text(check.verdict), check.origin)))


def _target_commands(document: Document, target: Target, knowledge: Knowledge) -> Iterator[types.Command]:
    if document.file is None:
        return  # an unsaved text is not a file that a worker can import
    about = {"uri": document.uri, "symbol": target.symbol}
    recorded = recorded_of(document.file, target.symbol)
    share = f" | {share_text(recorded)}" if recorded is not None and recorded.share else ""
    yield _command(f"Optimize to CUDA{share}", "kernelLsp.optimize", about)
    if (verified := knowledge.verified_of(document.uri, target.symbol)) is not None:
        yield _command(f"Use it now: {verified.time}", "kernelLsp.useNow", {"job": verified.job})
    interrupted = knowledge.interrupted(document.file, target.symbol)
    if interrupted is not None:
        run = {"uri": document.uri, "run": interrupted.run_id}
        yield _command(_resume_title(interrupted, target.symbol), "kernelLsp.resume", run)
    result = knowledge.last_result(document.file, target.symbol)
    if result is not None:
        run = {"uri": document.uri, "run": result.run_id}
        stale = " (stale)" if knowledge.is_stale(result, target) else ""
        yield _command(f"{result_text(result)}{stale}", "kernelLsp.report", run)
        yield _command("Show kernel", "kernelLsp.showKernel", run)
        yield _command("Compare", "kernelLsp.compare", run)
        yield _command("Report", "kernelLsp.report", run)


def _resume_title(run: RunSummary, symbol: str) -> str:
    """Return ``Resume "RMSNorm" (started 09:09)``, with the date instead for a run of another day."""
    started, now = datetime.fromisoformat(run.started).astimezone(), datetime.now().astimezone()
    when = f"{started:%H:%M}" if started.date() == now.date() else f"{started:%Y-%m-%d}"
    return f'Resume "{symbol}" (started {when})'


def _command(title: str, name: str, argument: dict[str, str]) -> types.Command:
    return types.Command(title=title, command=name, arguments=[argument])


MIN_SHARE = 0.05
"""Minimum share, of the kernel's time or of a line's wasted accesses, for a hint."""


def profile_hints(document: Document, knowledge: Knowledge, first: int, last: int) -> list[types.InlayHint]:
    """Return the hints of a profiled kernel for the lines ``[first, last]``, above `MIN_SHARE`."""
    stale = " (stale)" if knowledge.is_profile_stale(document) else ""
    return [
        _hint(document, line, f"{profile_text(found)}{stale}")
        for line, found in sorted(knowledge.profiled_lines(document).items())
        if first <= line <= last and any(map(_matters, found))
    ]


def line_hints(
    document: Document, analysis: Analysis, knowledge: Knowledge, first: int, last: int
) -> list[types.InlayHint]:
    """Return the hints for the estimated lines in ``[first, last]``."""
    hints = []
    for line, found, is_stale in knowledge.lines(document, analysis.targets):
        if first <= line <= last:
            label = f"{time_text(found.time_us)} est., {found.share:.0%}{' (stale)' if is_stale else ''}"
            hints.append(_hint(document, line, label))
    return hints


def _matters(line: LineProfile) -> bool:
    return max(line.share, line.wasted_sectors, line.wasted_wavefronts) >= MIN_SHARE


def _hint(document: Document, line: int, label: str) -> types.InlayHint:
    end = len(document.line_text(line))
    position = to_range(document, TextRange(line, end, line, end)).end
    return types.InlayHint(position=position, label=label, padding_left=True)
