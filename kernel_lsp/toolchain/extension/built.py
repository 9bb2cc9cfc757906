"""A built torch extension, and its place in the cache."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Literal

from kernel_lsp.core.model import Noun

MODULE_NAME = "kernel_lsp_extension"
"""Module name of every extension: a precompiled header is valid for one value of this macro only."""


class ExtensionBuilt(Noun):
    """A shared object that Python can import as `module_name`. `how` is the kind of source compiled by nvcc; `header`
    is true if a precompiled header was used. `stages_s` is seconds by stage."""

    kind: Literal["extension_built"] = "extension_built"
    path: Path
    module_name: str = MODULE_NAME
    undefined_symbols: tuple[str, ...]
    how: Literal["host only", "split", "whole"]
    header: Literal["precompiled", "read"]
    notes: tuple[str, ...] = ()
    stages_s: dict[str, float] = {}
    from_cache: bool = False


def read_kept(kept: Path) -> ExtensionBuilt | None:
    """Return the cached build of a folder; None if it is missing or incomplete."""
    try:
        found = ExtensionBuilt.model_validate_json((kept / "facts.json").read_text())
    except (OSError, ValueError):
        return None
    if not (kept / "built.so").is_file():
        return None
    with contextlib.suppress(OSError):
        os.utime(kept)
    return found.model_copy(update={"path": kept / "built.so", "from_cache": True, "stages_s": {}})


def keep(kept: Path, folder: Path, built: ExtensionBuilt) -> ExtensionBuilt:
    """Move the result to its place by an atomic rename; a concurrent build's result is equivalent."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kept-", dir=kept.parent) as made:
        place = Path(made) / "entry"
        place.mkdir()
        shutil.move(folder / "built.so", place / "built.so")
        (place / "facts.json").write_text(built.model_dump_json())
        with contextlib.suppress(OSError):
            os.rename(place, kept)
    return built.model_copy(update={"path": kept / "built.so"})
