"""Spread candidates over the GPUs of this machine.

A GPU's candidates keep one event loop busy: it chooses cases, audits code and judges. So each GPU but the first, whose
verdicts this process reaches, has a process of its own with a whole session (`gpu_process.py`). Messages are JSON
lines: to it a `Start`, then a `Request` for each verdict; from it a `Said` once the GPU is open, and one for each
request.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from kernel_lsp import errors
from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.model import Noun
from kernel_lsp.core.task import TargetSource, Task
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.errors import ConnectionLostError, EnvironmentProblem, InternalError, KernelLspError
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.process.channel import Channel
from kernel_lsp.process.supervisor import scrubbed_environment
from kernel_lsp.verify.gpu.checks import MeasuringGpu
from kernel_lsp.verify.gpu.gpu_device import Load
from kernel_lsp.verify.model.cases import Depth
from kernel_lsp.verify.session.pipeline import Platform
from kernel_lsp.verify.session.verifier import Verifier

Value = TypeVar("Value")
PROGRAM = (sys.executable, "-m", "kernel_lsp.verify.session.gpu_process")
MAX_LOSSES = 3
"""Ends of a GPU's process before the command ends, too."""
CLOSE_S = 10.0
"""Seconds for a process to end its workers and remove its files."""


class Start(Noun):
    """The task, and the session's settings, whose device is this process's GPU."""

    settings: Settings
    source: TargetSource
    with_backward: bool
    full_wait_s: float = 0.0
    peers: tuple[str, ...] = ()
    n_slots: int


class Request(Noun):
    """A verdict to reach; without a candidate the one of that number is cancelled."""

    number: int
    candidate: Candidate | None = None
    depth: Depth = "full"


class Problem(Noun):
    """An exception of ours."""

    kind: str
    message: str
    file: str | None = None
    line: int | None = None
    next_step: str = ""

    @classmethod
    def of(cls, error: KernelLspError) -> Problem:
        return cls(
            kind=type(error).__name__,
            message=error.message,
            file=error.file,
            line=error.line,
            next_step=error.next_step,
        )

    def error(self) -> KernelLspError:
        """Return the exception."""
        kind = getattr(errors, self.kind, InternalError)
        return kind(self.message, file=self.file, line=self.line, next_step=self.next_step)  # type: ignore[no-any-return]  # by name


class Said(Noun):
    """The name of the open GPU, a verdict, or a problem: of the request of that number, else of the whole process."""

    gpu: str = ""
    number: int | None = None
    verdict: Verdict | None = None
    problem: Problem | None = None


class SpreadVerifier(Verifier):
    """Reaches verdicts on several GPUs: each candidate's on the one with the fewest. The other GPUs' processes start
    when a second candidate comes; until they are open, the first GPU takes all."""

    def __init__(
        self,
        source: TargetSource,
        task: Task,
        platform: Platform,
        measured_on: Sequence[MeasuringGpu],
        others: Sequence[GpuProcess],
    ) -> None:
        super().__init__(source, task, platform, measured_on)
        self._others = others
        self._own = Load()
        self.n_slots *= 1 + len(others)  # as many for each as for one alone: with half of them GPUs waited

    async def __aexit__(self, *error: object) -> None:
        await asyncio.gather(*(other.close() for other in self._others))
        await super().__aexit__(*error)

    @property
    def device_name(self) -> str:
        """Return the name of the GPUs, and their number."""
        name = super().device_name.replace(" (cuda:0)", "", 1)
        return f"{1 + len(self._others)} x {name}"

    def is_on_gpu(self, candidate_id: str) -> bool:
        """Return True: this process does not see which candidates the others' GPUs run."""
        return True

    @property
    def losses(self) -> tuple[str, ...]:
        """Return why processes of other GPUs ended before their time: their candidates went to the others."""
        return tuple(message for other in self._others for message in other.losses)

    async def open_all(self) -> None:
        """Wait until every GPU is open. Raises what hinders one."""
        await asyncio.gather(*(other.opened() for other in self._others))

    async def verify(self, candidate: Candidate, depth: Depth) -> Verdict:
        """Return the verdict. A candidate whose GPU's process ends is verified again on another GPU."""
        while True:
            if self._own.n:
                for other in self._others:
                    other.start()
            ready = [other for other in self._others if other.is_open]
            chosen = min(ready, key=lambda each: each.load.n, default=None)
            if chosen is None or self._own.n <= chosen.load.n:
                with self._own.assigned():
                    return await super().verify(candidate, depth)
            with chosen.load.assigned(), suppress(ConnectionLostError):
                return await chosen.verify(candidate, depth)


