"""Warm PTX executors for the candidates of one task."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

from kernel_lsp.errors import KernelLspError
from kernel_lsp.ptx.executor import Loaded, LoadOutcome, PtxExecutor
from kernel_lsp.verify.build.building import Module

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
        self._ahead: dict[Module, list[asyncio.Task[None]]] = {}
        self._loading: set[asyncio.Task[None]] = set()

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

    @contextmanager
    def loading_ahead(self, module: Module, n_executors: int) -> Iterator[None]:
        """So many load a module that is wanted soon, e.g. while cases are chosen for it. Who asks for an executor for
        it meanwhile waits for one of them; what goes wrong is found out again there."""
        loading = [asyncio.create_task(self._load_ahead(module)) for _ in range(n_executors)]
        self._loading.update(loading)
        for task in loading:
            task.add_done_callback(self._loading.discard)
        waited_for = self._ahead.setdefault(module, [])
        waited_for += loading
        try:
            yield
        finally:
            waited_for[:] = [task for task in waited_for if task not in loading]
            if not waited_for:
                self._ahead.pop(module, None)

    async def close(self) -> None:
        """End those that nobody uses; what is in use ends with its use."""
        starting, self._starting = self._starting, []
        beginning = [*starting, *self._building, *self._loading]
        for task in beginning:
            task.cancel()
        await asyncio.gather(*beginning, return_exceptions=True)
        self._idle += [task.result() for task in starting if not task.cancelled() and task.exception() is None]
        idle, self._idle = self._idle, []
        await asyncio.gather(*(executor.close() for executor in idle))

    @asynccontextmanager
    async def executor(self, module: Module | None = None) -> AsyncIterator[PtxExecutor]:
        """A warm executor, if there is one that has loaded the `module`. One whose evaluation was cancelled or broke is
        not used again; one that died restarts."""
        if loading := self._ahead.get(module, []) if module is not None else []:
            await asyncio.shield(loading.pop())
        async with self._one(module) as executor:
            yield executor

    async def load(self, executor: PtxExecutor, module: Module) -> LoadOutcome:
        """What `executor.load` says: known at once of a module that it has loaded last."""
        known = self._loaded.pop(executor, None)
        is_known = known is not None and known.module == module and executor.is_alive
        outcome = known.outcome if known and is_known else await executor.load(module.ptx, module.file_name)
        if isinstance(outcome, Loaded):
            self._loaded[executor] = _Loaded(module, outcome)
        return outcome

    # --- below: those that have loaded something, and new ones

    async def _load_ahead(self, module: Module) -> None:
        with suppress(KernelLspError, OSError):  # raised again where the module is needed
            async with self._one(module) as executor:
                await self.load(executor, module)

    @asynccontextmanager
    async def _one(self, module: Module | None) -> AsyncIterator[PtxExecutor]:
        async with self._slots:
            executor = self._take_idle(module) or await self._first_or_new()
            try:
                yield executor
            except BaseException:
                self._loaded.pop(executor, None)
                await executor.close()
                raise
            self._idle.append(executor)

    def _take_idle(self, module: Module | None) -> PtxExecutor | None:
        """One that nobody uses: with the module, else without one that somebody else wants, else any if none is still
        to start."""
        for position in reversed(range(len(self._idle))):
            if self._module_of(self._idle[position]) == module:
                return self._idle.pop(position)
        for position in reversed(range(len(self._idle))):
            if self._module_of(self._idle[position]) not in self._ahead:
                return self._idle.pop(position)
        return self._idle.pop() if self._idle and not self._starting else None

    def _module_of(self, executor: PtxExecutor) -> Module | None:
        known = self._loaded.get(executor)
        return None if known is None else known.module

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
