"""Warm PTX executors, which each run one candidate at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

from kernel_lsp.errors import KernelLspError
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.ptx.executor import Loaded, LoadFailure, LoadOutcome, PtxExecutor
from kernel_lsp.toolchain.integrity.ptx_text import COMPILED_AS

Build = Callable[[], Awaitable[str | None]]
N_LOOKS = max(1, (os.cpu_count() or 1) // 4)
"""Executors per candidate. Oversubscription gains nothing: cases are also made meanwhile."""

LONG_PTX = 1 << 18
"""Minimum characters of PTX for code that compiles faster and runs slower: MobileNetV1's takes 9 s of a core instead of
14. Those of an inception module, 0.7 million, took 31 s and 11 on two busy cores, those of a RegNet, 0.25 million, 5.3
and 2.1."""


@dataclass(frozen=True)
class _Loaded:
    """The PTX that an executor has loaded."""

    ptx: str
    outcome: Loaded


class ExecutorPool:
    """A pool of at most `n_slots` executors. The first candidate's executors start with the pool, while the candidate
    is compiled."""

    def __init__(
        self, make: Callable[[], PtxExecutor], n_slots: int, n_first: int = N_LOOKS, *, is_beside_gpu: bool = False
    ) -> None:
        """`make` returns executors that are not started. `is_beside_gpu`: a GPU runs the cases, and executors only what
        is small."""
        self._make, self._is_beside_gpu = make, is_beside_gpu
        self._idle: list[PtxExecutor] = []
        self._n_first = min(n_first, n_slots)
        self._starting: list[asyncio.Task[PtxExecutor]] = []
        self._building: list[asyncio.Task[str | None]] = []
        self._has_begun = False
        self._slots = asyncio.Semaphore(n_slots)
        self._loaded: dict[PtxExecutor, _Loaded] = {}
        self._ahead: dict[str, list[asyncio.Task[None]]] = {}
        self._loading: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to start the first executors, unless that has begun."""
        if not self._has_begun:
            self.start_with()

    def start_with(self, *builds: Build) -> None:
        """Begin to start the first executors, which load each build as soon as it is ready. A later build that differs
        replaces the earlier one. Errors of a build or load are reported again where the module is needed."""
        self._has_begun = True
        for build in builds:
            self._building.append(asyncio.create_task(_built(build, after=self._building[-1:])))
        self._starting = [asyncio.create_task(self._new_with_builds()) for _ in range(self._n_first)]

    @contextmanager
    def loading_ahead(self, ptx: str, n_executors: int) -> Iterator[None]:
        """Load a module ahead into `n_executors`, e.g. while its cases are chosen. A caller that needs it meanwhile
        waits for one of them. Errors are reported again there."""
        loading = [asyncio.create_task(self._load_ahead(ptx)) for _ in range(n_executors)]
        self._loading.update(loading)
        for task in loading:
            task.add_done_callback(self._loading.discard)
        waited_for = self._ahead.setdefault(ptx, [])
        waited_for += loading
        try:
            yield
        finally:
            waited_for[:] = [task for task in waited_for if task not in loading]
            if not waited_for:
                self._ahead.pop(ptx, None)

    async def close(self) -> None:
        """Close idle executors. Those in use close after their use."""
        starting, self._starting = self._starting, []
        await end_tasks(*starting, *self._building, *self._loading)
        self._idle += [task.result() for task in starting if not task.cancelled() and task.exception() is None]
        idle, self._idle = self._idle, []
        await asyncio.gather(*(executor.close() for executor in idle))

    @asynccontextmanager
    async def executor(self, ptx: str | None = None) -> AsyncIterator[PtxExecutor]:
        """Yield a warm executor, preferably one that has loaded this PTX. One whose evaluation was cancelled or
        failed is not reused; one that died restarts."""
        if loading := self._ahead.get(ptx, []) if ptx is not None else []:
            await asyncio.shield(loading.pop())
        async with self._one(ptx) as executor:
            yield executor

    async def load(self, executor: PtxExecutor, ptx: str) -> LoadOutcome:
        """Load a module, or return the known outcome where it was loaded last."""
        known = self._loaded.pop(executor, None)
        is_known = known is not None and known.ptx == ptx and executor.is_alive
        if known and is_known:
            outcome: LoadOutcome = known.outcome
        else:
            is_quick = self._is_beside_gpu and len(ptx) >= LONG_PTX
            outcome = await executor.load(ptx, COMPILED_AS, is_quick=is_quick)
        if isinstance(outcome, Loaded):
            self._loaded[executor] = _Loaded(ptx, outcome)
        return outcome

    async def inspect(self, ptx: str) -> LoadFailure | None:
        """Look for loops that cannot end in a module that no executor loads. None where there are none."""
        async with self._one(None) as executor:
            if not executor.is_alive:
                self._loaded.pop(executor, None)
            return await executor.inspect(ptx, COMPILED_AS)

    async def _load_ahead(self, ptx: str) -> None:
        with suppress(KernelLspError, OSError):  # raised again where the module is needed
            async with self._one(ptx) as executor:
                await self.load(executor, ptx)

    @asynccontextmanager
    async def _one(self, ptx: str | None) -> AsyncIterator[PtxExecutor]:
        async with self._slots:
            executor = self._take_idle(ptx) or await self._first_or_new()
            try:
                yield executor
            except BaseException:
                self._loaded.pop(executor, None)
                await executor.close()
                raise
            self._idle.append(executor)

    def _take_idle(self, ptx: str | None) -> PtxExecutor | None:
        """Take an idle executor: one with this PTX, else one without some that others want, else any if none is
        still to start."""
        for position in reversed(range(len(self._idle))):
            if self._ptx_of(self._idle[position]) == ptx:
                return self._idle.pop(position)
        for position in reversed(range(len(self._idle))):
            if self._ptx_of(self._idle[position]) not in self._ahead:
                return self._idle.pop(position)
        return self._idle.pop() if self._idle and not self._starting else None

    def _ptx_of(self, executor: PtxExecutor) -> str | None:
        known = self._loaded.get(executor)
        return None if known is None else known.ptx

    async def _first_or_new(self) -> PtxExecutor:
        if not self._starting:
            return await self._new()
        starting = self._starting.pop(0)
        try:
            return await starting
        except asyncio.CancelledError:  # the start may have completed in the same moment
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
                if (ptx := await asyncio.shield(building)) is not None:
                    with suppress(KernelLspError, OSError):  # raised again where the module is needed
                        await self.load(executor, ptx)
        except BaseException:
            await executor.close()
            raise
        return executor


async def _built(build: Build, after: Sequence[asyncio.Task[str | None]]) -> str | None:
    """Build after the builds before it, for all executors: an equal build hits the compiler's cache."""
    if after:
        await asyncio.wait(after)
    with suppress(KernelLspError, OSError):  # raised again where the module is needed
        return await build()
    return None
