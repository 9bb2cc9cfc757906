"""Build a run's report from the archive, during the run or later."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.config import find_workspace
from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.event import (
    CandidateEvaluated,
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
from kernel_lsp.engine.archived import run_result
from kernel_lsp.engine.line_costs import forward_floor_us
from kernel_lsp.engine.messages import ResultFile
from kernel_lsp.errors import KernelLspError
from kernel_lsp.evolve.archive.archive import Archive, RunRecord
from kernel_lsp.evolve.run.request import OptimizeRequest
from kernel_lsp.export.report import ReportCandidate, ReportFile, RunReport
from kernel_lsp.gpu.specs import find_gpu

REPEATED = (CandidateEvaluated, CandidateProposed, RunStarted, RunFinished, TaskCaptured)
"""Events whose contents the report has elsewhere."""


def run_report(directory: Path, run_id: str) -> RunReport:
    """Return the report of a run in the workspace of `directory`. Raises UserError when there is no such run."""
    workspace = find_workspace(directory)
    with Archive(workspace) as archive:
        record = archive.run(run_id)
        events = archive.events(record.run_id)
        report = _report(record, events).model_copy(
            update={"candidates": _candidates(archive.candidates(record.run_id), archive.verdicts(record.run_id))}
        )
    files = run_result(workspace, record.run_id).files if report.winner_id is not None else ()
    return report.model_copy(update={"files": tuple(map(_file, files))})


# --- below


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
        recommendation=recommend(finished.comparisons) if finished is not None else None,
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
