"""A job's side of the editor's own model: each question goes out as news of the job, its answer comes on stdin."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from pydantic import ValidationError

from kernel_lsp.engine.messages import AnswerModel, JobNews, ModelAsked, ModelDropped
from kernel_lsp.llm.request import ModelFailed, ModelRequest, Replied


class EditorModelCalls:
    """The calls of one job that are under way. `tell` says something to whoever started the job."""

    def __init__(self, tell: Callable[[JobNews], None]) -> None:
        self.tell = tell
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Replied | ModelFailed]] = {}

    async def ask(self, request: ModelRequest) -> Replied | ModelFailed:
        """What the editor's model says. Waits for as long as it is let; who gives up is told to the editor."""
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
        """One answer. What is none, or comes too late, is passed over: its call runs into its deadline."""
        try:
            answer = AnswerModel.model_validate_json(line)
        except ValidationError:
            return
        waiting = self._waiting.get(answer.call)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer.outcome)

    async def listen(self, stdin: asyncio.StreamReader) -> None:
        """Take answers until there are no more."""
        while line := await stdin.readline():
            self.take(line)
