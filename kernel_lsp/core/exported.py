"""What `kernel-lsp export` wrote."""

from __future__ import annotations

from typing import Literal

from kernel_lsp.core.model import SCHEMA_VERSION, Noun

ExportForm = Literal["operator", "package"]


class Exported(Noun):
    """One form of one verified kernel. `verified` says where and on what its verdict was reached."""

    schema_version: int = SCHEMA_VERSION
    form: ExportForm
    name: str
    """What users import."""
    directory: str
    files: tuple[str, ...]
    candidate_id: str
    verified: str
