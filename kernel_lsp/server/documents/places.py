"""Map a client's documents to files."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path

from pygls.exceptions import JsonRpcInvalidParams

from kernel_lsp.server.documents.documents import Document, Documents, path_of
from kernel_lsp.server.documents.notebooks import Notebooks


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


# --- below

BYTE_ORDER_MARK = "\ufeff"


def _decoded(data: bytes) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, LookupError, UnicodeDecodeError):
        return data.decode(errors="replace")


def _plain(text: str) -> str:
    return text.removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n")
