"""`kernel-lsp train` and `archive merge` as a user runs them: what cannot be learned from, or merged, is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.cli import train
from kernel_lsp.training import ranker
from kernel_lsp.training.ranker import read_models
from tests.cli.commands import run_here, write
from tests.training.tables import made_up_table


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


@pytest.mark.parametrize(("out", "reason"), [("absent/x.json", "no such folder"), (".", "it is a folder")])
def test_a_file_that_cannot_be_written_is_named_before_the_training(tmp_path: Path, out: str, reason: str) -> None:
    """It was "No such file or directory", with the advice to free some space, after the training."""
    made_up_table(5).write(tmp_path / "table.json")
    ran = run_here(tmp_path, "train", "table.json", "-o", out)
    assert ran.status == 2
    assert (
        f"the trained models cannot be written: {reason}\n   at: {out}\n next: name another file with -o" in ran.stderr
    )
    assert "training on" not in ran.stderr


def test_without_a_name_the_file_that_searches_use_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert train.FILE == ranker.FILE
    installed = tmp_path / "installed.json"
    monkeypatch.setattr(train, "FILE", installed)
    made_up_table(5).write(tmp_path / "table.json")
    ran = run_here(tmp_path, "train", "table.json", "--order", "cost_model")
    assert ran.status == 0, ran.stderr
    assert f"{installed}: " in ran.stdout.replace("\n", "")
    models = read_models(installed)
    assert models is not None
    assert models.about["gpus"] == ["made up"]
