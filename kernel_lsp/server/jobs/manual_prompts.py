"""Prompts that wait for a person with any chat: shown in the editor, one after the other, each beside its reply."""

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
    """What waits, in order. A run asks for several at once; the first is shown, and the next when it has its reply."""

    def __init__(
        self,
        show: Callable[[Path], Awaitable[bool]],
        say: Callable[[str], None],
        spawn: Callable[[Coroutine[Any, Any, Any]], None],
    ) -> None:
        self._show, self._say, self._spawn = show, say, spawn
        self._waiting: list[_Waiting] = []

    def add(self, job: str, news: PromptWaits) -> None:
        """A prompt waits."""
        self._waiting.append(_Waiting(job, ManualPrompt(news.prompt, news.reply, is_waiting=True)))
        if len(self._waiting) == 1:
            self._present_first()

    def over(self, job: str, prompt: Path) -> None:
        """It waits no longer."""
        self._keep([each for each in self._waiting if (each.job, each.prompt.prompt) != (job, prompt)])

    def drop_all(self, job: str) -> None:
        """The job is over."""
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
        with suppress(OSError):  # it is there already, or the person makes it
            open_reply(prompt)
        self._say(
            f"A prompt waits for a reply: take {prompt.prompt} to any chat, paste what it says into "
            f"{prompt.reply.name} beside it, and save."
        )
        await self._show(prompt.prompt)
        await self._show(prompt.reply)
