"""A person with any chat as the model: the prompt is written to a file, the reply is read from the file beside it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.llm.request import ModelFailed, ModelRequest, OnText, Replied, ignore_text

POLL_S = 0.5
DEADLINE_S = 24 * 3600.0


class ManualModel:
    """Writes ``<key>.prompt.md`` into `folder` and waits for ``<key>.reply.md``. A reply that is there already counts,
    so a run that was interrupted goes on with what was answered meanwhile."""

    def __init__(self, folder: Path, deadline_s: float = DEADLINE_S, poll_s: float = POLL_S) -> None:
        self.folder, self._deadline_s, self._poll_s = folder, deadline_s, poll_s

    @property
    def name(self) -> str:
        return "manual"

    @property
    def costs_money(self) -> bool:
        return False

    def worst_cost_usd(self, request: ModelRequest) -> float:
        return 0.0

    async def reply(self, request: ModelRequest, on_text: OnText = ignore_text) -> Replied | ModelFailed:
        prompt, answer = self.folder / f"{request.key}.prompt.md", self.folder / f"{request.key}.reply.md"
        _write(prompt, prompt_text(request))
        give_up_s = time.monotonic() + self._deadline_s
        seen: str | None = None
        while time.monotonic() < give_up_s:
            text = _read(answer)
            if text and text == seen:  # the same twice: whoever writes it has finished
                on_text(text)
                return Replied(model=self.name, text=text)
            seen = text
            await asyncio.sleep(self._poll_s)
        message = f"no reply in {answer} within {self._deadline_s:.0f} s"
        return ModelFailed(model=self.name, cause="unavailable", message=message)


def prompt_text(request: ModelRequest) -> str:
    """The messages as one text to paste into a chat."""
    return "\n\n".join(message.content for message in request.messages) + "\n"


# --- below


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(
            f"the prompt cannot be written: {error.strerror}",
            file=str(path),
            next_step="name another folder: manual:DIR",
        ) from error


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None  # not there yet, or half written
