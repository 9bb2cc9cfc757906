"""Archives of several workspaces become one, with where each run comes from."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.errors import UserError
from kernel_lsp.evolve.archive.archive import ARCHIVE_NAME, FOLDER_NAME, Archive, merge_archives


def workspace(folder: Path, text: str) -> str:
    """Write an archive with one run of one candidate, and return the run's id."""
    with Archive(folder) as archive:
        run_id = archive.start_run("model.py::f", {"seed": 1})
        archive.save_candidate(run_id, Candidate(text=text, origin=Origin(proposer="user")))
    return run_id


def test_runs_and_texts_are_merged_with_their_origin(tmp_path: Path) -> None:
    runs = [workspace(tmp_path / name, f"// {name}") for name in "ab"]
    merge_archives([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    with Archive(tmp_path / "c") as archive:
        assert {record.run_id for record in archive.runs()} == set(runs)
        assert [archive.candidates(run_id)[0].text for run_id in runs] == ["// a", "// b"]
        origins = dict(archive.rows("SELECT run_id, source FROM origins"))
    assert origins == {runs[0]: str(tmp_path / "a"), runs[1]: str(tmp_path / "b")}


def test_merging_again_adds_nothing_and_keeps_the_first_origin(tmp_path: Path) -> None:
    run_id = workspace(tmp_path / "a", "// a")
    merge_archives([tmp_path / "a"], tmp_path / "b")
    again = merge_archives([tmp_path / "b", tmp_path / "a"], tmp_path / "c").sources
    assert [(each.runs, each.already_there) for each in again] == [((run_id,), ()), ((), (run_id,))]
    with Archive(tmp_path / "c") as archive:
        assert str(tmp_path / "a") in {row[0] for row in archive.rows("SELECT source FROM origins")}


def test_two_runs_of_one_id_are_refused(tmp_path: Path) -> None:
    run_id = workspace(tmp_path / "a", "// a")
    merge_archives([tmp_path / "a"], tmp_path / "b")
    with Archive(tmp_path / "b") as archive, archive.writing() as db:
        db.execute("UPDATE runs SET started = 'earlier'")
    with pytest.raises(UserError, match=run_id):
        merge_archives([tmp_path / "a"], tmp_path / "b")


def test_a_folder_without_runs_is_refused_and_stays_empty(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no archive"):
        merge_archives([tmp_path], tmp_path / "c")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("is_database", [False, True])
def test_a_file_that_is_no_archive_is_named_and_nothing_is_merged(tmp_path: Path, *, is_database: bool) -> None:
    workspace(tmp_path / "a", "// a")
    file = tmp_path / "a" / FOLDER_NAME / ARCHIVE_NAME
    if is_database:
        with closing(sqlite3.connect(file)) as db:
            db.execute("DROP TABLE candidates")
            db.commit()
    else:
        file.write_text("no database" * 100)
    with pytest.raises(UserError, match="cannot be read") as raised:
        merge_archives([tmp_path / "a"], tmp_path / "b")
    assert raised.value.file == str(file)
    with Archive(tmp_path / "b") as archive:
        assert list(archive.runs()) == []
