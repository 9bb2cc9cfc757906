"""Export runs of models as a dataset for fine-tuning and reinforcement learning: one row per version of a proposal, as
JSON lines or Parquet. `docs/dataset.md` describes every column; a test keeps the two consistent.

Import pyarrow, which Parquet files alone need, or say how to install it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from kernel_lsp.core.model import Noun
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.model_records import ModelRecords, ProposalRecord, Round
from kernel_lsp.evolve.propose.feedback import describe_failure
from kernel_lsp.evolve.run.evaluations import score_kind, score_us
from kernel_lsp.evolve.run.task_text import signatures
from kernel_lsp.llm.recording import RecordedReply
from kernel_lsp.llm.request import Replied
from kernel_lsp.training.environment import reward


def parquet_module() -> Any:
    """Return pyarrow with its Parquet part. Raises EnvironmentProblem where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise EnvironmentProblem(
            "Parquet files need pyarrow, which is not installed", next_step="pip install 'kernel_lsp[parquet]'"
        ) from error
    return pyarrow


Format = Literal["jsonl", "parquet"]
ROW_VERSION = 1


class Row(Noun):
    """One version of a proposal: the prompt, the reply and the outcome."""

    row_version: int = ROW_VERSION
    run_id: str
    slot: int
    round: int
    generation: int
    island: int
    task: str
    signatures: tuple[str, ...]
    reference: str
    operator: str
    model: str
    temperature: float
    hint: str
    parents: tuple[str, ...]
    prompt: str
    prompt_version: int
    prompt_hash: str
    request_key: str
    messages: str
    reply: str
    finish: str
    n_prompt_tokens: int
    n_reply_tokens: int
    cost_usd: float | None
    name: str
    thought: str
    candidate_id: str
    kernel: str
    outcome: str
    feedback: str
    device: str
    time_us: float | None
    time_kind: str
    best_before_us: float | None
    reward: int
    reward_kind: str
    judgements: str
    verdict: str


def rows(archive: Archive, run_id: str) -> Iterator[Row]:
    """Return the rows of one run, in the order of proposals and their versions; none for a run without models."""
    records = ModelRecords(archive, run_id)
    replies = {recorded.key: recorded for recorded in records.replies()}
    kernels = {candidate.id: candidate.text for candidate in archive.candidates(run_id)}
    task_json = archive.run(run_id).task_json
    if task_json is None:
        return
    task = Task.model_validate_json(task_json)
    for proposal in records.proposals():
        for number, round_ in enumerate(proposal.rounds):
            verdict = _deepest(archive, run_id, round_.candidate_id)
            kernel = kernels.get(round_.candidate_id or "", "")
            recorded = replies.get(round_.request_keys[-1])
            yield _row(run_id, task, proposal, number, round_, recorded, kernel, verdict)


def write_dataset(found: Iterator[Row], path: Path, form: Format) -> int:
    """Write the file; return the number of rows. Raises OSError; EnvironmentProblem for Parquet without pyarrow."""
    if form == "parquet":
        return _write_parquet([row.model_dump(mode="json") for row in found], path)
    n_rows = 0
    with path.open("w", encoding="utf-8") as file:
        for row in found:
            file.write(row.model_dump_json() + "\n")
            n_rows += 1
    return n_rows


def _deepest(archive: Archive, run_id: str, candidate_id: str | None) -> Verdict | None:
    """Return a candidate's most complete verdict."""
    depths = ("full", "screen", "rank", "precheck") if candidate_id is not None else ()
    found = (archive.verdict(run_id, candidate_id or "", depth) for depth in depths)
    return next((verdict for verdict in found if verdict is not None), None)


def _row(
    run_id: str,
    task: Task,
    proposal: ProposalRecord,
    number: int,
    round_: Round,
    recorded: RecordedReply | None,
    kernel: str,
    verdict: Verdict | None,
) -> Row:
    earned = reward(verdict) if verdict is not None else None
    time_us = score_us(verdict) if verdict is not None and verdict.is_correct else None
    return Row(
        run_id=run_id,
        slot=proposal.slot,
        round=number,
        generation=proposal.generation,
        island=proposal.island,
        task=task.name,
        signatures=signatures(task),
        reference=task.reference_source,
        operator=round_.operator,
        temperature=proposal.temperature,
        hint=proposal.hint,
        parents=proposal.parents,
        prompt=round_.prompt,
        prompt_version=round_.prompt_version,
        prompt_hash=round_.prompt_hash,
        request_key=round_.request_keys[-1],
        **_asked(proposal, recorded),
        name=round_.name,
        thought=round_.thought,
        candidate_id=round_.candidate_id or "",
        kernel=kernel,
        outcome=round_.outcome or proposal.end,
        feedback=describe_failure(verdict, kernel) if verdict is not None else round_.message,
        device=verdict.device if verdict is not None else "",
        time_us=time_us,
        time_kind=score_kind(verdict) if verdict is not None and time_us is not None else "none",
        best_before_us=proposal.parent_us,
        reward=earned.value if earned is not None else -1,
        reward_kind=earned.kind if earned is not None else "none",
        judgements=json.dumps([judgement.model_dump(mode="json") for judgement in round_.judgements]),
        verdict=verdict.model_dump_json() if verdict is not None else "",
    )


def _asked(proposal: ProposalRecord, recorded: RecordedReply | None) -> dict[str, Any]:
    """Return the columns of the call. A call cut off by the run's end has no record."""
    if recorded is None:
        blank = {"messages": "[]", "reply": "", "finish": "none", "n_prompt_tokens": 0, "n_reply_tokens": 0}
        return {**blank, "cost_usd": None, "model": proposal.model}
    outcome = recorded.outcome
    return {
        "messages": json.dumps([message.model_dump() for message in recorded.request.messages]),
        "reply": outcome.text if isinstance(outcome, Replied) else "",
        "finish": outcome.finish if isinstance(outcome, Replied) else outcome.cause,
        "n_prompt_tokens": outcome.usage.n_prompt_tokens,
        "n_reply_tokens": outcome.usage.n_reply_tokens,
        "cost_usd": outcome.usage.cost_usd,
        "model": recorded.model,
    }


def _write_parquet(found: list[dict[str, Any]], path: Path) -> int:
    pyarrow = parquet_module()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(found), path)
    return len(found)
