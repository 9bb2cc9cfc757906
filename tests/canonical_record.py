"""Compare two runs of the same replies: by records without dates, durations and identifiers."""

from __future__ import annotations

import json
from typing import Any

from kernel_lsp.core.verdict import Verdict
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.model_records import SPENDING, ModelRecords

VOLATILE = frozenset(("date", "run_id", "files", "from_cache", "source_file", "file"))
SECONDS_SUFFIX = "_s"
"""Suffix of fields with durations, which are excluded everywhere."""


def canonical_record(archive: Archive, run_id: str) -> str:
    """Return JSON lines: the task, proposals in order, replies by key, candidates by id, verdicts by id and depth."""
    records = ModelRecords(archive, run_id)
    lines: list[Any] = [{"task": json.loads(archive.run(run_id).task_json or "null")}]
    lines += [{"proposal": proposal.model_dump(mode="json")} for proposal in records.proposals()]
    lines += [{"value": name, "is": value} for name, value in records.values() if name != SPENDING]
    lines += [{"reply": recorded.model_dump(mode="json")} for recorded in records.replies()]
    candidates = {candidate.id: candidate.text for candidate in archive.candidates(run_id)}
    lines += [{"candidate": id_, "text": candidates[id_]} for id_ in sorted(candidates)]
    verdicts = sorted(archive.verdicts(run_id), key=lambda verdict: (verdict.candidate_id, verdict.depth))
    lines += [{"verdict": _verdict(verdict)} for verdict in verdicts]
    ends = [event for event in archive.events(run_id) if event.kind == "run_finished"]
    lines += [
        {"end": {"candidate_id": end.candidate_id, "reason": end.reason, "stopped": end.stopped}} for end in ends[-1:]
    ]
    return "".join(json.dumps(_lasting(line), sort_keys=True) + "\n" for line in lines)


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict; for a full check, which draws an unpredictable case, only the kind of its outcome."""
    found = verdict.model_dump(mode="json")
    if verdict.depth == "full":
        found |= {"outcome": verdict.outcome.kind, "notes": [], "findings": []}
    return found


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        lasting = (name for name in value if name not in VOLATILE and not name.endswith(SECONDS_SUFFIX))
        return {name: _lasting(value[name]) for name in lasting}
    return [_lasting(inner) for inner in value] if isinstance(value, list) else value
