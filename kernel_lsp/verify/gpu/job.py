"""Jobs of a GPU for a candidate, and their reports."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from kernel_lsp.core.measurement import Comparison
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.verdict import Built, CaseResult, CheckOutcome, Crashed, Mismatch, TimedOut, Unsupported
from kernel_lsp.process.worker_client import CaseFiles
from kernel_lsp.verify.model.cases import Case
from kernel_lsp.verify.oracle.compare import Expectation
from kernel_lsp.verify.timing.outcome import TimedOperation, TimingOutcome
from kernel_lsp.verify.timing.rounds import Asker


@dataclass(frozen=True)
class GpuCase:
    """One case with its launches and files."""

    case: Case
    bound: BoundOperation
    files: CaseFiles
    expectations: tuple[Expectation, ...]


class Stages(Protocol):
    """Records how long each stage took; `progress.StageTimes` is one. `add_stage` is for concurrent stages."""

    def stage(self, name: str) -> AbstractContextManager[None]: ...
    def add_stage(self, name: str, elapsed_s: float) -> None: ...


class Timer(Protocol):
    """Times an operation whose candidate is loaded in a worker; `timing.operation.OperationTimer` is one."""

    async def wait_for_baselines(self, operation: TimedOperation, *, at_least_s: float = 0.0) -> None: ...
    async def offer(self, operation: TimedOperation) -> None: ...
    async def time_operation(self, worker: Asker, operation: TimedOperation) -> TimingOutcome: ...


@dataclass(frozen=True)
class GpuJob:
    """Everything that the device needs of a candidate.

    `cases` are ready; `coming` are being made, None where PyTorch cannot run one. `timed` are the cases to time.
    `may_vary`: two runs may differ in their last bits, through atomics or a library. `rechecks` runs all cases again
    from a fresh module. `beside` are concurrent executor checks: their failure ends the job before its next case, and
    timing waits for them, but not indefinitely. `is_ranking` is as `TimedOperation`'s.
    """

    candidate_id: str
    built: Built
    cases: Sequence[GpuCase]
    timed: Sequence[GpuCase]
    timer: Timer
    may_vary: bool
    rechecks: bool
    seed: int
    coming: Sequence[asyncio.Task[GpuCase | None]] = ()
    beside: asyncio.Task[CheckOutcome | None] | None = None
    is_ranking: bool = False

    @property
    def is_in_vain(self) -> bool:
        """Check whether the job has already failed on the executors."""
        return has_failed(self.beside)


@dataclass(frozen=True)
class GpuReport:
    """The candidate is correct on the GPU in every case."""

    cases: tuple[CaseResult, ...]
    comparisons: Mapping[str, Comparison]
    notes: tuple[str, ...]


def has_failed(looking: asyncio.Task[CheckOutcome | None] | None) -> bool:
    """Check whether the concurrent executor checks are known to have failed."""
    if looking is None or not looking.done():
        return False
    return looking.cancelled() or looking.exception() is not None or looking.result() is not None


GpuFailure = Crashed | Mismatch | TimedOut | Unsupported
