"""Outcomes of the corpora on a device, as entries of the ledger."""

from __future__ import annotations

import json
from pathlib import Path

from tests.ledger.entry import Entry


def entries_of(file: Path) -> list[Entry]:
    """The outcome of each kernel, with what failed where that was written."""
    verdicts = json.loads(file.read_text(encoding="utf-8"))["verdicts"]
    return [
        Entry(verdict["file"], (" ".join(filter(None, [verdict["kind"], verdict.get("failed", "")])),))
        for verdict in verdicts
    ]
