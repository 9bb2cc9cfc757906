"""Jobs of a GPU for a candidate, and their reports."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from kernel_lsp.core.measurement import Comparison
from kernel_lsp.core.verdict import CaseResult, CheckOutcome, Crashed, Mismatch, TimedOut, Unsupported
from kernel_lsp.verify.devices.device import DeviceCase, KernelBuild, Timer


class Stages(Protocol):
    """Records how long each stage took; `progress.StageTimes` is one. `add_stage` is for concurrent stages."""

    def stage(self, name: str) -> AbstractContextManager[None]: ...
    def add_stage(self, name: str, elapsed_s: float) -> None: ...


@dataclass(frozen=True)
class GpuJob:
    """Everything that the device needs of a candidate.

    `cases` are ready; `coming` are being made, None where PyTorch cannot run one. `timed` are the cases to time.
    `may_vary`: two runs may differ in their last bits, through atomics or a library. `rechecks` runs all cases again
    from a fresh module. `beside` are concurrent executor checks: their failure ends the job before its next case, and
    timing waits for them, but not indefinitely. `is_ranking` is as `TimedOperation`'s.
    """

    build: KernelBuild
    cases: Sequence[DeviceCase]
    timed: Sequence[DeviceCase]
    timer: Timer
    may_vary: bool
    rechecks: bool
    seed: int
    coming: Sequence[asyncio.Task[DeviceCase | None]] = ()
    beside: asyncio.Task[CheckOutcome | None] | None = None
    is_ranking: bool = False

    @property
    def candidate_id(self) -> str:
        return self.build.candidate_id

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
