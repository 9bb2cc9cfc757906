"""Inlay hints: the cost of each line, and the profile of each kernel line."""

from __future__ import annotations

from lsprotocol import types

from kernel_lsp.core.profile import LineProfile
from kernel_lsp.rules.finding import TextRange
from kernel_lsp.server.analysis.analysis_types import Analysis
from kernel_lsp.server.documents.documents import Document
from kernel_lsp.server.features.formatting import profile_text, time_text
from kernel_lsp.server.knowledge import Knowledge
from kernel_lsp.server.protocol.conversion import to_range

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


# --- below


def _matters(line: LineProfile) -> bool:
    return max(line.share, line.wasted_sectors, line.wasted_wavefronts) >= MIN_SHARE


def _hint(document: Document, line: int, label: str) -> types.InlayHint:
    end = len(document.line_text(line))
    position = to_range(document, TextRange(line, end, line, end)).end
    return types.InlayHint(position=position, label=label, padding_left=True)
