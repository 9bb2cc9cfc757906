"""Keep every finished attempt in a file of JSON lines, so that a synthesis resumes where it stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from kernel_lsp.errors import UserError
from kernel_lsp.synthesize.attempt import Attempt
from kernel_lsp.synthesize.request import SynthesisRequest


class Journal:
    """The attempts of one synthesis. The first line is its request."""

    def __init__(self, file: IO[str], attempts: dict[int, Attempt]) -> None:
        self._file, self.attempts = file, attempts

    def add(self, attempt: Attempt) -> None:
        """Store an attempt: a killed process loses at most the line that it was writing."""
        self.attempts[attempt.index] = attempt
        self._file.write(attempt.model_dump_json() + "\n")
        self._file.flush()


@contextmanager
def open_journal(path: Path, request: SynthesisRequest) -> Iterator[Journal]:
    """Open or create the journal. Raises UserError where it is of another synthesis."""
    attempts = _read(path, request) if path.exists() else {}
    with path.open("a", encoding="utf-8") as file:
        if not path.stat().st_size:
            file.write(request.model_dump_json() + "\n")
        yield Journal(file, attempts)


# --- below: reading


def _read(path: Path, request: SynthesisRequest) -> dict[int, Attempt]:
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:  # the line at which the process was killed
        path.write_text(whole, encoding="utf-8")
    lines = whole.splitlines()
    try:
        before = SynthesisRequest.model_validate_json(lines[0]) if lines else request
        attempts = [Attempt.model_validate_json(line) for line in lines[1:]]
    except ValidationError:
        raise UserError("the journal cannot be read", file=str(path), next_step="use another folder") from None
    differing = [name for name in type(request).model_fields if getattr(before, name) != getattr(request, name)]
    if differing:
        raise UserError(
            f"the folder holds a synthesis with another {', '.join(differing).replace('_', ' ')}",
            file=str(path),
            next_step="give the same options to resume it, or another --out folder",
        )
    return {attempt.index: attempt for attempt in attempts}