class GpuProcess:
    """The process of one GPU, started when it is first needed, and again after its end."""

    def __init__(self, start: Start) -> None:
        self._start, self.load = start, Load()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Verdict | None]] = {}
        self._opening: asyncio.Future[None] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._n_losses = 0
        self.losses: list[str] = []
        """The reasons for which the process ended before its time."""

    @property
    def is_open(self) -> bool:
        """Check whether it takes candidates. Raises what hindered its start."""
        if self._opening is None or not self._opening.done():
            return False
        self._opening.result()
        return True

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()
            self._serving = asyncio.create_task(self._serve(self._opening))

    async def opened(self) -> None:
        """Wait until it takes candidates. Raises what hinders that."""
        self.start()
        assert self._opening is not None
        await asyncio.shield(self._opening)

    async def verify(self, candidate: Candidate, depth: Depth) -> Verdict:
        """Return the verdict. Raises ConnectionLostError when the process ends before."""
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send(Request(number=number, candidate=candidate, depth=depth))
        try:
            verdict = await self._waiting[number]
            assert verdict is not None, "an answer without a problem has a verdict"
            return verdict
        except asyncio.CancelledError:
            self._send(Request(number=number))
            raise
        finally:
            del self._waiting[number]

    async def close(self) -> None:
        """End the process, and everything that it started."""
        await end_tasks(self._serving)

    def _send(self, request: Request) -> None:
        self._channel.send(request.model_dump(mode="json"))

    async def _serve(self, opening: asyncio.Future[None]) -> None:
        self._channel = Channel(PROGRAM, environment=_environment())
        try:
            await self._channel.start()
            self._channel.send(self._start.model_dump(mode="json"))
            async for message in self._channel.messages():
                self._take(Said.model_validate(message), opening)
            self._end(opening)
        finally:
            await self._channel.close(CLOSE_S)

    def _take(self, said: Said, opening: asyncio.Future[None]) -> None:
        problem = said.problem.error() if said.problem is not None else None
        if said.number is None:
            _settle(opening, None, problem)
        elif said.number in self._waiting:
            _settle(self._waiting[said.number], said.verdict, problem)

    def _end(self, opening: asyncio.Future[None]) -> None:
        """Give up what was under way; a process that was open may be started again."""
        device, last = self._start.settings.device, self._channel.stderr().strip().rpartition("\n")[2]
        message = f"the process of {device} ended: {last[:200] or f'exit status {self._channel.returncode}'}"
        self._n_losses += 1
        self.losses.append(message)
        if not opening.done() or self._n_losses >= MAX_LOSSES:
            problem = EnvironmentProblem(message, next_step="repeat the command, or name one GPU with --device cuda:N")
            self._opening = asyncio.get_running_loop().create_future() if opening.done() else opening
            self._opening.set_exception(problem)
        elif opening.exception() is None:
            self._opening = None
        for waiting in self._waiting.values():
            _settle(waiting, None, ConnectionLostError(message))


def _settle(future: asyncio.Future[Value], value: Value, error: KernelLspError | None) -> None:
    """Set a future's outcome, unless its waiter was cancelled."""
    if not future.done():
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)


def _environment() -> Mapping[str, str]:
    """Return a child's environment, with the folder of the lock files that keep GPUs exclusive."""
    name = "XDG_RUNTIME_DIR"
    return scrubbed_environment({name: os.environ[name]} if name in os.environ else None)
