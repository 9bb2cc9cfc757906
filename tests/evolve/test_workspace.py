"""Check which folder a run's archive belongs to."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.config import find_workspace


def test_a_folder_that_everybody_writes_to_is_no_workspace_of_what_lies_below(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / ".kernel-lsp").mkdir(parents=True)
    shared.chmod(0o1777)
    project = shared / "project"
    project.mkdir()
    assert find_workspace(project) == project


def test_a_workspace_is_the_nearest_folder_with_an_archive(tmp_path: Path) -> None:
    (tmp_path / ".kernel-lsp").mkdir()
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_workspace(below) == tmp_path
