"""Ask a person with any chat as the model: the prompt is written to a file, the reply read from a file. An editor's own
model is reached by a function."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.llm.request import FreeModel, ModelFailed, ModelRequest, OnText, Replied, ignore_text

POLL_S = 0.5
WAIT_S = 24 * 3600.0
MARK = "<!-- kernel-lsp: "
"""Prefix of our own first line in a reply's file, which is not part of the reply."""


@dataclass(frozen=True)
class ManualPrompt:
    """The files of a prompt and of its reply, which a person writes; `is_waiting` until the reply exists or is not
    needed."""

    prompt: Path
    reply: Path
    is_waiting: bool


OnPrompt = Callable[[ManualPrompt], None]


def ignore_prompt(_: ManualPrompt) -> None:
    """Do nothing: the person finds prompts in the folder."""


class ManualModel(FreeModel):
    """Write ``<key>.prompt.md`` into `folder` and wait for ``<key>.reply.md``, at most `wait_s`. An existing reply
    counts, so a resumed run uses replies written meanwhile. `on_prompt` receives each prompt without a reply, and again
    when it no longer waits."""

    def __init__(
        self,
        folder: Path,
        wait_s: float,
        poll_s: float = POLL_S,
        on_prompt: OnPrompt = ignore_prompt,
    ) -> None:
        self.folder, self._wait_s, self._poll_s, self._on_prompt = folder, wait_s, poll_s, on_prompt

    @property
    def name(self) -> str:
        return "manual"

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
        """Wait for the reply; return an empty text on timeout. An existing reply is read completely, even without time
        left."""
        give_up_s = time.monotonic() + self._wait_s
        seen = ""
        while (text := read_reply(answer)) or time.monotonic() < give_up_s:
            if text and text == seen:  # unchanged on two reads: the writer has finished
                return text
            seen = text
            await asyncio.sleep(self._poll_s)
        return ""


def prompt_text(request: ModelRequest) -> str:
    """Return the messages as one text to paste into a chat."""
    return "\n\n".join(message.content for message in request.messages) + "\n"


def open_reply(prompt: ManualPrompt) -> None:
    """Create the reply's file, if missing, with a line that explains its purpose. Raises OSError."""
    line = f"{MARK}paste a chat's reply to {prompt.prompt.name} below this line, and save -->\n"
    with prompt.reply.open("x", encoding="utf-8") as file:
        file.write(line)


def read_reply(path: Path) -> str:
    """Return the person's reply without our first line; empty while there is no text."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""  # missing, or only partly written
    if not text.startswith(MARK):
        return text
    reply = text.partition("\n")[2]
    return reply if reply.strip() else ""


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


Ask = Callable[[ModelRequest], Awaitable[Replied | ModelFailed]]
"""Sends the request to the model and returns its reply. Every failure is a value."""


class CallbackModel(FreeModel):
    """Ask through `ask`; a request without a reply within `deadline_s` times out."""

    def __init__(self, name: str, ask: Ask, deadline_s: float) -> None:
        self._name, self._ask, self._deadline_s = name, ask, deadline_s

    @property
    def name(self) -> str:
        return self._name

    async def reply(self, request: ModelRequest, on_text: OnText = ignore_text) -> Replied | ModelFailed:
        try:
            async with asyncio.timeout(self._deadline_s):
                outcome = await self._ask(request)
        except TimeoutError:
            return ModelFailed(model=self.name, cause="timeout", message=f"no reply within {self._deadline_s:.0f} s")
        if isinstance(outcome, Replied):
            on_text(outcome.text)
        return outcome
