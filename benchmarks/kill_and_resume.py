"""Kills `kernel-lsp optimize` at random moments, resumes it, and looks at what the archive kept.

    python benchmarks/kill_and_resume.py [--kills 20] [--seed 0]

Each round starts a run in a fresh workspace, kills it with signal 9 at a random moment of the time that a whole run
takes, and resumes it until it ends. It then holds: the same winner as an undisturbed run, every verdict that was there
before the kill still there, and no candidate evaluated twice at one depth. Exit status 1 when a round fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.core.verdict import Verdict
from kernel_lsp.evolve.archive.archive import FOLDER_NAME, Archive

ROOT = Path(__file__).resolve().parent.parent
TARGET = "rms_norm.py::RMSNorm"
OPTIONS = ("--device", "cpu", "--generations", "2", "--proposals", "6", "--json")
DEADLINE_S = 600.0


@dataclass(frozen=True)
class Round:
    """One kill. `n_before` verdicts were in the archive then, `n_after` when the resumed run had ended."""

    killed_after_s: float
    n_before: int
    n_after: int
    problem: str


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill and resume runs.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        winner = _finish(_workspace(Path(folder) / "undisturbed"), "optimize", TARGET)
        whole_s = time.monotonic() - started
        print(f"undisturbed: {winner} in {whole_s:.1f} s")
        rounds = [_round(Path(folder) / str(n), draw.uniform(0.1, whole_s), winner) for n in range(options.kills)]
    n_failed = sum(bool(round_.problem) for round_ in rounds)
    print(f"{len(rounds) - n_failed} of {len(rounds)} resumed to the same end, nothing lost, nothing evaluated twice")
    return int(n_failed > 0)


def _round(folder: Path, seconds: float, winner: str) -> Round:
    workspace = _workspace(folder)
    process = subprocess.Popen(
        _command("optimize", TARGET), cwd=workspace, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = _verdicts(workspace)
    has_run = (workspace / FOLDER_NAME).exists()
    resumed = _finish(workspace, *(("optimize", "--resume", "last") if has_run else ("optimize", TARGET)))
    after = _verdicts(workspace)
    round_ = Round(seconds, len(before), len(after), _problem(before, after, resumed, winner))
    print(f"killed after {seconds:5.1f} s: {len(before):2} verdicts then, {len(after):2} at the end {round_.problem}")
    return round_


def _problem(before: list[Verdict], after: list[Verdict], resumed: str, winner: str) -> str:
    if resumed != winner:
        return f"another end: {resumed}"
    if after[: len(before)] != before:
        return "a verdict was lost"
    keys = [(verdict.candidate_id, verdict.depth) for verdict in after]
    return "" if len(keys) == len(set(keys)) else "a candidate was evaluated twice"


def _workspace(folder: Path) -> Path:
    folder.mkdir()
    (folder / "rms_norm.py").write_text((ROOT / "examples" / "rms_norm.py").read_text())
    return folder


def _verdicts(workspace: Path) -> list[Verdict]:
    if not (workspace / FOLDER_NAME).exists():
        return []
    with Archive(workspace) as archive:
        runs = archive.runs()
        return archive.verdicts(runs[0].run_id) if runs else []


def _finish(workspace: Path, *arguments: str) -> str:
    """Run a command to its end; the id of the winner."""
    result = subprocess.run(
        _command(*arguments), cwd=workspace, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    if result.returncode != 0:
        print(result.stderr, file=sys.stderr)
        return f"exit status {result.returncode}"
    return str(json.loads(result.stdout)["candidate_id"])


def _command(*arguments: str) -> list[str]:
    options = OPTIONS if "--resume" not in arguments else ("--json",)
    return [sys.executable, "-m", "kernel_lsp", *arguments, *options]


if __name__ == "__main__":
    os.environ.setdefault("KERNEL_LSP_PYTHON", sys.executable)
    sys.exit(main())
