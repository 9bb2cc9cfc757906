"""A model's recorded replies: the recordings can be read, and what they hold is still judged as it was."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.config import load_settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.llm.recording import read_recording
from kernel_lsp.llm.request import Replied
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.verify.session.session import Session

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks" / "recorded_runs"
TASKS = {task["name"]: task for task in tomllib.loads((FOLDER / "tasks.toml").read_text())["task"]}
RECORDINGS = sorted(FOLDER.glob("*.jsonl"))


def kernels(name: str) -> list[dict[str, Any]]:
    """Return the kernels of a task's search, or of independent proposals where no search was recorded."""
    paths = [FOLDER / f"{name}.{strategy}.kernels.json" for strategy in ("evolve", "best-of-n")]
    return list(json.loads(next(path for path in paths if path.is_file()).read_text()))


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
def test_every_recording_holds_replies_to_its_prompts(recording: Path) -> None:
    asked = [line for line in map(json.loads, recording.read_text().splitlines()) if "request" in line]
    replies = read_recording(recording).outcomes
    assert len(asked) >= (1 if ".refine" in recording.name else 4)
    assert {line["key"] for line in asked} == set(replies)
    assert all(isinstance(reply, Replied) and reply.text for reply in replies.values())


def test_every_task_is_recorded_with_a_kernel_that_is_right() -> None:
    assert len(TASKS) >= 12
    for name in TASKS:
        assert any(kernel["outcome"] == "correct" for kernel in kernels(name)), name


@pytest.mark.parametrize("name", ["linear_relu"])
async def test_recorded_kernels_are_judged_as_they_were(name: str, tmp_path: Path) -> None:
    """They hold clusters, whose blocks store to each other with `st.async`."""
    recorded, task = kernels(name), TASKS[name]
    settings = load_settings(ROOT, {"device": "cpu", "cache_directory": tmp_path / "cache"})
    async with Session(settings) as session:
        source = read_target(task["target"], ROOT)
        captured = await session.capture(source, with_backward=task["backward"])
        verifier = await session.verifier(source, captured)
        candidates = [Candidate(text=kernel["kernel"], origin=Origin(proposer="user")) for kernel in recorded]
        found = [(await verifier.verify(candidate, "screen")).outcome.kind for candidate in candidates]
    assert found == [kernel["outcome"] for kernel in recorded]


