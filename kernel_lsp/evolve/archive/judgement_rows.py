"""Rows for training verifiers: each judgement with its prompt, its reply and the truth."""

from __future__ import annotations

import json
from collections.abc import Iterator

from kernel_lsp.core.model import Noun
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.dataset import Row
from kernel_lsp.evolve.archive.model_records import ModelRecords
from kernel_lsp.llm.judges.verdicts import Judgement, JudgeName
from kernel_lsp.llm.request import Replied

FAULTS: dict[JudgeName, frozenset[str]] = {
    "compilation": frozenset(("build_failed",)),
    "memory": frozenset(("crashed",)),
    "numerics": frozenset(("mismatch",)),
}
"""Judge -> outcomes that are its kind of fault."""
ORDER: tuple[JudgeName, ...] = ("compilation", "memory", "numerics")
"""Order in which faults show: a kernel that does not compile says nothing of its numerics."""


class JudgementRow(Noun):
    """One judgement. `truth` is true without a fault of the judge's kind, and null where the outcome does not tell."""

    run_id: str
    slot: int
    round: int
    candidate_id: str
    task: str
    reference: str
    kernel: str
    judge: str
    model: str
    messages: str
    reply: str
    said: float
    probability: float
    truth: bool | None
    is_correct: bool
    outcome: str
    device: str


def judgement_rows(archive: Archive, row: Row) -> Iterator[JudgementRow]:
    """Yield the judgements of one version of a proposal, as its row has them."""
    judgements = [Judgement.model_validate(each) for each in json.loads(row.judgements)]
    if not judgements:
        return
    replies = {recorded.key: recorded for recorded in ModelRecords(archive, row.run_id).replies()}
    for judgement in judgements:
        recorded = replies.get(judgement.request_key)
        outcome = recorded.outcome if recorded is not None else None
        messages = recorded.request.messages if recorded is not None else ()
        yield JudgementRow(
            **row.model_dump(include={"run_id", "slot", "round", "candidate_id", "task", "reference", "kernel"}),
            judge=judgement.judge,
            model=judgement.model,
            messages=json.dumps([message.model_dump() for message in messages]),
            reply=outcome.text if isinstance(outcome, Replied) else "",
            said=judgement.said,
            probability=judgement.probability,
            truth=truth_of(judgement.judge, row.outcome),
            is_correct=row.outcome == "correct",
            outcome=row.outcome,
            device=row.device,
        )


def truth_of(judge: JudgeName, outcome: str) -> bool | None:
    """Return whether the kernel has no fault of the judge's kind; None where an earlier fault hides it."""
    if outcome == "correct":
        return True
    shown = next((name for name in ORDER if outcome in FAULTS[name]), None)
    if shown is None:
        return None
    if shown == judge:
        return False
    return True if ORDER.index(judge) < ORDER.index(shown) else None
