"""Every example, from its file to a verified kernel, by the command that a user types."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.core.event import RunFinished
from kernel_lsp.core.verdict import Verdict
from tests.corpora import sample

EXAMPLES = Path(__file__).parent.parent / "examples"
ENTRIES = tomllib.loads((EXAMPLES / "examples.toml").read_text())["example"]
CHOSEN = sample(ENTRIES, lambda entry: entry["target"], every=16)
DEADLINE_S = 280.0
"""Under the deadline of a test, so that what the command said is shown."""


@pytest.mark.skipif(
    len(CHOSEN) < len(ENTRIES), reason=f"{len(ENTRIES) - len(CHOSEN)} of {len(ENTRIES)} are left to `make examples`"
)
def test_all_examples_were_tried() -> None:
    assert CHOSEN == ENTRIES


@pytest.mark.parametrize("entry", CHOSEN, ids=lambda entry: entry["target"])
def test_an_example_ends_with_a_verified_kernel(entry: dict[str, Any], tmp_path: Path) -> None:
    passes = ["--backward"] if entry["backward"] else []
    search = ["--generations", "1", "--proposals", "2"]
    target = str(EXAMPLES / entry["target"])
    done = run("optimize", target, "--out", str(tmp_path), "--apply", *passes, *search, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    finished = RunFinished.model_validate_json(done.stdout)
    assert finished.candidate_id is not None
    assert [Path(file).suffix for file in finished.files[:2]] == [".cu", ".py"]
    assert all(Path(file).is_file() for file in finished.files)


def test_the_hand_written_softmax_is_correct(tmp_path: Path) -> None:
    check_softmax(tmp_path, replace={}, returncode=0, outcome="correct")


def test_a_softmax_that_skips_the_end_of_a_row_is_wrong(tmp_path: Path) -> None:
    shortened = {"D / 4; i += BLOCK) {\n        const float4 v": "D / 4 - 1; i += BLOCK) {\n        const float4 v"}
    check_softmax(tmp_path, replace=shortened, returncode=1, outcome="mismatch")


def test_a_softmax_that_reads_past_the_end_is_wrong(tmp_path: Path) -> None:
    too_far = {"i < D / 4; i += BLOCK) {\n        part": "i <= D / 4; i += BLOCK) {\n        part"}
    check_softmax(tmp_path, replace=too_far, returncode=1, outcome="crashed")


def check_softmax(folder: Path, *, replace: dict[str, str], returncode: int, outcome: str) -> None:
    text = (EXAMPLES / "row_softmax.cu").read_text()
    for old, new in replace.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "row_softmax.cu").write_text(text)
    shutil.copy(EXAMPLES / "row_softmax.py", folder)
    done = run("check", "row_softmax.cu", folder=folder)
    assert done.returncode == returncode, done.stderr
    assert Verdict.model_validate_json(done.stdout).outcome.kind == outcome


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command in a workspace of its own: a folder with a pyproject.toml."""
    (folder / "pyproject.toml").touch()
    command = [sys.executable, "-m", "kernel_lsp", *arguments, "--device", "cpu", "--json"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
