"""Long-running work: each job gets an id immediately, shows progress, can be cancelled, and reports its outcome."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kernel_lsp.config import Settings, find_workspace
from kernel_lsp.engine.client import EngineClient
from kernel_lsp.engine.messages import Cancel, JobEvent, JobRequest, Problem, Reply
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.server.features.formatting import time_text
from kernel_lsp.server.jobs.progress import Tracker, WorkDoneProgress
from kernel_lsp.server.protocol.messages import JobParams, JobState

ID_CHARACTERS = 12

Following = Literal["", "optimize", "optimize_with_backward"]
"""The run that an inference of shapes leads to."""
OnEnd = Callable[["Job", Reply], Awaitable[None]]
OnEvent = Callable[["Job", JobEvent], None]


@dataclass
class Job:
    """One job, from its command to its end. `uri` is the document from which it was started."""

    request: JobRequest
    title: str
    uri: str
    workspace: Path
    engine: EngineClient
    progress: WorkDoneProgress
    is_quiet: bool = False
    """Started automatically: its failure is not reported."""
    symbol: str = ""
    digest: str = ""
    serial: int = 0
    """With `digest`, identifies the text: the target's digest and the document's serial at the start."""
    settings: Settings | None = None
    """Settings of its file at the start, for a job whose result is valid only under them."""
    following: Following = ""
    n_restarts: int = 0
    """Number of times it was resumed after its engine died."""
    tracker: Tracker = field(default_factory=Tracker)
    state: JobState = "queued"

    @property
    def id(self) -> str:
        return self.request.id

    def params(self) -> JobParams:
        """Return the parameters of `kernelLsp/jobChanged`."""
        tracker = self.tracker
        return JobParams(
            job=self.id,
            kind=self.request.method,
            state=self.state,
            title=self.title,
            percentage=tracker.percentage,
            message=tracker.message,
            best_us=tracker.best_us,
            cost_usd=tracker.cost_usd,
            run=tracker.run_id,
            uri=self.uri,
            symbol=self.symbol,
        )


class Jobs:
    """All running jobs. `on_change` receives each change, `on_event` the jobs' events, `on_end` the reply."""

    def __init__(self, on_change: Callable[[Job], None], on_event: OnEvent, on_end: OnEnd) -> None:
        self._on_change, self._on_event, self._on_end = on_change, on_event, on_end
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[Job]:
        return iter(tuple(self._jobs.values()))

    def start(self, job: Job) -> None:
        """Send the request to the engine; return immediately."""
        self._jobs[job.id] = job
        self._tasks[job.id] = asyncio.create_task(self._live(job))

    def newest(self) -> Job | None:
        """Return the running job that was started last."""
        return next(reversed(self._jobs.values()), None)

    def get(self, job: str) -> Job | None:
        return self._jobs.get(job)

    def of_token(self, token: str | int) -> Job | None:
        """Return the job of a progress token."""
        return next((job for job in self._jobs.values() if job.progress.token == token), None)

    async def cancel(self, job: Job) -> None:
        """Ask the engine to cancel it. The job then ends through its own reply."""
        await job.engine.ask(Cancel(id=new_id(), job=job.id))

    async def close(self) -> None:
        """Stop waiting for all jobs."""
        await end_tasks(*self._tasks.values())

    async def _live(self, job: Job) -> None:
        self._on_change(job)
        try:
            reply = await job.engine.ask(job.request, lambda event: self._hear(job, event))
        except BaseException:
            job.progress.end("stopped")  # every exit closes the progress in the editor
            raise
        finally:
            self._jobs.pop(job.id, None)
            self._tasks.pop(job.id, None)
        job.state = _state(reply.error)
        job.progress.end(_ending(job, reply))
        self._on_change(job)
        await self._on_end(job, reply)

    def _hear(self, job: Job, event: JobEvent) -> None:
        job.tracker.hear(event.event)
        job.state = "queued" if event.event.kind == "job_queued" else "running"
        job.progress.report(job.tracker.percentage, job.tracker.message)
        self._on_change(job)
        self._on_event(job, event)


def new_id() -> str:
    """Return a fresh id for a job or an engine request."""
    return uuid.uuid4().hex[:ID_CHARACTERS]


def _state(problem: Problem | None) -> JobState:
    if problem is None:
        return "finished"
    return "cancelled" if problem.kind == "cancelled" else "failed"


def _ending(job: Job, reply: Reply) -> str:
    if reply.error is not None:
        return "cancelled" if reply.error.kind == "cancelled" else f"failed: {reply.error.message}"
    return f"done, best {time_text(job.tracker.best_us)}" if job.tracker.best_us is not None else "done"


OnDeath = Callable[[Path, str], None]


class Engines:
    """`on_death` receives each engine that ended unexpectedly, with its workspace and exit description."""

    def __init__(self, on_death: OnDeath) -> None:
        self._on_death = on_death
        self._engines: dict[Path, EngineClient] = {}

    def of(self, directory: Path) -> EngineClient:
        """Return the engine of the workspace that contains the directory."""
        workspace = find_workspace(directory)
        if workspace not in self._engines:
            self._engines[workspace] = EngineClient(workspace, lambda how: self._on_death(workspace, how))
        return self._engines[workspace]

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the running engines."""
        return [engine.pid for engine in self._engines.values() if engine.pid]

    async def close(self) -> None:
        """End all engines and their jobs."""
        await asyncio.gather(*(engine.close() for engine in self._engines.values()))