def test_evidence_counts_incorrect_replies_as_the_generator_s_kernel(tmp_path: Path) -> None:
    def verdict(outcome: str, time_us: float) -> dict[str, Any]:
        return {"outcome": outcome, "times": {"t": {"ours_us": time_us}}}

    (tmp_path / "t.best-of-n.kernels.json").write_text("[]")
    measured = {"summary": {"generator": verdict("correct", 8)}}
    kernels = {"best-of-n": [verdict("correct", 4), verdict("crashed", 2)]}
    (tmp_path / "measured.json").write_text(json.dumps({"tasks": {"t": {**measured, "kernels": kernels}}}))
    command = [sys.executable, "benchmarks/recorded_evidence.py", tmp_path, "--measured", tmp_path / "measured.json"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "2 recorded replies of 1 tasks; 1 of 2 = 50%" in shown
    assert "1 replies 1.41x" in shown  # the mean over both replies
    assert "2 replies 2.00x" in shown


def evidence(folder: Path, *options: str | Path) -> str:
    """Return what `recorded_evidence.py` prints of a folder."""
    command = [sys.executable, "benchmarks/recorded_evidence.py", folder, "--measured", folder / "none.json", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_evidence_compares_the_best_correct_reply_with_the_fastest_schedule(tmp_path: Path) -> None:
    reply = {"task": "a", "of": "evolve", "name": "ring", "is_full": False}
    rows = [
        {"task": "a", "subject": "default", "of": "generator", "time_us": 80.0},
        {"task": "a", "subject": "threads.64", "of": "generator", "time_us": 60.0},
        reply | {"subject": "1", "time_us": 20.0, "outcome": "mismatch"},
        reply | {"subject": "2", "time_us": 40.0, "outcome": "correct"},
    ]
    best = tmp_path / "best.json"
    best.write_text(json.dumps({"date": "today", "rows": rows}))
    shown = evidence(tmp_path, "--best", best)
    assert "reply 40.0 (evolve ring, screened), default 80.0 (2.000x), fastest schedule 60.0 (1.500x) of 2" in shown


def test_evidence_keeps_the_generator_s_kernel_where_no_reply_has_a_full_verdict(tmp_path: Path) -> None:
    rows = [
        {"task": "a", "subject": "default", "of": "generator", "time_us": 80.0},
        {
            "task": "a",
            "subject": "1",
            "of": "evolve",
            "name": "n",
            "is_full": False,
            "time_us": 40.0,
            "outcome": "correct",
        },
    ]
    best = tmp_path / "best.json"
    best.write_text(json.dumps({"date": "today", "counted": "full", "rows": rows}))
    assert "no reply counts" in evidence(tmp_path, "--best", best)
    assert "against the generator's default: 1.00x" in evidence(tmp_path, "--best", best)


def write_arm(folder: Path, task: str, arm: str, times_us: Sequence[float | None], conversation_size: int = 8) -> None:
    """Write replies to prompts whose fastest kernel takes 100 us: None if incorrect, 0 if not measured."""
    kernels = [
        {
            "slot": n,
            "outcome": {None: "mismatch", 0.0: ""}.get(us, "correct"),
            "time_us": us,
            "best_before_us": 100.0,
            "conversation": n // conversation_size,
        }
        for n, us in enumerate(times_us)
    ]
    (folder / f"{task}.{arm}.kernels.json").write_text(json.dumps(kernels[::-1]))


def test_evidence_pairs_the_replies_to_the_same_kernels(tmp_path: Path) -> None:
    for task in ("a", "b"):
        write_arm(tmp_path, task, "ordered", [50.0, 25.0])
        write_arm(tmp_path, task, "random", [100.0, 0.0])  # half the speed-up; the second reply was not measured
        write_arm(tmp_path, task, "no_profile", [25.0, 50.0])  # twice and half: the same mean
    shown = evidence(tmp_path)
    assert "ordered    2.828x over 4 prompts (a 2.828x, b 2.828x)" in shown
    assert "random order against ordered, 2 pairs: 0.500x over draws [0.500, 0.500]" in shown
    assert "over 2 pairs of conversations [0.500, 0.500]: a difference" in shown
    assert "without a profile against ordered, 4 pairs: 1.000x over draws [0.500, 2.000]" in shown
    assert "[1.000, 1.000]: no effect that they can show" in shown


def test_evidence_counts_replies_of_one_conversation_as_one(tmp_path: Path) -> None:
    for arm, times_us in (("ordered", [80.0] * 8), ("random", [40.0] * 4 + [72.0] * 4), ("no_profile", [64.0] * 8)):
        write_arm(tmp_path, "a", arm, times_us, conversation_size=4)
    write_arm(tmp_path, "b", "ordered", [50.0] * 8)
    shown = evidence(tmp_path)
    # eight pairs that all gain, written by two conversations that differ
    assert "random order against ordered, 8 pairs: 1.491x over draws [1.491, 1.491]" in shown
    assert "over 2 pairs of conversations [0.036, 62.467]: no effect that they can show" in shown


def test_evidence_leaves_out_arms_that_were_not_measured(tmp_path: Path) -> None:
    write_arm(tmp_path, "a", "ordered", [50.0, 25.0])
    write_arm(tmp_path, "b", "ordered", [0.0, 0.0])
    shown = evidence(tmp_path)
    assert "ordered    2.828x over 2 prompts (a 2.828x)" in shown


def test_evidence_keeps_the_shown_kernel_where_a_reply_is_incorrect_or_slower(tmp_path: Path) -> None:
    write_arm(tmp_path, "a", "ordered", [50.0, 50.0])
    write_arm(tmp_path, "a", "random", [None, 400.0])
    write_arm(tmp_path, "a", "no_profile", [50.0, 50.0])
    shown = evidence(tmp_path)
    assert "random     1.000x over 2 prompts (a 1.000x), timed 1 of 2" in shown
    assert "faster 0" in shown
    assert "random order against ordered, 2 pairs: 0.500x" in shown
