"""A run of 10 generations x 8 proposals through litellm against a scripted server, and the same run from its replay.

    python benchmarks/model_run_proof.py [--generations 10] [--proposals 8] [--kills 20]

The server (tests/llm) speaks real HTTP and does what providers do, well and badly: kernels that are right, wrong,
racing, out of bounds or do not compile; prose, truncated and malformed replies; 429 with Retry-After, 500, slow
streams, dropped connections. It is no model: this proves plumbing, and says nothing of how well models write kernels.

It holds that the run ends with a verified kernel, under its budget, with its key nowhere on disk; that a replay of its
recorded replies gives the same canonical record byte for byte; and that a replay killed with signal 9 at random moments
and resumed gives it, too. Exit status 1 when something does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernel_lsp.evolve.archive.archive import FOLDER_NAME, Archive
from kernel_lsp.evolve.archive.model_records import canonical_record
from tests.llm.chat_server import ChatServer
from tests.llm.provider_script import TARGET, answer

KEY = "sk-proof-0123456789abcdefghijklmnop"
BUDGET_USD = 5.0
PRICES = "3:15"
DEADLINE_S = 1800.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Prove that runs of models end, repeat and resume.")
    parser.add_argument("--generations", type=int, default=10)
    parser.add_argument("--proposals", type=int, default=8)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return int(not Proof(Path(folder), options).holds())


class Proof:
    """Runs it all in folders below `folder`, and prints what it finds."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder, self._options = folder, options
        self._recording = folder / "recording.jsonl"

    def holds(self) -> bool:
        live = self._workspace("live")
        with ChatServer(answer) as server:
            limits = ("--budget", str(BUDGET_USD), "--record", str(self._recording))
            started = time.monotonic()
            result = self._finish(live, *self._options_of_run(), *limits, base_url=server.base_url)
            live_s = time.monotonic() - started
        record = _record(live)
        print(f"live: {live_s:.0f} s, {len(server.requests)} HTTP requests, {_summary(result)}")
        checks = {
            "it ends with a verified kernel": result.get("candidate_id") is not None,
            "it stays under its budget": 0 < result.get("cost_usd", 0) <= BUDGET_USD,
            "its key went to the server": server.keys == {KEY},
            "its key is nowhere on disk": not _files_with(self._folder, KEY),
        }
        started = time.monotonic()
        replayed = self._workspace("replayed")
        self._finish(replayed, *self._options_of_run(), "--replay", str(self._recording))
        replay_s = time.monotonic() - started
        begun = (replayed / FOLDER_NAME / ".gitignore").stat().st_mtime
        active_s = time.time() - begun  # from the archive's first moment to the end of the process
        checks["its replay has the same record, byte for byte"] = _record(replayed) == record
        print(f"replay: {replay_s:.0f} s, {len(record)} bytes of record")
        draw = random.Random(self._options.seed)
        n_same = sum(self._killed(n, draw.uniform(0.0, active_s), record) for n in range(self._options.kills))
        checks[f"{n_same} of {self._options.kills} killed replays resumed to the same record"] = (
            n_same == self._options.kills
        )
        for text, holds in checks.items():
            print(f"{'yes' if holds else 'NO '}  {text}")
        return all(checks.values())

    # --- below

    def _killed(self, number: int, seconds: float, record: str) -> bool:
        workspace = self._workspace(f"killed-{number}")
        arguments = (*self._options_of_run(), "--replay", str(self._recording))
        process = subprocess.Popen(
            _command(*arguments),
            cwd=workspace,
            env=self._environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _wait_for(workspace / FOLDER_NAME / "archive.sqlite3", process)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        n_before = _n_proposals(workspace)
        has_run = n_before is not None
        self._finish(workspace, *(("--resume", "last", "--json") if has_run else arguments))
        is_same = _record(workspace) == record
        end = "same" if is_same else "DIFFERENT"
        print(f"killed {seconds:5.1f} s into the run with {n_before or 0} proposals settled: {end}")
        return is_same

    def _options_of_run(self) -> tuple[str, ...]:
        counts = ("--generations", str(self._options.generations), "--proposals", str(self._options.proposals))
        models = ("--model", "openai/scripted-a", "--model", "openai/scripted-b")
        return ("model.py::scale", "--device", "cpu", *counts, *models, "--json")

    def _workspace(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir()
        (folder / "pyproject.toml").write_text("")  # a workspace of its own
        (folder / "model.py").write_text(TARGET)
        return folder

    def _finish(self, workspace: Path, *arguments: str, base_url: str = "") -> dict[str, object]:
        result = subprocess.run(
            _command(*arguments),
            cwd=workspace,
            env=self._environment(base_url),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        (workspace / "stderr.log").write_text(result.stderr)
        if result.returncode not in (0, 1):
            print(result.stderr[-3000:], file=sys.stderr)
            return {}
        return dict(json.loads(result.stdout))

    def _environment(self, base_url: str = "") -> dict[str, str]:
        settings = {"KERNEL_LSP_MODEL_PRICES": PRICES, "KERNEL_LSP_EARLY_STOP": "off", "OPENAI_API_KEY": KEY}
        if base_url:
            settings["KERNEL_LSP_MODEL_BASE_URL"] = base_url
        cache = {"XDG_CACHE_HOME": str(self._folder / "cache"), "KERNEL_LSP_PYTHON": sys.executable}
        return {**os.environ, **settings, **cache, "PYTHONPATH": str(ROOT)}


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kernel_lsp", "optimize", *arguments]


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the run has begun: before, there is nothing to lose."""
    give_up = time.monotonic() + DEADLINE_S
    while not path.exists() and process.poll() is None and time.monotonic() < give_up:
        time.sleep(0.02)


def _record(workspace: Path) -> str:
    with Archive(workspace) as archive:
        runs = archive.runs()
        return canonical_record(archive, runs[0].run_id) if runs else ""


def _n_proposals(workspace: Path) -> int | None:
    """Count the proposals that were settled; None when the run had not begun."""
    if not (workspace / FOLDER_NAME).exists():
        return None
    with Archive(workspace) as archive:
        runs = archive.runs()
        if not runs:
            return None
        return int(archive.rows("SELECT COUNT(*) FROM proposals WHERE run_id = ?", (runs[0].run_id,))[0][0])


def _files_with(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def _summary(result: dict[str, object]) -> str:
    names = ("n_model_calls", "n_proposed", "n_built", "n_correct", "cost_usd", "stopped")
    return ", ".join(f"{name} {result.get(name)}" for name in names)


if __name__ == "__main__":
    sys.exit(main())
