"""Fake of the `Model` interface: replies from a function or a list, and a record of the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from kernel_lsp.llm.request import ModelFailed, ModelRequest, OnText, Replied, Usage, ignore_text

Answer = str | Replied | ModelFailed


class ScriptedModel:
    """Answer with `answers`: a function of the request, or a sequence. Keeps `requests`."""

    def __init__(
        self,
        answers: Callable[[ModelRequest], Answer] | Sequence[Answer],
        *,
        name: str = "scripted",
        cost_usd: float = 0.0,
        delay_s: float = 0.0,
    ) -> None:
        self._answers, self._name = answers, name
        self._cost_usd, self._delay_s = cost_usd, delay_s
        self.requests: list[ModelRequest] = []

    @property
    def name(self) -> str:
        return self._name

    def worst_cost_usd(self, request: ModelRequest) -> float:
        return self._cost_usd

    async def reply(self, request: ModelRequest, on_text: OnText = ignore_text) -> Replied | ModelFailed:
        position = len(self.requests)
        self.requests.append(request)
        await asyncio.sleep(self._delay_s)
        answer = self._answers(request) if callable(self._answers) else self._answers[position]
        if not isinstance(answer, str):
            return answer
        on_text(answer)
        usage = Usage(n_prompt_tokens=1, n_reply_tokens=1, cost_usd=self._cost_usd)
        return Replied(model=self.name, text=answer, usage=usage)
