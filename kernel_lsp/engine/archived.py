"""Read runs, their results and their reports from the archive, during a run or later."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from kernel_lsp.config import FOLDER_NAME, find_workspace
from kernel_lsp.core.candidate import Candidate, candidate_id_of
from kernel_lsp.core.event import (
    CandidateEvaluated,
    CandidateJudged,
    CandidateProposed,
    Event,
    ModelCalled,
    RunFinished,
    RunStarted,
    TaskCaptured,
)
from kernel_lsp.core.recommendation import recommend
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.engine.captures import forward_floor_us
from kernel_lsp.engine.generated import origin_of
from kernel_lsp.engine.messages import KernelRecord, Origin, ResultFile, RunResult, RunSummary
from kernel_lsp.errors import KernelLspError
from kernel_lsp.evolve.archive.archive import Archive, RunRecord, existing_archive, is_workspace_free
from kernel_lsp.evolve.run.optimize import OUT_FOLDER_NAME, describe_verification
from kernel_lsp.evolve.run.request import OptimizeRequest
from kernel_lsp.export.python.operator import render_operator
from kernel_lsp.export.report import ReportCandidate, ReportFile, RunReport
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.plan.parser import parse_or_raise
from kernel_lsp.source.python_file import digest_of

MAX_RUNS_LISTED = 200
_TASK_LINE = re.compile(r"^// task: .*$", re.MULTILINE)


def list_runs(directory: Path) -> tuple[RunSummary, ...]:
    """Return the runs of the workspace of `directory`, newest first; empty without an archive."""
    workspace = find_workspace(directory)
    if not (workspace / FOLDER_NAME).is_dir():
        return ()
    with Archive(workspace) as archive:
        records = archive.runs()[:MAX_RUNS_LISTED]
        if any(record.status == "running" for record in records) and is_workspace_free(workspace):
            records = [_without_process(record) for record in records]
        return tuple(_summary(archive, record) for record in records)


def run_result(directory: Path, run_id: str) -> RunResult:
    """Return a finished run's result with its files as text. Raises UserError when there is no such run."""
    with existing_archive(directory) as archive:
        record = archive.run(run_id)
        summary = _summary(archive, record)
        try:
            return RunResult(summary=summary, files=_files(archive, record, summary), lines=_origin(record).lines)
        except KernelLspError as error:  # the result stands; only its files cannot be placed
            return RunResult(summary=summary, problem=str(error))


def kernel_record(directory: Path, text: str) -> KernelRecord:
    """Return what the newest run says of a kernel with this text; an empty record without any."""
    workspace = find_workspace(directory)
    if not (workspace / FOLDER_NAME).is_dir():
        return KernelRecord()
    candidate_id = candidate_id_of(text)
    with Archive(workspace) as archive:
        newest = next(iter(archive.dates_of(candidate_id)), None)
        if newest is None:
            return KernelRecord()
        run_id, date = newest
        verdicts = [each for each in archive.verdicts(run_id) if each.candidate_id == candidate_id]
        judged = [event for event in archive.events(run_id) if isinstance(event, CandidateJudged)]
    return KernelRecord(
        run_id=run_id,
        date=date[:10],
        verdict=verdicts[-1] if verdicts else None,
        judged=tuple(event for event in judged if event.candidate_id == candidate_id),
    )


def _without_process(record: RunRecord) -> RunRecord:
    """Return a run as it is when no process of a run is left: one that was running has been killed."""
    return replace(record, status="interrupted") if record.status == "running" else record


def _summary(archive: Archive, record: RunRecord) -> RunSummary:
    request = OptimizeRequest.model_validate(record.request)
    file, _, symbol = request.target.partition("::")
    events = archive.events(record.run_id)
    finished = next((event for event in reversed(events) if isinstance(event, RunFinished)), None)
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    captured = next((event for event in events if isinstance(event, TaskCaptured)), None)
    origin = _origin(record)
    path, lines = origin.file, origin.lines
    digest = started.digest if started is not None else ""
    summary = RunSummary(
        run_id=record.run_id,
        target=request.target if path.name == Path(file).name else f"{path.name}::{symbol}",
        file=str(path),
        symbol=symbol,
        status=record.status,
        started=record.started,
        digest=digest_of(lines.function) if lines is not None else digest,
        name=captured.name if captured is not None else "",
        out=request.out or (path if path.is_dir() else path.parent) / OUT_FOLDER_NAME,
        backward=request.backward,
        device=started.device if started is not None else "",
    )
    if finished is None:
        return summary
    return summary.model_copy(
        update={
            "candidate_id": finished.candidate_id,
            "reason": finished.reason,
            "comparisons": finished.comparisons,
            "recommendation": recommend(finished.comparisons, asked_models=finished.n_model_calls > 0),
            "library_steps": finished.library_steps,
        }
    )


