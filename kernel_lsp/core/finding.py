"""Findings: facts about a location in a file."""

from __future__ import annotations

from enum import StrEnum

from kernel_lsp.core.model import Noun


class Severity(StrEnum):
    """Severity levels, as in editors."""

    ERROR = "error"
    WARNING = "warning"
    INFORMATION = "information"
    HINT = "hint"


class RelatedPlace(Noun):
    """Related location of a finding, e.g. in a header or where a template was instantiated. `file` is absolute if
    known, `line` is 1-based."""

    message: str
    file: str
    line: int


class Finding(Noun):
    """One fact at one location. `line` and `column` are 1-based. `source` is its producer (``nvrtc``, ``ptxas``,
    ``executor``, ``plan``, ``integrity``, ``verdict``); `code` is stable and documented: ``out-of-bounds-read``."""

    code: str
    severity: Severity
    message: str
    source: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    kernel: str | None = None
    block: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None
    n_occurrences: int = 1
    related: tuple[RelatedPlace, ...] = ()
