"""Map a client's documents to files, and the cells of notebooks to their order: a cell may use definitions of the cells
above it."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Sequence
from pathlib import Path

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

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


def file_of(document: Document) -> Path:
    """Return the document's file, or that of its notebook. Raises JsonRpcInvalidParams for an unsaved text."""
    if document.file is None:
        raise JsonRpcInvalidParams(message=no_file_text(document.uri))
    return document.file


def place_of(documents: Documents, uri: str) -> Path:
    """Return the file of a document, open or not, or that of its notebook."""
    document = documents.named(uri)
    return file_of(document) if document is not None else file_at(uri)


def cells_of(notebooks: Notebooks, document: Document) -> tuple[str, ...]:
    """Return the notebook's cells up to this one; empty for a file."""
    return (*notebooks.above(document), document.text) if document.path is None else ()


def is_saved(document: Document, path: Path) -> bool:
    """Return True when the file on disk equals the editor's text. Tolerates a byte order mark that the editor hides,
    and decodes a Python file by its declared encoding."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return _plain(_decoded(data)) == _plain(document.text)


def file_at(uri: str) -> Path:
    """Return the file of a URI. Raises JsonRpcInvalidParams when it is not a file."""
    path = path_of(uri)
    if path is None:
        raise JsonRpcInvalidParams(message=no_file_text(uri))
    return path


def no_file_text(uri: str) -> str:
    """Return the message for a text that has no file, with the remedy."""
    return f"{uri!r} is no file on this machine: save it as one first"


BYTE_ORDER_MARK = "\ufeff"


def _decoded(data: bytes) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, LookupError, UnicodeDecodeError):
        return data.decode(errors="replace")


def _plain(text: str) -> str:
    return text.removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n")
