"""The archive keeps what finished, once, and says who holds the workspace."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.event import CandidateEvaluated
from kernel_lsp.core.verdict import Unsupported, Verdict
from kernel_lsp.errors import EnvironmentProblem, UserError, WorkspaceBusyError
from kernel_lsp.evolve.archive.archive import Archive, workspace_lock


def _candidate(text: str = "// kernel") -> Candidate:
    return Candidate(text=text, origin=Origin(proposer="generator", schedule={"block": 256}))


def _save(archive: Archive, run_id: str, candidate: Candidate) -> Verdict:
    archive.save_candidate(run_id, candidate)
    verdict = Verdict(candidate_id=candidate.id, device="test", outcome=Unsupported(message="no device"))
    event = CandidateEvaluated(
        candidate_id=candidate.id, generation=0, outcome="unsupported", message="", score_us=None, score_kind="none"
    )
    archive.save_verdict(run_id, verdict, event)
    return verdict


def test_what_was_saved_comes_back_after_reopening(tmp_path: Path) -> None:
    with Archive(tmp_path) as archive:
        run_id = archive.start_run("model.py::f", {"seed": 1})
        verdict = _save(archive, run_id, _candidate())
    with Archive(tmp_path) as archive:
        assert archive.run("last").request == {"seed": 1}
        assert archive.verdict(run_id, verdict.candidate_id, "full") == verdict
        assert archive.candidates(run_id) == [_candidate()]
        assert [event.kind for event in archive.events(run_id)] == ["candidate_evaluated"]


def test_a_second_verdict_for_one_candidate_is_refused_and_its_event_too(tmp_path: Path) -> None:
    with Archive(tmp_path) as archive:
        run_id = archive.start_run("model.py::f", {})
        _save(archive, run_id, _candidate())
        with pytest.raises(sqlite3.IntegrityError):
            _save(archive, run_id, _candidate())
        assert len(archive.events(run_id)) == 1


def test_equal_texts_are_stored_once(tmp_path: Path) -> None:
    with Archive(tmp_path) as archive:
        for target in ("a", "b"):
            archive.save_candidate(archive.start_run(target, {}), _candidate())
        assert archive._connection.execute("SELECT COUNT(*) FROM artifacts").fetchone() == (1,)


def test_an_unknown_run_names_the_known_ones(tmp_path: Path) -> None:
    with Archive(tmp_path) as archive:
        run_id = archive.start_run("a", {})
        with pytest.raises(UserError, match="no run 'x'") as caught:
            archive.run("x")
        assert run_id in caught.value.next_step


def test_the_folder_ignores_itself_in_git(tmp_path: Path) -> None:
    with Archive(tmp_path) as archive:
        assert (archive.folder / ".gitignore").read_text() == "*\n"


def test_a_second_run_in_one_workspace_is_told_who_holds_it(tmp_path: Path) -> None:
    with workspace_lock(tmp_path), pytest.raises(WorkspaceBusyError, match="process"), workspace_lock(tmp_path):
        pass


def test_the_lock_is_free_after_use(tmp_path: Path) -> None:
    with workspace_lock(tmp_path):
        pass
    with workspace_lock(tmp_path):
        pass


def test_a_file_that_is_no_archive_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / ".kernel-lsp").mkdir()
    (tmp_path / ".kernel-lsp" / "archive.sqlite3").write_text(
        "this is not a database, and long enough to be read as one"
    )
    with pytest.raises(EnvironmentProblem, match="archive cannot be opened"):
        Archive(tmp_path)
