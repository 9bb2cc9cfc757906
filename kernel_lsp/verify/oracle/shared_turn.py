"""Share one turn on a GPU between the references that wait for one at the same time.

Each reference takes 0.02 to 0.7 s, and each turn comes behind those of other commands, of 1 to 8 s: of 45 references
in a full check, each in a turn of its own, all waited. With three commands on an H200 that took 43 s, and 4 s alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

MAX_TURN_S = 2.0
"""Seconds from which a shared turn ends with the reference under way: a timing holds the GPU about as long."""


class SharedGpu(Protocol):
    """A GPU that candidates and references share by turns; `gpu.device.GpuDevice` is one."""

    @property
    def index(self) -> int: ...
    def turn(self) -> AbstractAsyncContextManager[None]: ...


class SharedTurn:
    """A turn on the `gpu` for one reference after the other, taken for the first of those that wait."""

    def __init__(self, gpu: SharedGpu) -> None:
        self._gpu, self._one_at_a_time = gpu, asyncio.Lock()
        self._n_waiting, self._ends = 0, 0.0
        self._turn: AbstractAsyncContextManager[None] | None = None

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the GPU for one reference. Passes it on to the next one that waits, until `MAX_TURN_S` are over."""
        self._n_waiting += 1
        try:
            await self._one_at_a_time.acquire()
        finally:
            self._n_waiting -= 1
            if not self._one_at_a_time.locked():  # cancelled as the last one, behind a turn that was kept for it
                await self._end()
        try:
            if self._turn is None:
                await self._begin()
            yield
        finally:
            if not self._n_waiting or time.monotonic() >= self._ends:
                await self._end()
            self._one_at_a_time.release()

    async def _begin(self) -> None:
        turn = self._gpu.turn()
        await turn.__aenter__()
        self._turn, self._ends = turn, time.monotonic() + MAX_TURN_S

    async def _end(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            await turn.__aexit__(None, None, None)