def _origin(record: RunRecord) -> Origin:
    """Return the user's file, and lines if any, that the run's code comes from."""
    request = OptimizeRequest.model_validate(record.request)
    return origin_of(Path(os.path.abspath(request.directory / request.target.partition("::")[0])))


def _files(archive: Archive, record: RunRecord, summary: RunSummary) -> tuple[ResultFile, ...]:
    """Return the result files. Raises TargetError when an existing file is in the way."""
    verdict = archive.verdict(record.run_id, summary.candidate_id, "full") if summary.candidate_id else None
    if verdict is None or record.task_json is None:
        return ()
    candidate = next(c for c in archive.candidates(record.run_id) if c.id == summary.candidate_id)
    task, text = Task.model_validate_json(record.task_json), candidate.text
    lines = _origin(record).lines
    if lines is not None:  # their function moves into the user's file, which becomes the kernel's task
        target = f"{os.path.relpath(summary.file, summary.out)}::{lines.name}"
        task, text = task.model_copy(update={"target": target}), _TASK_LINE.sub(f"// task: {target}", text, count=1)
    plan = parse_or_raise(text, f"{task.name}.cu")
    texts = render_operator(task, text, plan, summary.out, verification=describe_verification(verdict))
    return tuple(ResultFile(path=path, text=text) for path, text in texts.items())


REPEATED = (CandidateEvaluated, CandidateProposed, RunStarted, RunFinished, TaskCaptured)
"""Events whose contents the report has elsewhere."""


def run_report(directory: Path, run_id: str) -> RunReport:
    """Return the report of a run in the workspace of `directory`. Raises UserError when there is no such run."""
    with existing_archive(directory) as archive:
        record = archive.run(run_id)
        events = archive.events(record.run_id)
        report = _report(record, events).model_copy(
            update={"candidates": _candidates(archive.candidates(record.run_id), archive.verdicts(record.run_id))}
        )
    files = run_result(directory, record.run_id).files if report.winner_id is not None else ()
    return report.model_copy(update={"files": tuple(map(_file, files))})


def _report(record: RunRecord, events: list[Event]) -> RunReport:
    request = OptimizeRequest.model_validate(record.request)
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    captured = next((event for event in events if isinstance(event, TaskCaptured)), None)
    finished = next((event for event in reversed(events) if isinstance(event, RunFinished)), None)
    calls = [event for event in events if isinstance(event, ModelCalled)]
    return RunReport(
        run_id=record.run_id,
        target=request.target,
        status=record.status,
        started=record.started,
        n_generations=request.generations,
        target_gpu=started.target_gpu if started is not None else request.target_gpu,
        device=started.device if started is not None else "",
        name=captured.name if captured is not None else "",
        summary=captured.summary if captured is not None else "",
        configurations=captured.configurations if captured is not None else (),
        notes=captured.notes if captured is not None else (),
        winner_id=finished.candidate_id if finished is not None else None,
        reason=finished.reason if finished is not None else "",
        stopped=finished.stopped if finished is not None else "",
        comparisons=finished.comparisons if finished is not None else {},
        recommendation=recommend(finished.comparisons, asked_models=bool(calls)) if finished is not None else None,
        library_steps=finished.library_steps if finished is not None else (),
        elapsed_s=finished.elapsed_s if finished is not None else 0.0,
        cost_usd=max((call.run_cost_usd for call in calls), default=0.0),
        n_model_calls=len(calls),
        floor_us=_floor_us(record, request),
        events=tuple(event for event in events if not isinstance(event, REPEATED)),
    )


def _floor_us(record: RunRecord, request: OptimizeRequest) -> float | None:
    """Return the speed of light; None when the archive has no task yet or names an unknown GPU."""
    if record.task_json is None:
        return None
    try:
        return forward_floor_us(Task.model_validate_json(record.task_json), find_gpu(request.target_gpu))
    except KernelLspError:
        return None


def _candidates(candidates: list[Candidate], verdicts: list[Verdict]) -> tuple[ReportCandidate, ...]:
    return tuple(
        ReportCandidate(
            candidate_id=candidate.id,
            generation=candidate.origin.generation,
            proposer=candidate.origin.model or candidate.origin.proposer,
            description=candidate.origin.description,
            operator=candidate.origin.operator,
            parents=candidate.origin.parents,
            schedule=candidate.origin.schedule,
            text=candidate.text,
            verdicts=tuple(verdict for verdict in verdicts if verdict.candidate_id == candidate.id),
        )
        for candidate in candidates
    )


def _file(file: ResultFile) -> ReportFile:
    try:
        before = file.path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        before = ""
    return ReportFile(path=str(file.path), text=file.text, before=before)
