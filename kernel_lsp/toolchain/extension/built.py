"""A built torch extension, and where it is kept for the next who asks for it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Literal

from kernel_lsp.core.model import Noun

MODULE_NAME = "kernel_lsp_extension"
"""Of every extension: a precompiled header is good for one value of this macro only."""


class ExtensionBuilt(Noun):
    """A shared object that Python can import as `module_name`. `how` says what nvcc saw; `header` whether a precompiled
    header was there. `stages_s` is where the time went."""

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
    """The build that a folder holds; None when it holds none, or half of one."""
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
    """Move the result to its place. A rename is whole or not at all; whoever was first is as good."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kept-", dir=kept.parent) as made:
        place = Path(made) / "entry"
        place.mkdir()
        shutil.move(folder / "built.so", place / "built.so")
        (place / "facts.json").write_text(built.model_dump_json())
        with contextlib.suppress(OSError):
            os.rename(place, kept)
    return built.model_copy(update={"path": kept / "built.so"})
