"""The ledger of a benchmark run: JSON lines, appended as tasks start and end, from which a second start goes on."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernel_lsp.core.benchmark import BenchEntry

MAX_STARTS = 2
"""Starts of a task that ended with the whole command, after which a resumed run passes it over."""


class BenchLedger:
    """One file. A line that is cut short, as by a crash, is ignored."""

    def __init__(self, path: Path, *, resumed: bool) -> None:
        """Without `resumed`, a ledger of an earlier run is kept beside it, with `.old` behind its name."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if not resumed and path.exists():
            os.replace(path, path.with_name(f"{path.name}.old"))
        self._lines = list(_read(path))

    def finished(self) -> dict[str, BenchEntry]:
        """Return the entries of finished tasks by target; the last one of each counts."""
        found: dict[str, BenchEntry] = {}
        for line in self._lines:
            if line.get("kind") == "finished":
                try:
                    entry = BenchEntry.model_validate(line["entry"])
                except (ValidationError, KeyError):
                    continue  # of another version: the task runs again
                found[entry.target] = entry
        return found

    def is_given_up(self, target: str) -> bool:
        """Return True when the command ended unexpectedly each time that this task ran."""
        count = Counter(line.get("kind") for line in self._lines if line.get("target") == target)
        return count["started"] - count["stopped"] >= MAX_STARTS

    def start(self, target: str) -> None:
        self._append({"kind": "started", "target": target})

    def stop(self, target: str) -> None:
        """Record that the user interrupted the task."""
        self._append({"kind": "stopped", "target": target})

    def finish(self, entry: BenchEntry) -> None:
        self._append({"kind": "finished", "entry": entry.model_dump(mode="json")})

    def _append(self, line: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def ledger_name(identity: Mapping[str, Any]) -> str:
    """Return the file name for what a run was asked: the same request finds its ledger again."""
    return f"{hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:12]}.jsonl"


def _read(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield line
