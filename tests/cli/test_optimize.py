"""`kernel-lsp optimize`, from the outside."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.cli.optimize import next_step
from kernel_lsp.core.event import RunFinished
from kernel_lsp.core.recommendation import Recommendation
from kernel_lsp.evolve.archive.archive import Archive, workspace_lock
from kernel_lsp.export.python.runtime_text import RUNTIME_MODULE
from tests.cli.commands import SCALE, Ran, command, environment, run, write

QUICK = ("--device", "cpu", "--generations", "2", "--proposals", "3")


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    folder = tmp_path_factory.mktemp("optimized")
    write(folder, SCALE)
    return folder, run(folder, "optimize", "model.py::scale", "--json", *QUICK)


def test_it_ends_with_a_verified_kernel_and_status_0(optimized: tuple[Path, Ran]) -> None:
    _, ran = optimized
    assert ran.status == 0, ran.stderr
    assert ran.json["candidate_id"] is not None
    assert ran.json["n_correct"] >= 1


def test_stdout_holds_one_json_object_and_nothing_else(optimized: tuple[Path, Ran]) -> None:
    _, ran = optimized
    assert ran.stdout.count("\n") == 1
    assert ran.json["schema_version"] == 1


def test_the_files_are_beside_the_source_in_kernels(optimized: tuple[Path, Ran]) -> None:
    folder, ran = optimized
    names = ["scale.cu", "scale.py", f"{RUNTIME_MODULE}.py", "__init__.py"]
    assert [Path(file).name for file in ran.json["files"]] == names
    text = (folder / "kernels" / "scale.cu").read_text()
    assert "// task: ../model.py::scale" in text


def test_every_number_says_its_kind_gpu_shapes_dtypes_and_date(optimized: tuple[Path, Ran]) -> None:
    _, ran = optimized
    for comparison in ran.json["comparisons"].values():
        for number in (comparison["ours"], comparison["baseline"]):
            assert number["kind"] == "estimated"
            assert number["gpu"] == "H200"
            assert number["low_us"] <= number["time_us"] <= number["high_us"]
            assert number["shapes"]
            assert number["dtypes"]
            assert number["date"]


def test_the_written_kernel_passes_check_through_its_own_task_line(optimized: tuple[Path, Ran]) -> None:
    folder, _ = optimized
    ran = run(folder, "check", "kernels/scale.cu", "--device", "cpu", "--json")
    assert ran.status == 0, ran.stdout + ran.stderr
    assert ran.json["outcome"]["kind"] == "correct"


def test_a_kernel_that_someone_broke_fails_check_with_status_1(optimized: tuple[Path, Ran]) -> None:
    folder, _ = optimized
    kernel = folder / "kernels" / "scale.cu"
    broken = folder / "kernels" / "broken.cu"
    broken.write_text(kernel.read_text().replace("1.0f", "1.001f"))
    assert broken.read_text() != kernel.read_text()
    ran = run(folder, "check", str(broken), "--device", "cpu", "--json")
    assert ran.status == 1, ran.stderr
    assert ran.json["outcome"]["kind"] == "mismatch"


def test_a_finished_run_resumes_to_the_same_end_without_evaluating_again(optimized: tuple[Path, Ran]) -> None:
    folder, first = optimized
    again = run(folder, "optimize", "--resume", "last", "--json")
    assert again.status == 0, again.stderr
    assert again.json["candidate_id"] == first.json["candidate_id"]
    assert again.json["reason"] == first.json["reason"]


def _optimizing(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("optimize", "model.py::scale", *QUICK),
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _rows(folder: Path, table: str) -> int:
    """Return how many rows a table of the archive has, 0 where there is no archive yet; the archive is only read."""
    try:
        with closing(
            sqlite3.connect(f"file:{folder / '.kernel-lsp' / 'archive.sqlite3'}?mode=ro", uri=True)
        ) as archive:
            return int(archive.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


@pytest.mark.parametrize("killed_after_the_first_of", ["runs", "candidates", "verdicts"])
def test_a_killed_run_resumes_and_loses_and_repeats_nothing(
    tmp_path: Path, killed_after_the_first_of: str, optimized: tuple[Path, Ran]
) -> None:
    write(tmp_path, SCALE)
    process = _optimizing(tmp_path)
    while not _rows(tmp_path, killed_after_the_first_of):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.kill()
    process.communicate()
    with Archive(tmp_path) as archive:
        before = archive.verdicts(archive.run("last").run_id)
    resumed = run(tmp_path, "optimize", "--resume", "last", "--json")
    assert resumed.status == 0, resumed.stderr
    assert resumed.json["candidate_id"] == optimized[1].json["candidate_id"]
    with Archive(tmp_path) as archive:
        after = archive.verdicts(archive.run("last").run_id)
    assert after[: len(before)] == before
    keys = [(verdict.candidate_id, verdict.depth) for verdict in after]
    assert len(keys) == len(set(keys))


def test_a_run_killed_before_it_is_in_the_archive_leaves_nothing_to_resume(tmp_path: Path) -> None:
    write(tmp_path, SCALE)
    process = _optimizing(tmp_path)
    process.kill()
    process.communicate()
    resumed = run(tmp_path, "optimize", "--resume", "last")
    assert resumed.status == 2
    assert "there are no runs here" in resumed.stderr


def test_ctrl_c_ends_with_130_and_says_how_to_resume(tmp_path: Path) -> None:
    write(tmp_path, SCALE)
    process = subprocess.Popen(
        command("optimize", "model.py::scale", "--device", "cpu", "--generations", "50", "--proposals", "50"),
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background of a shell has them ignore it, and what they start inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("generation"):
            break
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "--resume" in said
    assert "Traceback" not in said


def test_a_second_run_in_the_workspace_is_refused_and_told_why(tmp_path: Path) -> None:
    write(tmp_path, SCALE)
    with workspace_lock(tmp_path):
        ran = run(tmp_path, "optimize", "model.py::scale", *QUICK)
    assert ran.status == 2
    assert "another run holds this workspace" in ran.stderr


def test_a_run_whose_code_changed_does_not_resume(optimized: tuple[Path, Ran]) -> None:
    folder, _ = optimized
    write(folder, SCALE.replace("+ 1.0", "+ 2.0"))
    ran = run(folder, "optimize", "--resume", "last")
    write(folder, SCALE)
    assert ran.status == 2
    assert "the code has changed" in ran.stderr


def test_json_goes_on_one_line_even_when_nothing_was_found(tmp_path: Path) -> None:
    ran = run(tmp_path, "doctor", "--json")
    assert json.loads(ran.stdout)["checks"]


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("apply", "review kernel and operator, then `kernel-lsp use 7` shows"),
        ("measure", "measure on a machine with a GPU; then `kernel-lsp use 7` shows"),
        ("keep", "review kernel and operator, then `kernel-lsp use 7` shows"),
    ],
)
def test_the_next_step_is_to_measure_where_times_do_not_decide(action: Any, said: str) -> None:
    advice = Recommendation(
        action=action, ratio=1.04, against="compile", kind="estimated", why="", is_complete=True,
        remedy="measure on a machine with a GPU" if action == "measure" else "",
    )  # fmt: skip
    finished = RunFinished(
        run_id="7", candidate_id="1", reason="", n_proposed=1, n_built=1, n_correct=1, recommendation=advice,
        files=("kernels/f.cu", "kernels/f.py"),
    )  # fmt: skip
    assert next_step(finished).startswith(said)
