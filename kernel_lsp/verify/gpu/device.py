"""A GPU as a device of verdicts: a built candidate runs on every case, is judged from copies, and is timed.

The worker that runs the candidate never sees expected values. Losing the worker is the outcome of the candidate that
caused it.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from kernel_lsp.core.verdict import Crashed, TimedOut, Unsupported
from kernel_lsp.errors import EnvironmentProblem, KernelLspError
from kernel_lsp.toolchain.nvrtc.compile import Compiler
from kernel_lsp.verify.devices.device import KernelBuild
from kernel_lsp.verify.gpu.candidate_run import Attempt
from kernel_lsp.verify.gpu.job import GpuFailure, GpuJob, GpuReport, Stages
from kernel_lsp.verify.gpu.lock import GpuLock
from kernel_lsp.verify.gpu.prepared import GpuKernel
from kernel_lsp.verify.gpu.slot import MAX_DISCONNECTED, REPEAT, GpuFacts, GpuSlot, OutOfService, SlotWorker
from kernel_lsp.verify.gpu.spare_files import SpareFiles
from kernel_lsp.verify.model.progress import StageTimes

N_TRIES = 2
"""Runs of a candidate whose worker is killed from outside."""


class GpuDevice:
    """One GPU for candidates, one at a time. Use as ``async with``; from then on `facts` are known.

    Candidates take turns; `turn` gives the GPU to other work of ours in between, e.g. references.
    """

    def __init__(
        self,
        make_worker: Callable[[], SlotWorker],
        index: int,
        directory: Path,
        compiler: Compiler,
        *,
        lock_directory: Path | None = None,
        place: str = "",
        is_local: bool = True,
        renews: bool = False,
    ) -> None:
        """`make_worker` returns workers that are not started. `place` says where the GPU is, as in ``on user@host`` or
        ``cuda:1``; empty for the one of this machine. `renews` is as `GpuSlot`'s."""
        self._directory, self.place, self.is_local = directory, place, is_local
        self.lost_until = 0.0
        """Time of the monotonic clock up to which others take its candidates: its machine was lost."""
        self.n_assigned = 0
        """Candidates that run here or wait for that."""
        self._slot = GpuSlot(make_worker, index, directory, compiler, renews=renews)
        self._lock_directory = lock_directory
        self._serial = itertools.count()
        self._spare_files = SpareFiles(directory / "spare")
        self.current_candidate = ""
        """The id of the candidate whose turn it is; empty between turns."""
        self._turns = asyncio.Lock()
        self._warming: asyncio.Task[None] | None = None

    async def __aenter__(self) -> GpuDevice:
        """Raises EnvironmentProblem when torch does not see the GPU."""
        await self._slot.__aenter__()
        self._lock = GpuLock(self._slot.facts.uuid, directory=self._lock_directory)
        self._warming = asyncio.create_task(self._warm_up())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def facts(self) -> GpuFacts:
        return self._slot.facts

    @property
    def name(self) -> str:
        """Return the GPU's name and place."""
        return f"{self._slot.facts.name} {self.place}".rstrip()

    @property
    def index(self) -> int:
        """Return its index among the GPUs that torch sees."""
        return self._slot.index

    @property
    def slot(self) -> GpuSlot:
        """Return the worker that candidates run in, for timing inside a turn."""
        return self._slot

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the GPU exclusively, against this process's other candidates and the user's other processes."""
        async with self._turns, self._lock.held():
            yield

    @contextmanager
    def assigned(self) -> Iterator[None]:
        """Count a candidate that was assigned to this GPU, and not to another one."""
        self.n_assigned += 1
        try:
            yield
        finally:
            self.n_assigned -= 1

    @asynccontextmanager
    async def prepare(
        self, build: KernelBuild, stages: Stages | None = None
    ) -> AsyncIterator[GpuKernel | Crashed | TimedOut | Unsupported]:
        """Wait for a turn, make sure of a worker that can be trusted, and load the candidate into it."""
        stages, directory = stages or StageTimes(), self._directory / f"gpu-{next(self._serial)}"
        async with self._turns_with(directory, stages), self._running(build.candidate_id):
            with stages.stage("gpu worker"):
                ready = await self._slot.ready()
            if isinstance(ready, OutOfService):
                yield Unsupported(message=ready.reason)
                return
            kernel = GpuKernel(self._slot, build, directory, stages, self._spare_files)
            with stages.stage("gpu load"):
                failure = await kernel.load()
            yield failure or kernel
            if not self._slot.renews:
                await kernel.unload()

    async def evaluate(self, job: GpuJob, stages: Stages) -> GpuReport | GpuFailure:
        """Run, judge and time one candidate. What it does to the worker is its outcome. A worker that was killed from
        outside is replaced, and the candidate tried once more; after the loss of a connection, several times."""
        for number in itertools.count(1):
            async with self.prepare(job.build, stages) as kernel:
                found = await Attempt(kernel, job, stages).run() if isinstance(kernel, GpuKernel) else kernel
            loss = self._slot.loss
            if loss is None or not loss.was_killed or (number >= N_TRIES and not loss.is_disconnected):
                break
            if number >= MAX_DISCONNECTED:
                raise EnvironmentProblem(f"{loss.message}, {number} times during one candidate", next_step=REPEAT)
        return found

    async def close(self) -> None:
        """End its worker, and what warms it up."""
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)  # no longer needed
        await self._slot.__aexit__(None, None, None)

    async def _warm_up(self) -> None:
        """Warm up before the first candidate, in a turn: another session may be timing one."""
        with suppress(KernelLspError):  # the next user of the GPU gets the error
            async with self.turn():
                await self._slot.warm_up()

    @asynccontextmanager
    async def _running(self, candidate_id: str) -> AsyncIterator[None]:
        self.current_candidate = candidate_id
        try:
            yield
        finally:
            self.current_candidate = ""

    @asynccontextmanager
    async def _turns_with(self, directory: Path, stages: Stages) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            with stages.stage("gpu wait"):
                await stack.enter_async_context(self.turn())
            directory.mkdir(parents=True, exist_ok=True)
            try:
                yield
            finally:
                shutil.rmtree(directory, ignore_errors=True)
