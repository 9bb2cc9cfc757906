"""Find the targets in a file or below a folder, in a separate process: one request line in, one reply line out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernel_lsp.process.stdio import claim_stdout
from kernel_lsp.process.tree import step_back
from kernel_lsp.server.analysis.analysis_worker import NICENESS, targets_of

MAX_FILES = 2_000
"""Maximum Python files to scan; a folder with more is probably a home directory, not a project."""
MAX_FILE_BYTES = 400_000
SKIPPED = {"node_modules", "site-packages", "__pycache__", "build", "dist", "kernels"}
"""Folders without the user's own code; `kernels` holds our results. Hidden folders and environments are skipped,
too."""


def main() -> None:
    """Answer one request."""
    stdout = claim_stdout()
    step_back(NICENESS)
    folder = Path(json.loads(sys.stdin.readline())["folder"])
    files = list(_limited(_python_files(folder), MAX_FILES + 1))
    targets = [target for file in files[:MAX_FILES] for target in _targets(file)]
    stdout.write(json.dumps({"targets": targets, "is_complete": len(files) <= MAX_FILES}).encode() + b"\n")


def _python_files(folder: Path) -> Iterator[Path]:
    if folder.is_file():
        yield folder
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_skipped(Path(place) / name))
        for name in sorted(names):
            if name.endswith(".py"):
                yield Path(place) / name


def _is_skipped(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in SKIPPED or (folder / "pyvenv.cfg").exists()


def _limited(files: Iterator[Path], n: int) -> Iterator[Path]:
    for _, file in zip(range(n), files, strict=False):
        yield file


def _targets(file: Path) -> Iterator[dict[str, Any]]:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            return
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    for target in targets_of(file, text):
        yield {
            "uri": file.as_uri(),
            "symbol": target.symbol,
            "is_module": target.is_module,
            "line": target.line,
            "inputs": target.inputs,
        }


if __name__ == "__main__":
    main()
