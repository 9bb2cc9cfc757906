"""Track the cells of notebooks and their order: a cell may use definitions of the cells above it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lsprotocol import types

from kernel_lsp.server.documents.documents import Document, Documents, path_of


class Notebooks:
    """The open notebooks, each as the list of its code cells' URIs."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._cells: dict[str, list[str]] = {}
        self._of_cell: dict[str, str] = {}

    def open(self, uri: str, cells: Sequence[types.NotebookCell]) -> None:
        self._cells[uri] = []
        self._splice(uri, 0, 0, cells)

    def change(self, uri: str, array: types.NotebookCellArrayChange) -> None:
        """Replace some cells by others."""
        if uri in self._cells:
            self._splice(uri, array.start, array.delete_count, array.cells or ())

    def close(self, uri: str) -> None:
        for cell in self._cells.pop(uri, ()):
            self._of_cell.pop(cell, None)

    def path(self, cell: str) -> Path | None:
        """Return the notebook's file; None for a text that is not a cell."""
        notebook = self._of_cell.get(cell)
        return path_of(notebook) if notebook is not None else None

    def above(self, document: Document) -> tuple[str, ...]:
        """Return the texts of the Python cells above a cell, in order; empty for a text that is not a cell."""
        cells = self._cells.get(self._of_cell.get(document.uri, ""), [])
        before = cells[: cells.index(document.uri)] if document.uri in cells else []
        found = (self._documents.get(uri) for uri in before)
        return tuple(cell.text for cell in found if cell is not None and cell.language == "python")

    def below(self, cell: str) -> tuple[Document, ...]:
        """Return the cells below a cell, whose meaning may change with it."""
        cells = self._cells.get(self._of_cell.get(cell, ""), [])
        after = cells[cells.index(cell) + 1 :] if cell in cells else []
        return tuple(document for uri in after if (document := self._documents.get(uri)) is not None)

    def _splice(self, uri: str, start: int, n_deleted: int, cells: Sequence[types.NotebookCell]) -> None:
        known = self._cells[uri]
        start = min(max(start, 0), len(known))
        new = [cell.document for cell in cells]
        for gone in known[start : start + max(n_deleted, 0)]:
            self._of_cell.pop(gone, None)
        known[start : start + max(n_deleted, 0)] = new
        self._of_cell |= dict.fromkeys(new, uri)


def n_lines_above(above: Sequence[str]) -> int:
    """Count the lines above a cell in the concatenated notebook."""
    return sum(text.count("\n") + 1 for text in above)
