"""What a run was asked for. Stored with the run, so that it resumes as it began."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.core.model import Noun


class OptimizeRequest(Noun):
    """`target` is resolved against `directory`; paths are absolute, so that a resumed run may start elsewhere."""

    target: str
    directory: Path
    backward: bool = False
    device: str = "auto"
    target_gpu: str
    generations: int
    proposals: int
    seed: int
    out: Path | None = None
    python: Path | None = None


def find_workspace(directory: Path) -> Path:
    """The nearest folder, from `directory` up, that holds `.kernel-lsp`, `.git` or `pyproject.toml`; else
    `directory`."""
    for folder in (directory, *directory.parents):
        if any((folder / mark).exists() for mark in (".kernel-lsp", ".git", "pyproject.toml")):
            return folder
    return directory
