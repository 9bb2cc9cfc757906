"""Results of `kernel-lsp export`."""

from __future__ import annotations

from typing import Literal

from kernel_lsp.core.model import SCHEMA_VERSION, Noun

ExportForm = Literal["operator", "package"]


class Exported(Noun):
    """One exported form of a verified kernel. `verified` gives the device and the evidence of its verdict."""

    schema_version: int = SCHEMA_VERSION
    form: ExportForm
    name: str
    """Name to import."""
    directory: str
    files: tuple[str, ...]
    candidate_id: str
    verified: str
