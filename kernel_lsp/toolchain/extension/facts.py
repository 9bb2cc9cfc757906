"""Compiler settings for a torch installation, cached on disk, so that a build need not wait for a process to import
torch."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from kernel_lsp.core.model import Noun
from kernel_lsp.process.atomic_files import write_atomically
from kernel_lsp.toolchain.nvrtc.build_cache import content_key

MODULE_NAME = "kernel_lsp_extension"
"""Module name of every extension: a precompiled header is valid for one value of this macro only."""


class ExtensionFacts(Noun):
    """Settings for compiling against the user's torch, as reported by its interpreter."""

    torch_version: str
    cuda_version: str
    includes: tuple[Path, ...]
    libraries: tuple[str, ...]
    library_directories: tuple[Path, ...]
    cxx11_abi: int
    cuda_runtime: str = ""
    """CUDA runtime loaded by torch; an extension must use the same, not one of its own."""


class KeptFacts:
    """Cached settings of one interpreter. Never raises: an unreadable cache is a miss, a failed write is ignored."""

    def __init__(self, cache_directory: Path, python: Path, site_packages: Sequence[Path]) -> None:
        """`site_packages` are the folders where the interpreter's torch may be."""
        key = _key(python, site_packages)
        self._path = None if key is None else cache_directory / "extensions" / "facts" / f"{key}.json"

    def find(self) -> ExtensionFacts | None:
        """Return the cached settings of this torch; None without any, or when a file that they name is gone."""
        if self._path is None:
            return None
        try:
            facts = ExtensionFacts.model_validate_json(self._path.read_text())
        except (OSError, ValueError):
            return None
        named = [
            *facts.includes,
            *facts.library_directories,
            *([Path(facts.cuda_runtime)] if facts.cuda_runtime else []),
        ]
        return facts if all(path.exists() for path in named) else None

    def keep(self, facts: ExtensionFacts) -> None:
        """Save the facts where a cache can be written."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                write_atomically(self._path, facts.model_dump_json())


def _key(python: Path, site_packages: Sequence[Path]) -> str | None:
    """Return a cache key from the interpreter and a file that every torch installation rewrites; None without torch."""
    for version in (directory / "torch" / "version.py" for directory in site_packages):
        with contextlib.suppress(OSError):
            return content_key(str(python), str(version), str(version.stat().st_mtime_ns), version.read_text())
    return None


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
