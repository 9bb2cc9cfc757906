"""Which file a document of the client belongs to."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path

from pygls.exceptions import JsonRpcInvalidParams

from kernel_lsp.server.documents.documents import Document, Documents, path_of
from kernel_lsp.server.documents.notebooks import Notebooks


def file_of(document: Document) -> Path:
    """Its own, or that of the notebook it is a cell of. Raises JsonRpcInvalidParams for a text that was never saved."""
    if document.file is None:
        raise JsonRpcInvalidParams(message=no_file_text(document.uri))
    return document.file


def place_of(documents: Documents, uri: str) -> Path:
    """The file of a document, open or not, or of the notebook that it is a cell of."""
    document = documents.named(uri)
    return file_of(document) if document is not None else file_at(uri)


def cells_of(notebooks: Notebooks, document: Document) -> tuple[str, ...]:
    """The cells of a notebook up to this one; none for a file."""
    return (*notebooks.above(document), document.text) if document.path is None else ()


def is_saved(document: Document, path: Path) -> bool:
    """Whether the file on disk says what the editor shows. An editor may keep a byte order mark to itself, and reads a
    Python file in the encoding that its first lines name."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return _plain(_decoded(data)) == _plain(document.text)


def file_at(uri: str) -> Path:
    """The file of a URI. Raises JsonRpcInvalidParams when it is none."""
    path = path_of(uri)
    if path is None:
        raise JsonRpcInvalidParams(message=no_file_text(uri))
    return path


def no_file_text(uri: str) -> str:
    """What is wrong with a text that nothing can be run on, and what to do."""
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
