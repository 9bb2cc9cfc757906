"""Warm PTX executors for the candidates of one task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from kernel_lsp.ptx.executor import PtxExecutor


class ExecutorPool:
    """At most `n_slots` at once. One starts with the pool, to be there when the first candidate has been compiled."""

    def __init__(self, make: Callable[[], PtxExecutor], n_slots: int) -> None:
        """`make` gives executors that were not started."""
        self._make = make
        self._idle: list[PtxExecutor] = []
        self._starting: asyncio.Task[PtxExecutor] | None = None
        self._slots = asyncio.Semaphore(n_slots)

    def start(self) -> None:
        """Begin to start the first."""
        self._starting = asyncio.create_task(self._new())

    async def close(self) -> None:
        """End those that nobody uses; what is in use ends with its use."""
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.cancel()
            await asyncio.wait([starting])
            if not starting.cancelled() and starting.exception() is None:
                self._idle.append(starting.result())
        while self._idle:
            await self._idle.pop().close()

    @asynccontextmanager
    async def executor(self) -> AsyncIterator[PtxExecutor]:
        """A warm executor. One whose evaluation was cancelled or broke is not used again; one that died restarts."""
        async with self._slots:
            executor = self._idle.pop() if self._idle else await self._first_or_new()
            try:
                yield executor
            except BaseException:
                await executor.close()
                raise
            self._idle.append(executor)

    async def _first_or_new(self) -> PtxExecutor:
        starting, self._starting = self._starting, None
        return await (starting or self._new())

    async def _new(self) -> PtxExecutor:
        executor = self._make()
        try:
            return await executor.__aenter__()
        except BaseException:
            await executor.close()
            raise
