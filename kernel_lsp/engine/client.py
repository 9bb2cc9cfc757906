"""Client of an engine process: starts it on first use, detects its death, restarts it on the next use."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernel_lsp.engine.messages import JobEvent, Problem, Reply, Request
from kernel_lsp.process.channel import Channel
from kernel_lsp.process.tree import kill_tree

ENGINE = (sys.executable, "-m", "kernel_lsp.engine")
SHUTDOWN_GRACE_S = 1.2
"""Time for an orderly shutdown, in seconds; the engine itself grants its jobs 0.6 s."""

OnEvent = Callable[[JobEvent], None]
OnDeath = Callable[[str], None]


class EngineClient:
    """One engine for one workspace. `on_death` receives the reason each time the engine ends unexpectedly."""

    def __init__(self, workspace: Path, on_death: OnDeath) -> None:
        self._workspace, self._on_death = workspace, on_death
        self._channel: Channel | None = None
        self._listening: asyncio.Task[None] | None = None
        self._pending: dict[str, asyncio.Future[Reply]] = {}
        self._listeners: dict[str, OnEvent] = {}
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int:
        """Process id of the engine; 0 when none runs."""
        return self._channel.pid if self._channel is not None and self._channel.is_alive else 0

    async def ask(self, request: Request, on_event: OnEvent | None = None) -> Reply:
        """Send a request and return its reply, or why there is none. `on_event` receives the job's events first."""
        try:
            channel = await self._running()
        except OSError as error:
            return Reply(id=request.id, error=Problem(kind="environment", message=f"no engine: {error}"))
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending[request.id] = future
        if on_event is not None:
            self._listeners[request.id] = on_event
        channel.send(request.model_dump(mode="json"))
        try:
            return await future
        finally:
            self._pending.pop(request.id, None)
            self._listeners.pop(request.id, None)

    async def close(self) -> None:
        """End the engine and all its jobs, orderly if it meets the grace time."""
        channel, self._channel = self._channel, None
        if self._listening is not None:
            self._listening.cancel()
        if channel is None:
            return
        pid = channel.pid
        channel.end_input()
        await channel.wait(SHUTDOWN_GRACE_S)
        if channel.is_alive:
            kill_tree(pid)
        await channel.close()
        self._fail_all(Problem(kind="died", message="the engine was stopped"))

    async def _running(self) -> Channel:
        async with self._starting:
            if self._channel is None or not self._channel.is_alive:
                channel = Channel(ENGINE, environment=dict(os.environ), directory=self._workspace)
                await channel.start()
                self._channel = channel
                self._listening = asyncio.create_task(self._listen(channel))
            return self._channel

    async def _listen(self, channel: Channel) -> None:
        async for message in channel.messages():
            self._dispatch(message)
        await channel.close()
        if self._channel is channel:
            self._channel = None
            self._fail_all(Problem(kind="engine_died", message="the engine died"))
            self._on_death(_how(channel))

    def _dispatch(self, message: dict[str, Any]) -> None:
        if "job" in message:
            event = JobEvent.model_validate(message)
            listener = self._listeners.get(event.job)
            if listener is not None:
                listener(event)
            return
        reply = Reply.model_validate(message)
        future = self._pending.get(reply.id)
        if future is not None and not future.done():
            future.set_result(reply)

    def _fail_all(self, problem: Problem) -> None:
        for id_, future in self._pending.items():
            if not future.done():
                future.set_result(Reply(id=id_, error=problem))


def _how(channel: Channel) -> str:
    if channel.returncode < 0:
        return f"signal {-channel.returncode}"
    lines = [line for line in channel.stderr().splitlines() if line.strip()]
    return f"status {channel.returncode}" + (f": {lines[-1].strip()}" if lines else "")
