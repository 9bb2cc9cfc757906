"""The texts that the client has open, as it sees them at this moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from kernel_lsp.rules.finding import TextRange
from kernel_lsp.server.protocol.positions import Encoding, column_of, split_lines, units_of, without_end

Language = Literal["python", "cuda", "other"]
LANGUAGE_IDS: dict[str, Language] = {"python": "python", "cuda": "cuda", "cuda-cpp": "cuda"}
"""VS Code sends ``cuda-cpp``, Vim and Neovim ``cuda``."""
SUFFIXES: dict[str, Language] = {".py": "python", ".cu": "cuda", ".cuh": "cuda"}
MAX_EDITS_KEPT = 4096
"""Maximum edits kept per document; findings older than that are dropped instead of rebased."""
SERIALS_PER_TEXT = 1 << 32
"""Serials reserved per document, more than it is ever edited: a result for a closed text never matches its
successor."""


@dataclass(frozen=True, slots=True)
class Edited:
    """Lines ``[first, last]`` replaced by `n_lines` lines in the next version."""

    version: int
    first: int
    last: int
    n_lines: int


@dataclass(frozen=True, slots=True)
class Change:
    """New text for a range in the client's units, or for the whole document."""

    text: str
    start: tuple[int, int] | None = None
    end: tuple[int, int] = (0, 0)


@dataclass
class Document:
    """One open text. `version` is the client's."""

    uri: str
    language: Language
    version: int
    encoding: Encoding
    lines: list[str] = field(repr=False)
    serial: int = 0
    """Incremented by every change, also for a client that repeats its version numbers."""
    _text: str | None = field(default=None, repr=False)
    _edits: list[Edited] = field(default_factory=list, repr=False)

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = "".join(self.lines)
        return self._text

    notebook: Path | None = None
    """File of the notebook that contains this cell."""

    @property
    def file(self) -> Path | None:
        """Return the file that holds the text: its own, or the notebook's."""
        return self.path or self.notebook

    @property
    def name(self) -> str:
        """Return the name under which line numbers of this text are reported."""
        return str(self.path) if self.path is not None else self.uri

    @cached_property
    def path(self) -> Path | None:
        """Return the file; None for a notebook cell and for other URIs without a file."""
        return path_of(self.uri)

    def apply(self, changes: Sequence[Change], version: int) -> None:
        """Apply the changes in order."""
        for change in changes:
            self.serial += 1
            first, last = (0, len(self.lines) - 1) if change.start is None else self._lines_touched(change)
            self._replace(first, last, self._changed(change, first, last))
        self.version = version

    def column(self, line: int, units: int) -> int:
        """The code point column of a client's position."""
        text = without_end(self.lines[line]) if 0 <= line < len(self.lines) else ""
        return column_of(text, units, self.encoding)

    def client_range(self, found: TextRange) -> tuple[int, int, int, int]:
        """Start line, start units, end line, end units."""
        return (*self._client(found.start_line, found.start_column), *self._client(found.end_line, found.end_column))

    def line_text(self, line: int) -> str:
        """A line without its end; empty for one that is not there."""
        return without_end(self.lines[line]) if 0 <= line < len(self.lines) else ""

    def line_now(self, line: int, since_serial: int) -> int | None:
        """Map a line of an earlier text to the current one; None when it was edited or the text is too old."""
        if since_serial < self.serial - len(self._edits):
            return None
        for edit in self._edits[len(self._edits) - (self.serial - since_serial) :]:
            if edit.first <= line <= edit.last:
                return None
            line += edit.n_lines - (edit.last - edit.first + 1) if line > edit.last else 0
        return line

    def _client(self, line: int, column: int) -> tuple[int, int]:
        if line >= len(self.lines):
            return len(self.lines) - 1, units_of(without_end(self.lines[-1]), self.encoding)
        return line, units_of(without_end(self.lines[line])[:column], self.encoding)

    def _lines_touched(self, change: Change) -> tuple[int, int]:
        assert change.start is not None
        last = len(self.lines) - 1
        first = min(max(change.start[0], 0), last)
        return first, min(max(change.end[0], first), last)

    def _changed(self, change: Change, first: int, last: int) -> str:
        """Return the text of the lines ``[first, last]`` after the change."""
        if change.start is None:
            return change.text
        start, end = self._place(change.start), self._place(change.end)
        if end < start:
            end = start
        return self.lines[first][: start[1]] + change.text + self.lines[last][end[1] :]

    def _place(self, position: tuple[int, int]) -> tuple[int, int]:
        line, units = position
        if line < 0:
            return 0, 0
        if line >= len(self.lines):
            return len(self.lines) - 1, len(self.lines[-1])
        return line, column_of(without_end(self.lines[line]), units, self.encoding)

    def _replace(self, first: int, last: int, text: str) -> None:
        """Replace lines. A neighbouring line is split again where line ends meet: ``\\r`` before ``\\n`` is one end."""
        if first > 0 and self.lines[first - 1].endswith("\r") and text.startswith("\n"):
            first -= 1
            text = self.lines[first] + text
        while last + 1 < len(self.lines) and not text.endswith(("\n", "\r")):
            last += 1
            text += self.lines[last]
        if last + 1 < len(self.lines) and text.endswith("\r") and self.lines[last + 1].startswith("\n"):
            last += 1
            text += self.lines[last]
        new = split_lines(text)
        if last + 1 < len(self.lines) and new[-1] == "":
            new.pop()
        same_before, same_after = _common(self.lines[first : last + 1], new)
        self.lines[first : last + 1] = new
        edit = Edited(self.version, first + same_before, last - same_after, len(new) - same_before - same_after)
        self._edits.append(edit)
        del self._edits[:-MAX_EDITS_KEPT]
        self._text = None


class Documents:
    """All open documents by URI."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self._open: dict[str, Document] = {}
        self._n_opened = 0

    def __iter__(self) -> Iterator[Document]:
        return iter(self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    def open(self, uri: str, language_id: str, version: int, text: str) -> Document:
        """Open a document; opening it again resets it."""
        language, lines = language_of(uri, language_id), split_lines(text)
        document = Document(uri, language, version, self._encoding, lines, self._n_opened * SERIALS_PER_TEXT)
        self._n_opened += 1
        self._open[uri] = document
        return document

    def close(self, uri: str) -> None:
        self._open.pop(uri, None)

    def get(self, uri: str) -> Document | None:
        """Return the document; None when it is not open."""
        return self._open.get(uri)

    def named(self, uri: str) -> Document | None:
        """Return the open document for a URI; clients spell the same path in several ways."""
        found, path = self.get(uri), path_of(uri)
        return self.at(path) if found is None and path is not None else found

    def at(self, path: Path) -> Document | None:
        """The open document of a file."""
        return next((document for document in self if document.path == path), None)


def language_of(uri: str, language_id: str) -> Language:
    """Determine the language by the client's language id, else by the file suffix."""
    return LANGUAGE_IDS.get(language_id) or SUFFIXES.get(Path(urlsplit(uri).path).suffix, "other")


def path_of(uri: str) -> Path | None:
    """The file of a ``file:`` URI."""
    parts = urlsplit(uri)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        return None
    path = unquote(parts.path)
    return Path(path) if path.startswith("/") and "\0" not in path else None


def _common(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """Count the unchanged lines at the start and at the end."""
    most = min(len(old), len(new))
    before = next((i for i in range(most) if old[i] != new[i]), most)
    after = next((i for i in range(most - before) if old[-1 - i] != new[-1 - i]), most - before)
    return before, after
