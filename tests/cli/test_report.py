"""`kernel-lsp report`: also of a run that has only begun."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernel_lsp.cli.report import _print_words, main
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.engine.messages import ResultFile, RunResult, RunSummary
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.run.request import OptimizeRequest
from kernel_lsp.server.features.reports import run_report


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run with one candidate that nothing is known of yet."""
    monkeypatch.chdir(tmp_path)
    request = OptimizeRequest(
        target="m.py::f", directory=tmp_path, target_gpu="H200", generations=2, proposals=4, seed=0
    )
    with Archive(tmp_path) as archive:
        run_id = archive.start_run("m.py::f", request.model_dump(mode="json"))
        archive.save_candidate(run_id, Candidate(text="// kernel", origin=Origin(proposer="generator")))
    return run_id


def test_a_run_that_has_only_begun_has_a_report(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("last", as_html=False, out=None, as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["run_id"], report["n_generations"], report["winner_id"]) == (run, 2, None)
    assert [each["text"] for each in report["candidates"]] == ["// kernel"]


def test_the_page_is_written_where_it_is_wanted(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "pages" / "a.html"
    assert main(run, as_html=True, out=page, as_json=False) == 0
    assert capsys.readouterr().out.strip() == str(page)
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_in_words_it_says_that_there_is_no_kernel(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(run, as_html=False, out=None, as_json=False) == 0
    assert "No verified kernel" in capsys.readouterr().out


def test_a_run_that_there_is_not_is_told_with_those_there_are(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("none-such", as_html=False, out=None, as_json=True) == 2
    assert f"{run} (" in capsys.readouterr().err


def test_a_target_names_its_newest_run(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("m.py::f", as_html=False, out=None, as_json=True) == 0
    assert run in capsys.readouterr().out


def test_without_an_archive_a_report_says_where_to_go_and_makes_no_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for as_json in (False, True):
        assert main("last", as_html=False, out=None, as_json=as_json) == 2
        assert "go to the folder of your project" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_names_with_underscores_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    summary = RunSummary(
        run_id="1", target="net/__init__.py::Net", file="/net/__init__.py", symbol="Net", status="finished", started=""
    )
    _print_words(
        run_report(RunResult(summary=summary, files=(ResultFile(path=Path("/kernels/__init__.py"), text=""),)))
    )
    shown = capsys.readouterr().out
    assert "net/__init__.py::Net" in shown
    assert "Not written: /kernels/__init__.py" in shown
