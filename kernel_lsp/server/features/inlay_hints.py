"""Hints at the end of lines: what each costs."""

from __future__ import annotations

from lsprotocol import types

from kernel_lsp.rules.finding import TextRange
from kernel_lsp.server.analysed import Analysis
from kernel_lsp.server.conversion import to_range
from kernel_lsp.server.documents import Document
from kernel_lsp.server.knowledge import Knowledge
from kernel_lsp.server.words import time_text


def line_hints(
    document: Document, analysis: Analysis, knowledge: Knowledge, first: int, last: int
) -> list[types.InlayHint]:
    """For the lines ``[first, last]`` that an estimate is known of."""
    hints = []
    for line, found, is_stale in knowledge.lines(document, analysis.targets):
        if first <= line <= last:
            end = len(document.line_text(line))
            label = f"{time_text(found.time_us)} est., {found.share:.0%}{' (stale)' if is_stale else ''}"
            position = to_range(document, TextRange(line, end, line, end)).end
            hints.append(types.InlayHint(position=position, label=label, padding_left=True))
    return hints
