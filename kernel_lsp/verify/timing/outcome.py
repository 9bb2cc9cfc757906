"""Operations to time, and the possible outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernel_lsp.core.measurement import Comparison
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.verdict import Crashed, Unsupported
from kernel_lsp.process.worker_client import CaseFiles, OperationName


@dataclass(frozen=True)
class TimedOperation:
    """An operation to time: a candidate that its worker has loaded, bound to the shapes of a case's files. `expected`
    are the fingerprints of judged outputs, by name. `is_ranking` asks for few rounds, beside one baseline, once every
    baseline that is ready has a time."""

    candidate_id: str
    bound: BoundOperation
    direction: OperationName
    files: CaseFiles = field(repr=False)
    expected: Mapping[str, int] = field(default_factory=dict)
    is_ranking: bool = False


@dataclass(frozen=True)
class Timed:
    """The time with its baselines."""

    comparison: Comparison


@dataclass(frozen=True)
class NotTimed:
    """PyTorch itself could not be timed, through no fault of the candidate."""

    reason: str


@dataclass(frozen=True)
class TimingFailure:
    """No time, through a fault of the candidate or of the evaluation."""

    message: str


class CandidateBroke(TimingFailure):
    """The candidate's process crashed, hung or ran out of memory while it was timed: replace it."""


class WrongWhileTimed(TimingFailure):
    """Timed calls differed from judged calls: outputs or inputs changed, or a guard was overwritten."""


class ImpossibleTime(TimingFailure):
    """The time is shorter than the hardware allows: an error of the evaluation, not a speedup."""


TimingOutcome = Timed | CandidateBroke | WrongWhileTimed | ImpossibleTime | NotTimed


def verdict_of(failure: TimingFailure, operation: str, device: str) -> Crashed | Unsupported:
    """Convert a failure into a verdict."""
    if isinstance(failure, ImpossibleTime):
        return Unsupported(message=f"{operation}: {failure.message}")
    return Crashed(message=f"{operation}, while timed on {device}: {failure.message}")
