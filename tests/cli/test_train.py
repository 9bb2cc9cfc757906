"""`kernel-lsp train` and `archive merge` as a user runs them: what cannot be learned from, or merged, is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import run_here, write


@pytest.mark.parametrize("command", [("train", "--archive", "nowhere"), ("archive", "merge", "nowhere", "-o", "out")])
def test_a_folder_without_an_archive_is_named_and_stays_as_it_is(tmp_path: Path, command: tuple[str, ...]) -> None:
    ran = run_here(tmp_path, *command)
    assert ran.status == 2
    assert "there is no archive\n   at: nowhere/.kernel-lsp/archive.sqlite3" in ran.stderr
    assert list(tmp_path.glob("*/.kernel-lsp")) == []


def test_a_table_that_is_none_says_what_it_lacks(tmp_path: Path) -> None:
    write(tmp_path, "{}", "table.json")
    ran = run_here(tmp_path, "train", "table.json")
    assert ran.status == 2
    assert "no table of times: gpu: Field required\n   at: table.json" in ran.stderr


def test_too_few_tasks_are_counted(tmp_path: Path) -> None:
    ran = run_here(tmp_path, "train")
    assert ran.status == 2
    assert "too little to learn from: 0 of at least 5 tasks have measured schedules" in ran.stderr
