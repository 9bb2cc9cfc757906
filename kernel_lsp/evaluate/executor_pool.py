"""Warm PTX executors for the candidates of one task."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from kernel_lsp.errors import KernelLspError
from kernel_lsp.evaluate.building import Module
from kernel_lsp.ptx.executor import Loaded, LoadOutcome, PtxExecutor

Build = Callable[[], Awaitable[Module | None]]
N_LOOKS = max(1, (os.cpu_count() or 1) // 4)
"""Executors that one candidate has at once. Budgets of checks are of time, which they would take from each other on few
cores; and cases are made meanwhile."""


@dataclass(frozen=True)
class _Loaded:
    """What an executor has loaded."""

    module: Module
    outcome: Loaded


class ExecutorPool:
    """At most `n_slots` at once. A candidate's start with the pool, to be there when the first has been compiled."""

    def __init__(self, make: Callable[[], PtxExecutor], n_slots: int, n_first: int = N_LOOKS) -> None:
        """`make` gives executors that were not started."""
        self._make = make
        self._idle: list[PtxExecutor] = []
        self._n_first = min(n_first, n_slots)
        self._starting: list[asyncio.Task[PtxExecutor]] = []
        self._building: list[asyncio.Task[Module | None]] = []
        self._has_begun = False
        self._slots = asyncio.Semaphore(n_slots)
        self._loaded: dict[PtxExecutor, _Loaded] = {}

    def start(self) -> None:
        """Begin to start the first ones, unless that has begun."""
        if not self._has_begun:
            self.start_with()

    def start_with(self, *builds: Build) -> None:
        """Begin to start the first ones, and have them load what a build gives, as soon as it does; then what the next
        one gives, should that differ. What cannot be built or loaded is found out again by who needs it."""
        self._has_begun = True
        for build in builds:
            self._building.append(asyncio.create_task(_built(build, after=self._building[-1:])))
        self._starting = [asyncio.create_task(self._new_with_builds()) for _ in range(self._n_first)]

    async def close(self) -> None:
        """End those that nobody uses; what is in use ends with its use."""
        starting, self._starting = self._starting, []
        for task in (*starting, *self._building):
            task.cancel()
        await asyncio.gather(*starting, *self._building, return_exceptions=True)
        self._idle += [task.result() for task in starting if not task.cancelled() and task.exception() is None]
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
                self._loaded.pop(executor, None)
                await executor.close()
                raise
            self._idle.append(executor)

    async def load(self, executor: PtxExecutor, module: Module) -> LoadOutcome:
        """What `executor.load` says: known at once of a module that it has loaded last."""
        known = self._loaded.pop(executor, None)
        is_known = known is not None and known.module == module and executor.is_alive
        outcome = known.outcome if known and is_known else await executor.load(module.ptx, module.file_name)
        if isinstance(outcome, Loaded):
            self._loaded[executor] = _Loaded(module, outcome)
        return outcome

    async def _first_or_new(self) -> PtxExecutor:
        if not self._starting:
            return await self._new()
        starting = self._starting.pop(0)
        try:
            return await starting
        except asyncio.CancelledError:  # the start may have come to its end in the same moment
            if starting.done() and not starting.cancelled() and starting.exception() is None:
                self._idle.append(starting.result())
            raise

    async def _new(self) -> PtxExecutor:
        executor = self._make()
        try:
            return await executor.__aenter__()
        except BaseException:
            await executor.close()
            raise

    async def _new_with_builds(self) -> PtxExecutor:
        executor = await self._new()
        try:
            for building in self._building:
                if (module := await asyncio.shield(building)) is not None:
                    with suppress(KernelLspError, OSError):  # raised again where the module is needed
                        await self.load(executor, module)
        except BaseException:
            await executor.close()
            raise
        return executor


async def _built(build: Build, after: Sequence[asyncio.Task[Module | None]]) -> Module | None:
    """For all executors, behind the build before it: where both are the same this one is in the compiler's cache."""
    if after:
        await asyncio.wait(after)
    with suppress(KernelLspError, OSError):  # raised again where the module is needed
        return await build()
    return None
