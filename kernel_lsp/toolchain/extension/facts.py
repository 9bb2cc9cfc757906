"""What it takes to compile against a torch, kept on disk while that torch is the same: who builds an extension does not
wait then until some process has imported it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kernel_lsp.core.model import Noun
from kernel_lsp.toolchain.nvrtc.cache import content_key


class ExtensionFacts(Noun):
    """What it takes to compile against the user's torch, as its interpreter says."""

    torch_version: str
    cuda_version: str
    includes: tuple[Path, ...]
    libraries: tuple[str, ...]
    library_directories: tuple[Path, ...]
    cxx11_abi: int
    cuda_runtime: str = ""
    """The CUDA runtime that torch has loaded: an extension must use the same, and not carry one of its own."""


class KeptFacts:
    """Those of one interpreter. It never raises: what cannot be read is asked for again, what cannot be written is not
    kept."""

    def __init__(self, cache_directory: Path, python: Path, site_packages: Sequence[Path]) -> None:
        """`site_packages` are where the interpreter may have its torch."""
        key = _key(python, site_packages)
        self._path = None if key is None else cache_directory / "extensions" / "facts" / f"{key}.json"

    def find(self) -> ExtensionFacts | None:
        """What was kept of this torch; None where nothing was, or something that it names is gone."""
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
        """For the next session. A rename is whole or not at all."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="kept-", dir=self._path.parent) as folder:
                written = Path(folder) / "facts.json"
                written.write_text(facts.model_dump_json())
                os.replace(written, self._path)


def _key(python: Path, site_packages: Sequence[Path]) -> str | None:
    """Of the interpreter and the file that every installation of torch writes anew; None where there is none."""
    for version in (directory / "torch" / "version.py" for directory in site_packages):
        with contextlib.suppress(OSError):
            return content_key(str(python), str(version), str(version.stat().st_mtime_ns), version.read_text())
    return None
