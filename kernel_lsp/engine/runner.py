"""Run one job in its own process: the first line of stdin is the request, further lines are replies of the editor's
model, and stdout carries `RunnerLine`s. An inference of shapes may be followed by the run that it is made for.

A job computes, so it needs its own process: the engine stays able to receive a cancellation, and killing this process
kills everything that the job started. SIGTERM ends the job in order: its run is marked and its files are removed.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kernel_lsp.core.event import CandidateVerified
from kernel_lsp.core.model import Noun
from kernel_lsp.engine.inferred import infer
from kernel_lsp.engine.messages import (
    InferInputs,
    JobNews,
    JobRequest,
    ModelAsked,
    ModelDropped,
    Optimize,
    OptimizeLines,
    Problem,
    ProblemKind,
    TakeVerified,
    ToJob,
)
from kernel_lsp.engine.start_ahead import StartAhead
from kernel_lsp.errors import EnvironmentProblem, KernelLspError, UserError, WorkspaceBusyError
from kernel_lsp.llm.request import ModelFailed, ModelRequest, Replied
from kernel_lsp.process.stdio import claim_stdout, open_stdin, write_line
from kernel_lsp.process.tree import step_back

EXIT_OK, EXIT_ENDED = 0, 143
"""Exit statuses; 143 is a shell's status for SIGTERM."""
NICENESS = 4
"""Scheduling priority: below the editor and its server, inherited by child processes. A job has 0.4 of the
share of a normal process. At 10 it has 0.1: less than 4 % of a core beside five busy processes on two cores. Shapes
are inferred at normal priority: a person waits for the prompt, and it takes 5 s of a processor."""
AWAITED_NICENESS, AWAITED_S = 1, 120.0
"""Priority of a run while a person waits for its first verified kernel, and for how many seconds at most: with 0.8 of
a normal share. At 4 that kernel came 105 s after the prompt beside a load of 10 on two cores."""
WORK = "kernel_lsp.engine.work"
"""The module that runs, checks and estimates: importing it takes 1.5 s of a processor."""
_JOB_REQUEST: TypeAdapter[JobRequest] = TypeAdapter(JobRequest)
_TO_JOB: TypeAdapter[ToJob] = TypeAdapter(ToJob)


class RunnerLine(Noun):
    """An event, or the end: a result or a problem."""

    event: JobNews | None = None
    result: dict[str, Any] | None = None
    error: Problem | None = None


def main() -> int:
    """Run the job to its end; return the exit status."""
    stdout = claim_stdout()
    step_back(0)

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        stdin = await open_stdin()
        priority = Priority()

        def tell(news: JobNews) -> None:
            if isinstance(news, CandidateVerified):
                priority.lower()
            write_line(stdout, RunnerLine(event=news))

        calls = EditorModelCalls(tell)
        async with StartAhead() as ahead:
            request = _JOB_REQUEST.validate_json(await stdin.readline())
            if isinstance(request, InferInputs):
                importing = Thread(target=importlib.import_module, args=(WORK,), daemon=True)
                importing.start()  # while the worker tries shapes
                write_line(stdout, await _outcome(request, calls, ahead))
                importing.join()
                line = await stdin.readline()
                if not line:
                    return
                request = _JOB_REQUEST.validate_json(line)
                priority.begin(request)
            else:
                priority.begin(request)
            listening = asyncio.create_task(calls.listen(stdin))
            try:
                write_line(stdout, await _outcome(request, calls, ahead))
            finally:
                listening.cancel()

    try:
        asyncio.run(run())
    except (asyncio.CancelledError, BrokenPipeError, KeyboardInterrupt):
        return EXIT_ENDED
    return EXIT_OK


class Priority:
    """The scheduling priority of this process and its children: lowered in one step, or in two where somebody waits."""

    def __init__(self) -> None:
        self._niceness = 0

    def begin(self, request: JobRequest) -> None:
        """Step back by what the request allows."""
        if not isinstance(request, Optimize | OptimizeLines):
            self.lower()
            return
        self.lower(AWAITED_NICENESS)
        asyncio.get_running_loop().call_later(AWAITED_S, self.lower)

    def lower(self, niceness: int = NICENESS) -> None:
        """Step back to this niceness, once."""
        if niceness > self._niceness:
            step_back(niceness - self._niceness)
            self._niceness = niceness


async def _outcome(request: JobRequest, calls: EditorModelCalls, ahead: StartAhead) -> RunnerLine:
    try:
        start = await ahead.of(request)
        if isinstance(request, InferInputs) and start is not None:
            result: Noun = await infer(request, calls.tell, start)
        else:
            do = importlib.import_module(WORK).do  # beside the worker's imports
            result = await do(request, calls.tell, Path(os.environ["TMPDIR"]), calls.ask, start, calls.taken)
    except Exception as error:  # any exception ends this job only, and is reported
        sys.stderr.write(traceback.format_exc())
        return RunnerLine(error=problem_of(error))
    return RunnerLine(result=result.model_dump(mode="json"))


def problem_of(error: Exception) -> Problem:
    """Convert an exception to a message for the user. One that is not a KernelLspError is an internal error."""
    if not isinstance(error, KernelLspError):
        return Problem(kind="internal", message=f"{type(error).__name__}: {error}")
    return Problem(
        kind=_kind(error), message=error.message, file=error.file, line=error.line, next_step=error.next_step
    )


def _kind(error: KernelLspError) -> ProblemKind:
    if isinstance(error, WorkspaceBusyError):
        return "busy"
    if isinstance(error, EnvironmentProblem):
        return "environment"
    return "user" if isinstance(error, UserError) else "internal"


class EditorModelCalls:
    """The pending calls of one job, and whether its verified candidate was taken. `tell` sends an event to the
    client."""

    def __init__(self, tell: Callable[[JobNews], None]) -> None:
        self.tell = tell
        self.taken = asyncio.Event()
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Replied | ModelFailed]] = {}

    async def ask(self, request: ModelRequest) -> Replied | ModelFailed:
        """Return the reply of the editor's model. Waits until cancelled, and then tells the editor to drop the call."""
        call = str(next(self._numbers))
        self._waiting[call] = asyncio.get_running_loop().create_future()
        self.tell(ModelAsked(call=call, request=request))
        try:
            return await self._waiting[call]
        except asyncio.CancelledError:
            self.tell(ModelDropped(call=call))
            raise
        finally:
            del self._waiting[call]

    def take(self, line: bytes) -> None:
        """Accept one request. Malformed and late replies are ignored: their call times out."""
        try:
            answer = _TO_JOB.validate_json(line)
        except ValidationError:
            return
        if isinstance(answer, TakeVerified):
            self.taken.set()
            return
        waiting = self._waiting.get(answer.call)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer.outcome)

    async def listen(self, stdin: asyncio.StreamReader) -> None:
        """Accept replies until stdin ends."""
        while line := await stdin.readline():
            self.take(line)


if __name__ == "__main__":
    sys.exit(main())
