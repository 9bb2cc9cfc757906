"""The engine's loop: reads requests, answers the short ones, queues the long ones."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from kernel_lsp.core.model import Noun
from kernel_lsp.engine.captures import Captures
from kernel_lsp.engine.jobs import JobQueue
from kernel_lsp.engine.messages import (
    REQUEST,
    AnswerModel,
    Cancel,
    Check,
    Done,
    DraftPlan,
    EstimateTarget,
    GetKernelRecord,
    GetMachineCode,
    GetReport,
    GetResult,
    InferInputs,
    JobEvent,
    ListRuns,
    Optimize,
    OptimizeLines,
    PlanDraft,
    Problem,
    ProfileKernel,
    Reply,
    ReportPage,
    Request,
    Resume,
    RunList,
    TakeVerified,
)
from kernel_lsp.engine.runner import problem_of
from kernel_lsp.process.stdio import claim_stdout, open_stdin, write_line

CAPTURES = "captures"


def main() -> None:
    """Serve stdin until it ends."""
    stdout = claim_stdout()
    with scratch_root() as scratch:
        asyncio.run(Engine(stdout, scratch).serve())


class Engine:
    """The jobs of one engine process. Its event loop never blocks."""

    def __init__(self, stdout: BinaryIO, scratch: Path) -> None:
        self._stdout = stdout
        self._captures = Captures(scratch / CAPTURES)
        self._jobs = JobQueue(self._say, scratch, self._captures)
        self._answers: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Serve until the client disconnects; then end every job."""
        stdin = await open_stdin()
        while line := await stdin.readline():
            self._handle(line)
        await self._jobs.close()

    def _handle(self, line: bytes) -> None:
        try:
            request = REQUEST.validate_json(line)
        except ValidationError as error:
            self._say(Reply(id=_id_of(line), error=Problem(kind="protocol", message=_first(error))))
            return
        match request:
            case EstimateTarget(as_captured=True) if self._captures.has(request):
                self._answer(request.id, partial(self._captures.estimate, request))
            case Optimize() | OptimizeLines() | Resume() | Check() | ProfileKernel() | EstimateTarget() | InferInputs():
                if self._jobs.is_known(request.id):
                    problem = Problem(kind="protocol", message=f"there is a job '{request.id}' already")
                    self._say(Reply(id="", error=problem))
                else:
                    self._jobs.add(request)
            case Cancel():
                self._say(_reply(request, Done(found=self._jobs.cancel(request.job))))
            case AnswerModel() | TakeVerified():
                self._say(_reply(request, self._jobs.forward(request)))
            case ListRuns() | GetResult() | GetReport() | GetKernelRecord():
                self._answer(request.id, partial(_from_archive, request))
            case GetMachineCode():
                self._answer(request.id, partial(_machine_code, request))
            case DraftPlan():
                self._answer(request.id, partial(_drafted, request))

    def _answer(self, id_: str, find: Callable[[], Noun]) -> None:
        """Answer without a job, in a thread: reading cached data, a build, and the first import may take a second."""
        task = asyncio.create_task(self._find(id_, find))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _find(self, id_: str, find: Callable[[], Noun]) -> None:
        try:
            self._say(Reply(id=id_, result=(await asyncio.to_thread(find)).model_dump(mode="json")))
        except Exception as error:  # the error is returned to the client, and the engine lives on
            self._say(Reply(id=id_, error=problem_of(error)))

    def _say(self, message: JobEvent | Reply) -> None:
        write_line(self._stdout, message)


def _from_archive(request: ListRuns | GetResult | GetReport | GetKernelRecord) -> Noun:
    from kernel_lsp.engine.archived import kernel_record, list_runs, run_result

    if isinstance(request, GetKernelRecord):
        return kernel_record(request.directory, request.text)

    if isinstance(request, ListRuns):
        return RunList(runs=list_runs(request.directory))
    if isinstance(request, GetReport):
        return _report_page(request)
    return run_result(request.directory, request.run_id)


def _report_page(request: GetReport) -> ReportPage:
    from kernel_lsp.engine.archived import run_report
    from kernel_lsp.export.report import render_report

    report = run_report(request.directory, request.run_id)
    return ReportPage(run_id=report.run_id, data=report.model_dump(mode="json"), html=render_report(report))


def _machine_code(request: GetMachineCode) -> Noun:
    """Compile in the thread of the answer, with a loop of its own."""
    from kernel_lsp.engine.machine_code import machine_code

    return asyncio.run(machine_code(request))


def _drafted(request: DraftPlan) -> Noun:
    from kernel_lsp.source.plan_task import drafted_plan

    return PlanDraft(text=drafted_plan(request.file, request.text, line=request.line + 1))


def _reply(request: Request, result: Noun) -> Reply:
    return Reply(id=request.id, result=result.model_dump(mode="json"))


def _id_of(line: bytes) -> str:
    try:
        message = json.loads(line)
    except ValueError:
        return ""
    return str(message.get("id", "")) if isinstance(message, dict) else ""


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'request'}: {first['msg']}"


PREFIX = "kernel-lsp-engine-"
LOCK_NAME = "lock"


@contextmanager
def scratch_root() -> Iterator[Path]:
    """Create a locked folder for this process, removed at its end. Folders of dead engines are removed first."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    root = Path(tempfile.mkdtemp(prefix=PREFIX))
    with (root / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield root
        finally:
            shutil.rmtree(root, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    for root in folder.glob(f"{PREFIX}*"):
        if _is_ours(root) and not _is_held(root / LOCK_NAME):
            shutil.rmtree(root, ignore_errors=True)


def _is_ours(root: Path) -> bool:
    """Return True for a folder owned by this user that is not a symbolic link."""
    with suppress(OSError):
        return root.is_dir() and not root.is_symlink() and root.stat().st_uid == os.getuid()
    return False


def _is_held(lock: Path) -> bool:
    """Return True for a locked folder, or an undecidable one: a folder being created has no lock yet."""
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
