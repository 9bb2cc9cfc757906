"""Records of a run of models: replies as received, proposals with their history, and values fixed at its start. They
suffice to resume or repeat the run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from kernel_lsp.core.model import Noun
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.llm.judges.calibration import Judgement
from kernel_lsp.llm.recording import RecordedReply, RecordedValue, write_recording
from kernel_lsp.llm.request import ModelFailed, Replied

ProposalEnd = Literal["right", "wrong", "failed", "unreadable", "duplicate", "held_back"]


class Round(Noun):
    """One version of a proposal: the request, the reply and the outcome. `outcome` is the verdict's kind; empty when
    there was nothing to evaluate."""

    operator: str
    prompt: str
    prompt_version: int
    prompt_hash: str
    request_keys: tuple[str, ...]
    name: str = ""
    thought: str = ""
    candidate_id: str | None = None
    program_hash: str = ""
    outcome: str = ""
    message: str = ""
    judgements: tuple[Judgement, ...] = ()


class ProposalRecord(Noun):
    """One proposal from the draw of its arms to its end. It is independent of timing, except for measured times."""

    slot: int
    generation: int
    island: int
    operator: str
    model: str
    model_index: int
    temperature: float
    hint_kind: str = ""
    hint: str = ""
    parents: tuple[str, ...] = ()
    rounds: tuple[Round, ...] = ()
    end: ProposalEnd
    message: str = ""
    cause: str = ""
    """Reason for the missing reply, for ``failed``."""
    candidate_id: str | None = None
    time_us: float | None = None
    parent_us: float | None = None
    gain: float = 0.0
    cost_usd: float = 0.0


class ModelRecords:
    """The tables of one run."""

    def __init__(self, archive: Archive, run_id: str) -> None:
        self._archive, self._run_id = archive, run_id

    def reply(self, key: str) -> Replied | ModelFailed | None:
        """Return the recorded outcome, if there is one."""
        rows = self._archive.rows("SELECT recorded FROM replies WHERE run_id = ? AND key = ?", (self._run_id, key))
        return RecordedReply.model_validate_json(rows[0][0]).outcome if rows else None

    def save_reply(self, recorded: RecordedReply) -> None:
        with self._archive.writing() as db:
            db.execute(
                "INSERT OR REPLACE INTO replies VALUES (?, ?, ?)",
                (self._run_id, recorded.key, recorded.model_dump_json()),
            )

    def replies(self) -> list[RecordedReply]:
        """Return every recorded reply, ordered by key."""
        rows = self._archive.rows("SELECT recorded FROM replies WHERE run_id = ? ORDER BY key", (self._run_id,))
        return [RecordedReply.model_validate_json(row[0]) for row in rows]

    def save_proposal(self, record: ProposalRecord) -> None:
        """Store the proposal; a resumed run writes the same again."""
        with self._archive.writing() as db:
            db.execute(
                "INSERT OR REPLACE INTO proposals VALUES (?, ?, ?)",
                (self._run_id, record.slot, record.model_dump_json()),
            )

    def proposals(self) -> list[ProposalRecord]:
        """Return every finished proposal, in order."""
        rows = self._archive.rows("SELECT record FROM proposals WHERE run_id = ? ORDER BY slot", (self._run_id,))
        return [ProposalRecord.model_validate_json(row[0]) for row in rows]

    def value(self, name: str) -> str | None:
        """Return the value fixed under that name at the start of the run."""
        rows = self._archive.rows("SELECT value FROM run_values WHERE run_id = ? AND name = ?", (self._run_id, name))
        return str(rows[0][0]) if rows else None

    def values(self) -> list[tuple[str, str]]:
        """Return all fixed values, by name."""
        rows = self._archive.rows("SELECT name, value FROM run_values WHERE run_id = ? ORDER BY name", (self._run_id,))
        return [(str(name), str(value)) for name, value in rows]

    def save_value(self, name: str, value: str) -> None:
        with self._archive.writing() as db:
            db.execute("INSERT OR REPLACE INTO run_values VALUES (?, ?, ?)", (self._run_id, name, value))


SPENDING = "spending"
"""Name of the value that holds what was spent."""


def record_run(archive: Archive, run_id: str, path: Path) -> int:
    """Write the run's replies, for `--replay`; return their number. Raises OSError."""
    records = ModelRecords(archive, run_id)
    values = [RecordedValue(name=name, value=value) for name, value in records.values() if name != SPENDING]
    replies = records.replies()
    write_recording(path, values, replies)
    return len(replies)
