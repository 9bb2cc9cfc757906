"""The interface of a device: it prepares a built kernel, runs and judges cases on it, and times it.

async with device.prepare(KernelBuild("id", built)) as kernel:
    outcome = await kernel.run(case)
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from kernel_lsp.core.finding import Finding
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.verdict import Built, CaseResult, Crashed, Mismatch, TimedOut, Unsupported
from kernel_lsp.process.case_files import CaseFiles
from kernel_lsp.ptx.executor import LoadFailure
from kernel_lsp.verify.model.cases import Case
from kernel_lsp.verify.oracle.compare import Expectation
from kernel_lsp.verify.timing.result import TimedOperation, TimingOutcome
from kernel_lsp.verify.timing.rounds import Asker


@dataclass(frozen=True)
class KernelBuild:
    """A build to prepare."""

    candidate_id: str
    built: Built


@dataclass(frozen=True)
class DeviceCase:
    """One case with its launches, files and expected outputs. A device sends its process nothing but the inputs."""

    case: Case
    bound: BoundOperation
    files: CaseFiles = field(repr=False)
    expectations: tuple[Expectation, ...] = field(repr=False)


@dataclass(frozen=True)
class CaseRun:
    """A case that ran to its end and is correct."""

    result: CaseResult
    findings: tuple[Finding, ...] = ()
    n_instructions: int = 0


@dataclass(frozen=True)
class Skipped:
    """An inconclusive case."""

    reason: str


CaseOutcome = CaseRun | Skipped | Mismatch | Crashed | TimedOut | Unsupported


class Timer(Protocol):
    """Times an operation whose kernel is loaded in a worker; `timing.operation.OperationTimer` is one."""

    async def wait_for_baselines(self, operation: TimedOperation, *, at_least_s: float = 0.0) -> None: ...
    async def has_baselines(self, operation: TimedOperation, *, at_least_s: float = 0.0) -> bool: ...
    async def offer(self, operation: TimedOperation) -> None: ...
    async def time_operation(self, worker: Asker, operation: TimedOperation) -> TimingOutcome: ...


class PreparedKernel(Protocol):
    """A kernel that a device has loaded. The device, or a part of it, is reserved for the kernel."""

    @property
    def is_alive(self) -> bool:
        """Check whether it can run further cases: a kernel may take its process along."""
        ...

    async def run(self, case: DeviceCase) -> CaseOutcome:
        """Run one case and judge its outputs."""
        ...

    async def time(self, timer: Timer, operation: TimedOperation) -> TimingOutcome:
        """Time an operation; `NotTimed` where the device measures nothing."""
        ...


class Device(Protocol):
    """Runs kernels, each in a process that it can replace."""

    @property
    def name(self) -> str:
        """Return the name that verdicts show."""
        ...

    def prepare(self, build: KernelBuild) -> AbstractAsyncContextManager[PreparedKernel | LoadFailure]:
        """Wait for a turn and load the kernel, or yield the reason why that fails."""
        ...

    async def close(self) -> None:
        """End all processes of the device."""
        ...
