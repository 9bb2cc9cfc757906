"""Files are replaced whole, also by processes that know nothing of each other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernel_lsp.process.atomic_files import TEMPORARY_PREFIX, write_atomically


def test_no_two_writers_share_a_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers with one cache folder may each have a process of the same id, at its first file."""
    names = []
    replaced = os.replace

    def replace(source: Path, target: Path) -> None:
        names.append(source.name)
        replaced(source, target)

    monkeypatch.setattr(os, "replace", replace)
    for text in ("first", "second"):
        write_atomically(tmp_path / "folder" / "file", text)
    assert (tmp_path / "folder" / "file").read_text() == "second"
    assert all(name.startswith(TEMPORARY_PREFIX) and str(os.getpid()) not in name.split("-") for name in names)
    assert len({*names}) == 2
    assert len([*(tmp_path / "folder").iterdir()]) == 1
