"""Convert plain ranges to and from the protocol's."""

from __future__ import annotations

from lsprotocol import types

from kernel_lsp.rules.finding import TextRange
from kernel_lsp.server.documents.documents import Change, Document


def to_range(document: Document, found: TextRange) -> types.Range:
    """Convert to the client's units."""
    start_line, start, end_line, end = document.client_range(found)
    return types.Range(types.Position(start_line, start), types.Position(end_line, end))


def to_edit(document: Document, found: TextRange, new_text: str) -> types.TextEdit:
    return types.TextEdit(to_range(document, found), new_text)


def line_range(document: Document, line: int) -> types.Range:
    """Return the range of a line without its end."""
    return to_range(document, TextRange(line, 0, line, len(document.line_text(line))))


def change_of(event: types.TextDocumentContentChangeEvent) -> Change:
    """Convert a client's change."""
    if not isinstance(event, types.TextDocumentContentChangePartial):
        return Change(event.text)
    start, end = event.range.start, event.range.end
    return Change(event.text, (start.line, start.character), (end.line, end.character))
