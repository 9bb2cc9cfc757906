"""What is timed, and what may come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernel_lsp.core.measurement import Comparison
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.verdict import Crashed, Unsupported
from kernel_lsp.process.worker_client import CaseFiles, OperationName


@dataclass(frozen=True)
class TimedOperation:
    """What is to be timed: a candidate that its worker has loaded, bound to the shapes of a case's files. `expected`
    are the fingerprints of outputs that were judged, by name."""

    candidate_id: str
    bound: BoundOperation
    direction: OperationName
    files: CaseFiles = field(repr=False)
    expected: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Timed:
    """How fast, beside what."""

    comparison: Comparison


@dataclass(frozen=True)
class NotTimed:
    """PyTorch itself could not be timed, for no fault of the candidate's."""

    reason: str


@dataclass(frozen=True)
class TimingFailure:
    """There is no time, and the candidate or the evaluation is at fault."""

    message: str


class CandidateBroke(TimingFailure):
    """The candidate's process crashed, hung or ran out of memory while it was timed: replace it."""


class WrongWhileTimed(TimingFailure):
    """Timed calls did not do what judged calls did: outputs or inputs changed, or a guard was written over."""


class ImpossibleTime(TimingFailure):
    """Shorter than the hardware allows: an error of the evaluation, and no win."""


TimingOutcome = Timed | CandidateBroke | WrongWhileTimed | ImpossibleTime | NotTimed


def verdict_of(failure: TimingFailure, operation: str, device: str) -> Crashed | Unsupported:
    """What a failure makes of the verdict."""
    if isinstance(failure, ImpossibleTime):
        return Unsupported(message=f"{operation}: {failure.message}")
    return Crashed(message=f"{operation}, while timed on {device}: {failure.message}")
