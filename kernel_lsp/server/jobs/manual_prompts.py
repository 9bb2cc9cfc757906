"""Prompts for a person with any chat: shown in the editor one at a time, each next to its reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp.engine.messages import PromptWaits
from kernel_lsp.llm.manual import ManualPrompt, open_reply


@dataclass(frozen=True)
class _Waiting:
    job: str
    prompt: ManualPrompt


class ManualPrompts:
    """Pending prompts, in order. A run may ask for several at once; each is shown once the one before has its reply."""

    def __init__(
        self,
        show: Callable[[Path], Awaitable[bool]],
        say: Callable[[str], None],
        spawn: Callable[[Coroutine[Any, Any, Any]], None],
    ) -> None:
        self._show, self._say, self._spawn = show, say, spawn
        self._waiting: list[_Waiting] = []

    def add(self, job: str, news: PromptWaits) -> None:
        """Queue a prompt."""
        self._waiting.append(_Waiting(job, ManualPrompt(news.prompt, news.reply, is_waiting=True)))
        if len(self._waiting) == 1:
            self._present_first()

    def over(self, job: str, prompt: Path) -> None:
        """Remove a prompt that is no longer needed."""
        self._keep([each for each in self._waiting if (each.job, each.prompt.prompt) != (job, prompt)])

    def drop_all(self, job: str) -> None:
        """Remove all prompts of a finished job."""
        self._keep([each for each in self._waiting if each.job != job])

    # --- below

    def _keep(self, kept: list[_Waiting]) -> None:
        first = self._waiting[:1]
        self._waiting = kept
        if kept and kept[:1] != first:
            self._present_first()

    def _present_first(self) -> None:
        self._spawn(self._present(self._waiting[0].prompt))

    async def _present(self, prompt: ManualPrompt) -> None:
        with suppress(OSError):  # the file exists already, or the person creates it
            open_reply(prompt)
        self._say(
            f"A prompt waits for a reply: paste {prompt.prompt} into any chat, its answer into "
            f"{prompt.reply.name} next to it, and save."
        )
        await self._show(prompt.prompt)
        await self._show(prompt.reply)
