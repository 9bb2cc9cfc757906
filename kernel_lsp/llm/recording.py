"""Record and replay models' replies, which makes a run reproducible.

A recording is a file of JSON lines, one `RecordedReply` each. A reply is found by its request's key, the hash of the
messages; the model is not part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from kernel_lsp.core.model import Noun
from kernel_lsp.errors import UserError
from kernel_lsp.llm.request import FreeModel, ModelFailed, ModelOutcome, ModelRequest, OnText, Replied, ignore_text


class RecordedReply(Noun):
    """A request as sent, and its outcome as received."""

    key: str
    model: str
    request: ModelRequest
    outcome: ModelOutcome


class RecordedValue(Noun):
    """A value fixed at the run's start that its prompts depend on, e.g. related kernels."""

    name: str
    value: str


@dataclass(frozen=True)
class Recording:
    """Outcomes by key, and values by name."""

    outcomes: Mapping[str, Replied | ModelFailed]
    values: Mapping[str, str]


_ENTRY: TypeAdapter[RecordedReply | RecordedValue] = TypeAdapter(RecordedReply | RecordedValue)


class ReplayModel(FreeModel):
    """Reply from a recording only. Reported costs are the recorded ones; nothing is charged."""

    def __init__(self, outcomes: Mapping[str, Replied | ModelFailed], name: str = "replay") -> None:
        self._outcomes, self._name = outcomes, name

    @property
    def name(self) -> str:
        return self._name

    async def reply(self, request: ModelRequest, on_text: OnText = ignore_text) -> Replied | ModelFailed:
        outcome = self._outcomes.get(request.key)
        if outcome is None:
            message = f"the recording has no reply to this prompt ({request.purpose}, key {request.key})"
            return ModelFailed(model=self.name, cause="no_recording", message=message)
        if isinstance(outcome, Replied):
            on_text(outcome.text)
        return outcome


def read_recording(path: Path) -> Recording:
    """Read a recording. Raises UserError naming file and line."""
    outcomes: dict[str, Replied | ModelFailed] = {}
    values: dict[str, str] = {}
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        entry = _entry(path, number, line)
        if isinstance(entry, RecordedValue):
            values[entry.name] = entry.value
        else:
            outcomes[entry.key] = entry.outcome
    return Recording(outcomes, values)


def write_recording(path: Path, values: Iterable[RecordedValue], replies: Iterable[RecordedReply]) -> None:
    """Write values by name, then replies by key. Raises OSError."""
    entries = [*sorted(values, key=lambda value: value.name), *sorted(replies, key=lambda recorded: recorded.key)]
    path.write_text("".join(entry.model_dump_json() + "\n" for entry in entries), encoding="utf-8")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot be read: {error}"
        raise UserError(message, file=str(path), next_step="name a file that --record wrote") from None


def _entry(path: Path, number: int, line: str) -> RecordedReply | RecordedValue:
    try:
        entry = _ENTRY.validate_json(line)
    except ValidationError as error:
        message = f"no recorded reply: {error.errors()[0]['msg']}"
        next_step = "a recording is JSON lines as --record writes them"
        raise UserError(message, file=str(path), line=number, next_step=next_step) from None
    if isinstance(entry, RecordedReply) and entry.key != entry.request.key:
        message = "the key is not that of the request"
        next_step = "the request was changed after it was sent; record it again"
        raise UserError(message, file=str(path), line=number, next_step=next_step)
    return entry
