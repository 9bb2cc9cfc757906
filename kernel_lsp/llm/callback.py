"""Ask a model that a caller reaches by a function, such as the editor's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kernel_lsp.llm.request import FreeModel, ModelFailed, ModelRequest, OnText, Replied, ignore_text

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
