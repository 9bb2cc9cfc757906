"""Recorded replies: what makes a run of models repeat itself exactly.

A recording is a file of JSON lines, one `RecordedReply` each. A reply is found by its request's key, the hash of the
messages; the model that is asked plays no part.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from kernel_lsp.core.model import Noun
from kernel_lsp.errors import UserError
from kernel_lsp.llm.request import ModelFailed, ModelOutcome, ModelRequest, OnText, Replied, ignore_text


class RecordedReply(Noun):
    """A request as it was sent, and its outcome as it was received."""

    key: str
    model: str
    request: ModelRequest
    outcome: ModelOutcome


class ReplayModel:
    """Answers from a recording, and never with anything else. Costs are those of the recording; none are paid."""

    def __init__(self, outcomes: dict[str, Replied | ModelFailed], name: str = "replay") -> None:
        self._outcomes, self._name = outcomes, name

    @property
    def name(self) -> str:
        return self._name

    @property
    def costs_money(self) -> bool:
        return False

    def worst_cost_usd(self, request: ModelRequest) -> float:
        return 0.0

    async def reply(self, request: ModelRequest, on_text: OnText = ignore_text) -> Replied | ModelFailed:
        outcome = self._outcomes.get(request.key)
        if outcome is None:
            message = f"the recording has no reply to this prompt ({request.purpose}, key {request.key})"
            return ModelFailed(model=self.name, cause="no_recording", message=message)
        if isinstance(outcome, Replied):
            on_text(outcome.text)
        return outcome


def read_recording(path: Path) -> dict[str, Replied | ModelFailed]:
    """Outcomes by key. Raises UserError naming file and line."""
    outcomes: dict[str, Replied | ModelFailed] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot be read: {error}", file=str(path), next_step="name a file that --record wrote"
        ) from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            recorded = RecordedReply.model_validate_json(line)
        except ValidationError as error:
            raise UserError(
                f"no recorded reply: {error.errors()[0]['msg']}",
                file=str(path),
                line=number,
                next_step="a recording is JSON lines as --record writes them",
            ) from None
        if recorded.key != recorded.request.key:
            raise UserError(
                "the key is not that of the request",
                file=str(path),
                line=number,
                next_step="the request was changed after it was sent; record it again",
            )
        outcomes[recorded.key] = recorded.outcome
    return outcomes


def write_recording(path: Path, replies: Iterable[RecordedReply]) -> None:
    """Write the file, ordered by key. Raises OSError."""
    ordered = sorted(replies, key=lambda recorded: recorded.key)
    path.write_text("".join(recorded.model_dump_json() + "\n" for recorded in ordered), encoding="utf-8")
