"""`kernel-lsp bench filter` as a user runs it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.commands import run, run_here, write

FOLDER = Path(__file__).parent.parent / "robust_kbench_style" / "max_pool2d"
GOOD = """
import torch


# kernel-lsp: x=f32[8, 16], y=f32[8, 16]
def multiply(x, y):
    return x * y
"""
BAD = """
import torch


# kernel-lsp: x=f32[8, 16], y=f32[8, 16]
def ignores_one(x, y):
    return x.relu().relu()
"""


def test_good_tasks_end_with_0(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    ran = run(tmp_path, "bench", "filter", "model.py::multiply")
    assert ran.status == 0
    assert "model.py::multiply: good" in ran.stdout
    assert "1/1 task passed every filter" in ran.stdout


def test_a_bad_task_ends_with_1_and_says_which_filter_and_where(tmp_path: Path) -> None:
    write(tmp_path, BAD)
    write(tmp_path, "", "plain.py")
    ran = run(tmp_path, "bench", "filter", "model.py::ignores_one", "plain.py", "--json")
    assert ran.status == 1
    assert ran.json["schema_version"] == 1
    bad, plain = ran.json["tasks"]
    flagged = {result["filter"]: result for result in bad["results"] if result["status"] == "flagged"}
    assert set(flagged) == {"inputs-impact", "redundancy"}
    assert flagged["inputs-impact"]["message"] == "no output depends on the input 'y'"
    assert (flagged["redundancy"]["line"], flagged["inputs-impact"]["threshold"]) == (7, 0.01)
    assert plain["refused"].startswith("plain.py:1: the target names no symbol")


def test_a_task_that_raises_names_the_configuration(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FOLDER, tmp_path / "max_pool2d"))
    file = folder / "func_forward.py"
    file.write_text(file.read_text().replace("    return F", "    assert x.shape[1] != 5\n    return F"))
    ran = run(tmp_path, "bench", "filter", "max_pool2d", "--json")
    assert ran.status == 1
    assert (
        "configuration 'kernel_size=2, stride=2, padding=0, dilation=1, batch_size=3,"
        in ran.json["tasks"][0]["refused"]
    )


def test_without_a_task_it_says_how_to_call_it(tmp_path: Path) -> None:
    ran = run(tmp_path, "bench", "filter")
    assert ran.status == 2
    assert "kernel-lsp bench filter FOLDER" in ran.stderr


def test_options_that_it_would_ignore_are_refused_and_a_sample_is_drawn(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    ignored = ("--resume", "--proposals", "2", "--device", "ssh://host")
    ran = run_here(tmp_path, "bench", "filter", "model.py::multiply", *ignored)
    assert ran.status == 2
    assert "bench filter has no --resume, --proposals, --device ssh://host" in ran.stderr
    write(tmp_path, "", "plain.py")
    ran = run_here(tmp_path, "bench", "filter", "plain.py", "plain.py", "--sample", "1")
    assert "0/1 task passed" in ran.stdout
