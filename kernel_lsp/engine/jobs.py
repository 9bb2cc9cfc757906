"""Manage jobs in the engine: queueing, processes, termination."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from kernel_lsp.config import load_settings
from kernel_lsp.engine.captures import Captures
from kernel_lsp.engine.messages import (
    JOB_METHODS,
    Done,
    EstimateTarget,
    InferInputs,
    JobEvent,
    JobQueued,
    JobRequest,
    JobStarted,
    Optimize,
    Problem,
    Reply,
    Resume,
    ToJob,
)
from kernel_lsp.engine.runner import RunnerLine
from kernel_lsp.errors import KernelLspError, SettingError
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.gpu.specs import has_gpu
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.process.channel import Channel
from kernel_lsp.process.tree import kill_tree

RUNNER = (sys.executable, "-m", "kernel_lsp.engine.runner")
FIRST_GPU = "cuda:0"
GRACE_S = 0.6
"""Time for an orderly end, in seconds: the run is marked as interrupted, and compilers and executors are reaped. A
cancellation may take 1 s in all."""
STDERR_LINES = 3
KEPT_S = 120.0
"""Time for the answer to the prompt of a first click, in seconds: until then the process that inferred the shapes waits
for the run, with its PyTorch imported (0.4 GB)."""

Say = Callable[[JobEvent | Reply], None]


class Runner:
    """The process of a job, with the folder for its files."""

    def __init__(self, channel: Channel, folder: Path) -> None:
        self.channel, self.folder = channel, folder
        self._ending: asyncio.Task[None] | None = None

    async def end(self) -> None:
        """End the process, orderly within the grace time, else by force."""
        self.stay()
        channel = self.channel
        if channel.is_alive:
            with suppress(ProcessLookupError):
                os.kill(channel.pid, signal.SIGTERM)
            await channel.wait(GRACE_S)
        if channel.is_alive:
            kill_tree(channel.pid)
        await channel.close()
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    def end_later(self, forget: Callable[[Runner], None]) -> None:
        """End it after `KEPT_S`, unless it has to stay."""
        self._ending = asyncio.create_task(self._end_later(forget))

    def stay(self) -> None:
        """Cancel the end that is planned."""
        if self._ending is not None and self._ending is not asyncio.current_task():
            self._ending.cancel()

    async def _end_later(self, forget: Callable[[Runner], None]) -> None:
        await asyncio.sleep(KEPT_S)
        forget(self)
        await self.end()


class JobQueue:
    """All jobs of one engine. Jobs in one lane run in sequence, lanes run in parallel."""

    def __init__(self, say: Say, scratch: Path, captures: Captures) -> None:
        self._say, self._scratch, self._captures = say, scratch, captures
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._lanes: dict[str, asyncio.Lock] = {}
        self._n_in_lane: dict[str, int] = {}
        self._channels: dict[str, Channel] = {}
        self._spare: Runner | None = None
        self._is_closing = False

    def add(self, request: JobRequest) -> None:
        """Run the job when its turn comes. Its `Reply` is always sent at the end."""
        self._tasks[request.id] = asyncio.create_task(self._live(request))

    def is_known(self, job: str) -> bool:
        return job in self._tasks

    def cancel(self, job: str) -> bool:
        """Cancel the job; return False when it does not exist. Its reply is sent once all its processes have ended."""
        task = self._tasks.get(job)
        if task is None:
            return False
        # Not immediate: a task cancelled before its first step never runs, and would send no reply.
        asyncio.get_running_loop().call_soon(task.cancel)
        return True

    def forward(self, request: ToJob) -> Done:
        """Send the request on to its job."""
        channel = self._channels.get(request.job)
        if channel is None:
            return Done(found=False)
        channel.send(request.model_dump(mode="json"))
        return Done()

    async def close(self) -> None:
        """End all jobs. Runs that wait stay in the archive."""
        self._is_closing = True
        await end_tasks(*self._tasks.values())
        if self._spare is not None:
            await self._spare.end()

    async def _live(self, request: JobRequest) -> None:
        try:
            reply = await self._take_turn(request)
        except asyncio.CancelledError:
            reply = Reply(id=request.id, error=Problem(kind="cancelled", message="cancelled"))
        finally:
            del self._tasks[request.id]
        self._say(reply)

    async def _take_turn(self, request: JobRequest) -> Reply:
        lane = lane_of(request, gpu_is_there=has_gpu())
        n_before = self._n_in_lane.get(lane, 0)
        self._n_in_lane[lane] = n_before + 1
        try:
            if n_before:
                self._say(JobEvent(job=request.id, event=JobQueued(n_before=n_before)))
                async with self._kept(request) as kept, self._lanes.setdefault(lane, asyncio.Lock()):
                    return await self._start(kept)
            async with self._lanes.setdefault(lane, asyncio.Lock()):
                return await self._start(request)
        finally:
            self._n_in_lane[lane] -= 1

    @asynccontextmanager
    async def _kept(self, request: JobRequest) -> AsyncIterator[JobRequest]:
        """Archive a run that waits, unless the user cancels it before it begins."""
        if not isinstance(request, Optimize):
            yield request
            return
        keeping = asyncio.create_task(asyncio.to_thread(keep_queued, request))
        try:
            yield await asyncio.shield(keeping)
        except asyncio.CancelledError:
            kept = await keeping
            if isinstance(kept, Resume) and not self._is_closing:
                await asyncio.to_thread(drop_queued, kept)
            raise

    async def _start(self, request: JobRequest) -> Reply:
        self._say(JobEvent(job=request.id, event=JobStarted()))
        return await self._run(request)

    async def _run(self, request: JobRequest) -> Reply:
        runner = await self._runner_for(request)
        channel, is_kept = runner.channel, False
        try:
            channel.send(request.model_dump(mode="json"))
            self._channels[request.id] = channel
            reply = await self._relay(request, channel)
            if isinstance(request, EstimateTarget):
                self._captures.keep(request, runner.folder)
            if isinstance(request, InferInputs) and reply.error is None and self._spare is None:
                is_kept, self._spare = True, runner
                runner.end_later(self._forget)
            return reply
        finally:
            self._channels.pop(request.id, None)
            if not is_kept:  # a second cancellation must not leave processes behind
                await asyncio.shield(runner.end())

    async def _runner_for(self, request: JobRequest) -> Runner:
        """Return the process that inferred the shapes of a run, where it still waits, else a new one."""
        kept = self._spare
        if isinstance(request, Optimize) and kept is not None and kept.channel.is_alive:
            self._forget(kept)
            kept.stay()
            return kept
        folder = self._scratch / request.id
        folder.mkdir()
        runner = Runner(Channel(RUNNER, environment={**os.environ, "TMPDIR": str(folder)}), folder)
        try:
            await runner.channel.start()
        except BaseException:
            await asyncio.shield(runner.end())
            raise
        return runner

    def _forget(self, runner: Runner) -> None:
        if self._spare is runner:
            self._spare = None

    async def _relay(self, request: JobRequest, channel: Channel) -> Reply:
        async for message in channel.messages():
            line = RunnerLine.model_validate(message)
            if line.event is None:
                return Reply(id=request.id, result=line.result, error=line.error)
            self._say(JobEvent(job=request.id, event=line.event))
        await channel.close(GRACE_S)
        return Reply(id=request.id, error=_died(channel))


def lane_of(request: JobRequest, *, gpu_is_there: bool) -> str:
    """Return the job's lane. A GPU runs one job at a time, since a second one would disturb its timings. On the CPU,
    checks and estimates need not wait for a long run."""
    device = "cpu" if isinstance(request, EstimateTarget | InferInputs) else _device(request)
    if device == "auto":
        device = FIRST_GPU if gpu_is_there else "cpu"
    if device == "cpu":
        return f"cpu {JOB_METHODS.index(request.method)}"
    return FIRST_GPU if device == "cuda" else device


def _device(request: JobRequest) -> str:
    try:
        return load_settings(request.directory, getattr(request, "settings", {})).device
    except SettingError:
        return "cpu"  # the job itself reports the error


def _died(channel: Channel) -> Problem:
    lines = [line.strip() for line in channel.stderr().splitlines() if line.strip()][-STDERR_LINES:]
    how = f"signal {-channel.returncode}" if channel.returncode < 0 else f"status {channel.returncode}"
    return Problem(kind="died", message=f"the job's process ended with {how}: {' | '.join(lines)}".rstrip(": "))


def keep_queued(request: Optimize) -> Optimize | Resume:
    """Archive the run as queued; return the request that starts it. A request that cannot run is returned as it is: its
    job reports the error."""
    from kernel_lsp.engine.work import handle_of  # not at the top: it takes most of a second

    try:
        handle = handle_of(request)
        with Archive(handle.workspace) as archive:
            run_id = archive.start_run(handle.target, handle.request.model_dump(mode="json"), status="queued")
    except KernelLspError:
        return request
    has_model = request.has_editor_model
    return Resume(id=request.id, directory=handle.workspace, run_id=run_id, has_editor_model=has_model)


def drop_queued(request: Resume) -> None:
    """Forget a run that was cancelled before it began."""
    with Archive(request.directory) as archive:
        archive.drop_queued(request.run_id)
