"""Find a kernel that may be exported: the winner of an archived run, or a file that passes its full check now."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.event import RunFinished
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.errors import UserError
from kernel_lsp.evolve.archive.archive import existing_archive
from kernel_lsp.plan.parser import parse_or_raise
from kernel_lsp.verify.session.check_kernel import find_planned_task, read_kernel
from kernel_lsp.verify.session.plain_build import planned_text
from kernel_lsp.verify.session.session import Session


@dataclass(frozen=True)
class Winner:
    """A candidate with its task and its full, correct verdict. `date` is the verdict's."""

    task: Task
    candidate: Candidate
    verdict: Verdict
    date: str


def archived_winner(directory: Path, run_id: str) -> Winner:
    """Return the winner of a run; ``last`` is the newest. Raises UserError when the run or its winner does not
    exist."""
    with existing_archive(directory) as archive:
        record = archive.run(run_id)
        ends = [event for event in archive.events(record.run_id) if isinstance(event, RunFinished)]
        candidate_id = ends[-1].candidate_id if ends else None
        if candidate_id is None or record.task_json is None:
            raise UserError(
                f"the run {record.run_id} has no verified kernel",
                next_step=f"kernel-lsp optimize --resume {record.run_id}",
            )
        verdict = archive.verdict(record.run_id, candidate_id, "full")
        candidate = next(each for each in archive.candidates(record.run_id) if each.id == candidate_id)
    assert verdict is not None, "a winner was checked in full"
    return Winner(Task.model_validate_json(record.task_json), candidate, verdict, record.started[:10])


async def checked_winner(kernel: Path, target: str | None, directory: Path, settings: Settings, date: str) -> Winner:
    """Run the full check of a `.cu` file with a launch plan, and return the kernel if it passes.

    Raises UserError for a file that cannot be read, has no task or is incorrect, PlanError for a plan that does not
    parse, TargetError when the task cannot be captured.
    """
    text = planned_text(read_kernel(kernel))
    plan = parse_or_raise(text, str(kernel))
    source = find_planned_task(kernel, plan, target, directory)
    candidate = Candidate(text=text, origin=Origin(proposer="user", description=str(kernel)))
    async with Session(settings) as session:
        await session.gpu_index()
        task = await session.capture(source, with_backward=plan.backward is not None)
        verdict = await (await session.verifier(source, task)).verify(candidate, "full")
    if not verdict.is_correct:
        raise UserError(
            f'export refused: the kernel\'s verdict is "{verdict.outcome.kind.replace("_", " ")}"',
            file=str(kernel),
            next_step=f"kernel-lsp check {kernel} says why",
        )
    return Winner(task, candidate, verdict, date)
