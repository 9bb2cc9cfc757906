"""A kernel on every configuration of its task's folder: on those that one capture covers, and on the others one by one.

A configuration with another constant or dtype is another task. A kernel that takes it as it is serves it; for one that
does not the verdict says so, and the operator made from it goes back to PyTorch there.
"""

from __future__ import annotations

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.target import TargetSource
from kernel_lsp.core.task import Task, UncoveredConfiguration
from kernel_lsp.core.verdict import ConfigurationOutcome, Crashed, TimedOut, Verdict
from kernel_lsp.errors import TargetError
from kernel_lsp.evaluate.session import Session


async def check_configurations(
    session: Session, source: TargetSource, task: Task, candidate: Candidate, verdict: Verdict
) -> Verdict:
    """`verdict`, which is of the first configuration's capture, with what the kernel does in all others.

    A kernel that crashes or hangs in one is at fault; one that is right in the first and wrong in another serves the
    first alone. Raises EnvironmentProblem for a broken machine."""
    if not verdict.is_correct or verdict.depth != "full":
        return verdict
    served = [ConfigurationOutcome(name=c.name, is_served=True) for c in task.configurations]
    others = [await _check_other(session, source, task, other, candidate) for other in task.uncovered]
    found = (*served, *(outcome for outcome, _ in others))
    faults = [fault.outcome for _, fault in others if fault and isinstance(fault.outcome, Crashed | TimedOut)]
    changes = {"configurations": found if len(found) > 1 else ()}
    return verdict.model_copy(update={**changes, "outcome": faults[0]} if faults else changes)


# --- below


async def _check_other(
    session: Session, source: TargetSource, task: Task, other: UncoveredConfiguration, candidate: Candidate
) -> tuple[ConfigurationOutcome, Verdict | None]:
    try:
        captured = await session.worker.capture(
            source, with_backward=task.backward is not None, configuration=other.index
        )
    except TargetError as error:
        return ConfigurationOutcome(name=other.name, is_served=False, message=error.message), None
    evaluator = await session.evaluator(captured)
    verdict = await evaluator.evaluate(candidate, "full")
    message = "" if verdict.is_correct else f"{_words(verdict)}; {other.reason}"
    return ConfigurationOutcome(name=other.name, is_served=verdict.is_correct, message=message), verdict


def _words(verdict: Verdict) -> str:
    outcome = verdict.outcome
    if outcome.kind == "build_failed":
        return outcome.findings[0].message if outcome.findings else "it does not build"
    return getattr(outcome, "message", outcome.kind)
