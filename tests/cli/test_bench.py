"""`kernel-lsp bench` as a user runs it, on the CPU: a KernelBench file, a robust-kbench folder, one that is no task."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

from kernel_lsp.core.benchmark import BenchEntry, BenchReport
from tests.cli.commands import SCALE, Ran, command, environment, run, run_here, write

TESTS = Path(__file__).parent.parent
QUICK = ("--device", "cpu", "--generations", "1", "--proposals", "1")


def suite(folder: Path) -> Path:
    """A folder with one task of each kind, copied so that nothing of the corpus is touched."""
    shutil.copytree(TESTS / "robust_kbench_style" / "linear", folder / "suite" / "linear")
    shutil.copy(TESTS / "kernelbench_style" / "level1" / "relu.py", folder / "suite" / "relu.py")
    return folder / "suite"


def bench(folder: Path, *targets: str) -> Ran:
    return run(folder, "bench", *targets, *QUICK, "--json")


def test_a_folder_of_tasks_is_a_suite_with_scores(tmp_path: Path) -> None:
    write(tmp_path, "", "plain.py")
    before = sorted(path.name for path in suite(tmp_path).rglob("*"))
    ran = bench(tmp_path, "suite", "plain.py")
    assert ran.status == 1
    report = ran.json
    assert (report["schema_version"], report["kind"]) == (1, "estimated")
    entries = {entry["target"]: entry for entry in report["entries"]}
    assert {name: entry["status"] for name, entry in entries.items()} == {
        "suite/linear": "verified",
        "suite/relu.py": "verified",
        "plain.py": "refused",
    }
    assert (entries["suite/linear"]["n_covered"], entries["suite/linear"]["n_configurations"]) == (4, 4)
    assert (entries["plain.py"]["n_covered"], entries["suite/relu.py"]["n_covered"]) == (0, 1)
    assert entries["suite/relu.py"]["speedups"]["eager"] > 0
    assert [score["baseline"] for score in report["scores"]] == ["eager", "compile", "best"]
    score = report["scores"][0]
    assert (score["baseline"], score["n_tasks"], score["n_compared"]) == ("eager", 3, 2)
    assert score["fast"][0] == {"p": 0.0, "share": 2 / 3}
    assert sorted(path.name for path in (tmp_path / "suite").rglob("*")) == before
    assert (tmp_path / ".kernel-lsp" / "bench" / "suite_linear" / "linear.cu").is_file()


def test_a_suite_of_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ran = run(tmp_path, "bench", "empty")
    assert ran.status == 2
    assert "holds no KernelBench file" in ran.stderr


def test_an_interrupted_run_prints_its_finished_rows(tmp_path: Path) -> None:
    write(tmp_path, "", "plain.py")
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(200)\n" + SCALE)
    process = subprocess.Popen(
        command("bench", "plain.py", "slow.py::scale", *QUICK, "--json"),
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell ignores it
    )
    assert process.stderr is not None
    while "plain.py: refused" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert [entry["target"] for entry in json.loads(stdout)["entries"]] == ["plain.py"]
    assert "interrupted: 1 of 2 tasks finished; --resume runs the others" in stderr


def test_each_row_has_a_line_as_it_begins_and_ends(tmp_path: Path) -> None:
    write(tmp_path, "", "plain.py")
    (tmp_path / "scale.py").write_text(SCALE)
    said = run_here(tmp_path, "bench", "scale.py::scale", "plain.py", *QUICK).stderr
    assert "2 tasks, at most 15 min each" in said
    assert "scale.py::scale: started" in said
    assert re.search(
        r"1/2 scale.py::scale: verified, [\d.]+ us \(estimated\), .*x vs PyTorch, \d+ s; about \d+ s left", said
    )
    assert re.search(r"2/2 plain.py: refused: .*\n", said)
    resumed = run_here(tmp_path, "bench", "scale.py::scale", "plain.py", *QUICK, "--resume").stderr
    assert "2 of them finished in the last start" in resumed
    assert "started" not in resumed
    again = run_here(tmp_path, "bench", "scale.py::scale", "plain.py", *QUICK).stderr
    assert "2 rows of the last start set aside: --resume keeps them" in again


def test_rows_of_several_reports_are_one_table(tmp_path: Path) -> None:
    for name, date in (("a", "2026-01-02"), ("b", "2026-01-01")):
        entries = (BenchEntry(target=f"{name}.py", status="refused", detail="no rule"),)
        report = BenchReport(kind="none", date=date, entries=entries, scores=())
        (tmp_path / f"{name}.json").write_text(report.model_dump_json())
    ran = run_here(tmp_path, "bench", "--rows", "a.json", "--rows", "b.json", "--write-docs", "page.md")
    assert ran.status == 1
    page = (tmp_path / "page.md").read_text()
    assert "0 of 2 tasks verified, 2026-01-02" in page
    assert page.count("- a.py: no rule") == page.count("- b.py: no rule") == 1
    (tmp_path / "b.json").write_text("{}")
    ran = run_here(tmp_path, "bench", "--rows", "b.json")
    assert ran.status == 2
    assert "no report of a benchmark: not written by `kernel-lsp bench`\n   at: b.json" in ran.stderr
    ran = run_here(tmp_path, "bench", "--rows", "a.json", "a.json")
    assert (ran.status, "give TASKS or --rows, not both" in ran.stderr) == (2, True)


def test_a_task_that_does_not_exist_is_told_before_anything_runs(tmp_path: Path) -> None:
    write(tmp_path, SCALE)
    for kind in ((), ("filter",)):
        ran = run_here(tmp_path, "bench", *kind, "model.py::scale", "gone.py::f")
        assert ran.status == 2
        assert "there is no such file or folder\n   at: gone.py::f" in ran.stderr
    assert not (tmp_path / ".kernel-lsp").exists()


def test_a_machine_that_cannot_run_the_first_task_ends_the_command(tmp_path: Path) -> None:
    write(tmp_path, SCALE)
    for _ in range(3):  # a task that only met this has not taken the command down
        ran = run_here(tmp_path, "bench", "model.py::scale", *QUICK, "--device", "cuda:7", "--resume")
        assert ran.status == 2
        assert "cuda:7" in ran.stderr
        assert "refused" not in ran.stderr + ran.stdout
