"""The times of schedules in archives, as a table to train from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.errors import KernelLspError
from kernel_lsp.evolve.archive.archive import Archive, RunRecord, archive_file
from kernel_lsp.generate.program import Program, plan_program
from kernel_lsp.training.features import family, graph_hash, nonzero, schedule_features, task_features
from kernel_lsp.training.table import ScheduleTable, TimedSchedule, TimedTask

DEPTHS = ("full", "screen", "rank")
"""Depths of verdicts, those with the longest measurement first."""
INCORRECT = 1.0
"""Error of a schedule whose verdict is not "correct"; tables keep no verdicts."""


def schedule_tables(workspaces: Sequence[Path]) -> list[ScheduleTable]:
    """Return one table per GPU of what the searches of these workspaces measured. Runs whose kernels the generator
    prints differently today are left out; so are estimates. Raises UserError for a workspace without an archive."""
    for workspace in workspaces:
        archive_file(workspace)
    by_gpu: dict[str, list[TimedTask]] = {}
    for workspace in workspaces:
        with Archive(workspace) as archive:
            for run in archive.runs():
                for gpu, task in _measured(archive, run):
                    by_gpu.setdefault(gpu, []).append(task)
    return [
        ScheduleTable(gpu=gpu, command="archives of kernel-lsp optimize", tasks=tuple(tasks))
        for gpu, tasks in sorted(by_gpu.items())
    ]


def _measured(archive: Archive, run: RunRecord) -> Iterator[tuple[str, TimedTask]]:
    if run.task_json is None:
        return
    task = Task.model_validate_json(run.task_json)
    try:
        program = plan_program(task)
    except KernelLspError:  # its kernels came from models
        return
    timed: list[TimedSchedule] = []
    gpu = ""
    baselines: dict[str, float] = {}
    generated = [each for each in archive.candidates(run.run_id) if each.origin.proposer == "generator"]
    for candidate in generated:
        verdict = _longest_measured(archive, run.run_id, candidate.id)
        schedule = None if verdict is None else _timed(candidate, verdict, program, task)
        if verdict is not None and schedule is not None:
            gpu = verdict.measurement.gpu if verdict.measurement is not None else gpu
            baselines |= {name: us for each in verdict.times.values() for name, us in each.baselines_us.items()}
            timed.append(schedule)
    if gpu and any(each.is_correct for each in timed[:1]):  # the default is proposed first
        yield (
            gpu,
            TimedTask(
                name=f"{task.name}-{run.run_id}",
                graph=graph_hash(task),
                family=family(task),
                features=nonzero(task_features(task)),
                baselines_us=baselines if task.backward is None else {},
                schedules=tuple(timed),
            ),
        )


def _longest_measured(archive: Archive, run_id: str, candidate_id: str) -> Verdict | None:
    """Return the verdict with the longest measurement; of a candidate that failed, the verdict that says so."""
    found = [verdict for depth in DEPTHS if (verdict := archive.verdict(run_id, candidate_id, depth)) is not None]
    measured = (verdict for verdict in found if verdict.measurement is not None or not verdict.is_correct)
    return next(measured, None)


def _timed(candidate: Candidate, verdict: Verdict, program: Program, task: Task) -> TimedSchedule | None:
    """Return the schedule with its time; None where the generator prints another text for it today."""
    realized = program.realize(candidate.origin.schedule)
    if _without_task(realized.text) != _without_task(candidate.text):
        return None
    try:
        features = schedule_features(realized, task)
    except KernelLspError:  # a contract that excludes the captured sizes
        return None
    time_us = verdict.measurement.time_us if verdict.measurement is not None else None
    error = 0.0 if verdict.is_correct else INCORRECT
    return TimedSchedule(schedule=candidate.origin.schedule, time_us=time_us, error=error, features=features)


def _without_task(text: str) -> str:
    """Return the text without its `task:` line, which names a path."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("// task:"))
