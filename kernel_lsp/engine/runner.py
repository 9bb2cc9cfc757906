"""One job in a process: the request is the first line of stdin, then come `RunnerLine`s on stdout, and on stdin the
answers of the editor's model.

A process of its own because a job computes: the engine must stay able to hear a cancellation, and killing this process
kills everything the job started. SIGTERM ends the job in order, so that its run is marked and its files are removed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from kernel_lsp.core.model import Noun
from kernel_lsp.engine.editor_model import EditorModelCalls
from kernel_lsp.engine.messages import JobNews, JobRequest, Problem
from kernel_lsp.engine.problems import problem_of
from kernel_lsp.engine.stdio import claim_stdout, open_stdin, write_line
from kernel_lsp.process.priority import step_back

EXIT_OK, EXIT_ENDED = 0, 143
"""143 is what a shell reports for SIGTERM."""
NICENESS = 10
"""An editor, and the server that answers it, go first. Children inherit it."""
_JOB_REQUEST: TypeAdapter[JobRequest] = TypeAdapter(JobRequest)


class RunnerLine(Noun):
    """An event on the way, or the end: a result or a problem."""

    event: JobNews | None = None
    result: dict[str, Any] | None = None
    error: Problem | None = None


def main() -> int:
    """Run the job to its end; returns the exit status."""
    stdout = claim_stdout()
    step_back(NICENESS)

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        stdin = await open_stdin()
        line = await stdin.readline()
        calls = EditorModelCalls(lambda news: write_line(stdout, RunnerLine(event=news)))
        listening = asyncio.create_task(calls.listen(stdin))
        try:
            write_line(stdout, await _outcome(line, calls))
        finally:
            listening.cancel()

    try:
        asyncio.run(run())
    except (asyncio.CancelledError, BrokenPipeError, KeyboardInterrupt):
        return EXIT_ENDED
    return EXIT_OK


# --- below


async def _outcome(line: bytes, calls: EditorModelCalls) -> RunnerLine:
    from kernel_lsp.engine.work import do  # heavy: the signal handler has to be there before

    try:
        result = await do(_JOB_REQUEST.validate_json(line), calls.tell, Path(os.environ["TMPDIR"]), calls.ask)
    except Exception as error:  # whatever a job raises ends that job alone, and is told
        sys.stderr.write(traceback.format_exc())
        return RunnerLine(error=problem_of(error))
    return RunnerLine(result=result.model_dump(mode="json"))


if __name__ == "__main__":
    sys.exit(main())
