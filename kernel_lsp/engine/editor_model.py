"""A job's side of the editor's own model: prompts are sent as job events, replies arrive on stdin."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from pydantic import ValidationError

from kernel_lsp.engine.messages import AnswerModel, JobNews, ModelAsked, ModelDropped
from kernel_lsp.llm.request import ModelFailed, ModelRequest, Replied


class EditorModelCalls:
    """The pending calls of one job. `tell` sends an event to the client."""

    def __init__(self, tell: Callable[[JobNews], None]) -> None:
        self.tell = tell
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Replied | ModelFailed]] = {}

    async def ask(self, request: ModelRequest) -> Replied | ModelFailed:
        """Return the reply of the editor's model. Waits until cancelled, and then tells the editor to drop the call."""
        call = str(next(self._numbers))
        self._waiting[call] = asyncio.get_running_loop().create_future()
        self.tell(ModelAsked(call=call, request=request))
        try:
            return await self._waiting[call]
        except asyncio.CancelledError:
            self.tell(ModelDropped(call=call))
            raise
        finally:
            del self._waiting[call]

    def take(self, line: bytes) -> None:
        """Accept one reply. Malformed and late ones are ignored: their call times out."""
        try:
            answer = AnswerModel.model_validate_json(line)
        except ValidationError:
            return
        waiting = self._waiting.get(answer.call)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer.outcome)

    async def listen(self, stdin: asyncio.StreamReader) -> None:
        """Accept replies until stdin ends."""
        while line := await stdin.readline():
            self.take(line)
