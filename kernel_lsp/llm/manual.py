"""A person with any chat as the model: the prompt is written to a file, the reply is read from the file beside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.llm.request import ModelFailed, ModelRequest, OnText, Replied, ignore_text

POLL_S = 0.5
WAIT_S = 24 * 3600.0
MARK = "<!-- kernel-lsp: "
"""Begins a first line of a reply's file that is ours, and no part of the reply."""


@dataclass(frozen=True)
class ManualPrompt:
    """A prompt's file and that of its reply, which a person writes; `is_waiting` until there is one, or no need."""

    prompt: Path
    reply: Path
    is_waiting: bool


OnPrompt = Callable[[ManualPrompt], None]


def ignore_prompt(_: ManualPrompt) -> None:
    """For who leaves it to the person to look into the folder."""


class ManualModel:
    """Writes ``<key>.prompt.md`` into `folder` and waits for ``<key>.reply.md``, at most `wait_s`. A reply that is
    there already counts, so a run that was interrupted goes on with what was answered meanwhile. `on_prompt` hears of
    each prompt that has no reply yet, and again when it waits no longer."""

    def __init__(
        self,
        folder: Path,
        wait_s: float = WAIT_S,
        poll_s: float = POLL_S,
        on_prompt: OnPrompt = ignore_prompt,
    ) -> None:
        self.folder, self._wait_s, self._poll_s, self._on_prompt = folder, wait_s, poll_s, on_prompt

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
        text = read_reply(answer)
        if not text:
            self._on_prompt(ManualPrompt(prompt, answer, is_waiting=True))
        try:
            text = await self._wait_for(answer)
        finally:
            self._on_prompt(ManualPrompt(prompt, answer, is_waiting=False))
        if text:
            on_text(text)
            return Replied(model=self.name, text=text)
        message = f"no reply in {answer} within {self._wait_s:.0f} s"
        return ModelFailed(model=self.name, cause="awaited", message=message)

    async def _wait_for(self, answer: Path) -> str:
        """The reply; empty when there was none in time. One that is there is read to its end, without any time, too."""
        give_up_s = time.monotonic() + self._wait_s
        seen = ""
        while (text := read_reply(answer)) or time.monotonic() < give_up_s:
            if text and text == seen:  # the same twice: whoever writes it has finished
                return text
            seen = text
            await asyncio.sleep(self._poll_s)
        return ""


def prompt_text(request: ModelRequest) -> str:
    """The messages as one text to paste into a chat."""
    return "\n\n".join(message.content for message in request.messages) + "\n"


def open_reply(prompt: ManualPrompt) -> None:
    """Make the reply's file, if there is none, with a line that says what belongs there. Raises OSError."""
    line = f"{MARK}paste a chat's reply to {prompt.prompt.name} below this line, and save -->\n"
    with prompt.reply.open("x", encoding="utf-8") as file:
        file.write(line)


def read_reply(path: Path) -> str:
    """What a person wrote, without a first line of ours; empty while there is nothing, or only blanks after it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""  # not there yet, or half written
    if not text.startswith(MARK):
        return text
    reply = text.partition("\n")[2]
    return reply if reply.strip() else ""


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
