"""Outcomes of the corpora on a device, as entries of the ledger."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.ledger.entry import Entry

_EXECUTOR = "PTX executor"


def entries_of(file: Path) -> list[Entry]:
    """The outcome of each kernel in a result of `run_corpora.py --json`, and what failed where the file says so."""
    verdicts = json.loads(file.read_text(encoding="utf-8"))["verdicts"]
    return [_entry(verdict["file"], verdict["kind"], verdict.get("failed", "")) for verdict in verdicts]


def record_for(file: Path) -> str:
    """The name of the record that a result is compared with: the executor and GPUs have one each."""
    device = json.loads(file.read_text(encoding="utf-8"))["device"]
    return "verdicts_cpu.txt" if device.startswith(_EXECUTOR) else "verdicts_gpu.txt"


def comparable(found: Sequence[Entry], recorded: Sequence[Entry]) -> list[Entry]:
    """Return a verdict's record, with the outcome alone where it has no more: older results had no failed cases."""
    only_outcome = {entry.name for entry in recorded if len(entry.lines) == 1}
    return [Entry(entry.name, entry.lines[:1]) if entry.name in only_outcome else entry for entry in found]


def _entry(name: str, kind: str, failed: str) -> Entry:
    return Entry(name, (f"outcome: {kind}", f"failed: {failed}") if failed else (f"outcome: {kind}",))
