"""Share resources between the evaluations of one task's candidates: the choice of cases, their files, the devices."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.finding import Severity
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import BuildFailed, Built, CheckOutcome, Rejected, Unsupported
from kernel_lsp.errors import KernelLspError, PlanError
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.process.case_files import CaseFiles
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.toolchain.integrity.audit import audit
from kernel_lsp.toolchain.integrity.ptx_text import COMPILED_AS
from kernel_lsp.toolchain.nvrtc.compile import Compiler
from kernel_lsp.verify.cpu.cpu_device import CpuDevice, CpuKernel, Profile
from kernel_lsp.verify.cpu.executor_checks import FULL_LIMITS
from kernel_lsp.verify.devices.building import candidate_request
from kernel_lsp.verify.devices.device import KernelBuild
from kernel_lsp.verify.gpu.candidate_run import MANY_PROCESSORS
from kernel_lsp.verify.gpu.checks import GpuChecks, MeasuringGpu
from kernel_lsp.verify.gpu.gpu_device import GpuDevice
from kernel_lsp.verify.model.cases import SCREEN_FAMILIES, Case, Progress
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.model.resolved_kernel import Prepared, plan_failure, prepare
from kernel_lsp.verify.oracle.case_store import CaseStore, NoCase
from kernel_lsp.verify.probes.table import CaseChoice


@dataclass(frozen=True)
class Platform:
    """The resources shared by all evaluators of one task. `worker` captures and makes references; `cpu` is the PTX
    executor; cases lie below `directory`. `gpu` is the target of estimates. Each of `capture_numbers` names one capture
    in the worker; none is an index of a task folder's configuration."""

    worker: Worker
    compiler: Compiler
    gpu: GpuSpec
    directory: Path
    cpu: CpuDevice
    seed: int
    capture_numbers: Iterator[int]


MIN_SLOTS, MAX_SLOTS = 2, 16
N_SLOTS = max(MIN_SLOTS, min(MAX_SLOTS, (os.cpu_count() or 1) // 2))
"""Concurrent candidates: a compiler and an executor take one core each, and the GPU takes one candidate at a time. More
than 8, as cooperative grids occupy an executor for seconds: with 8 of them under way the GPU had nothing to do."""
DEVICE_NAME = CpuDevice.name


class Evaluator:
    """The resources by which candidates of one captured task are evaluated. Private to this room."""

    def __init__(
        self,
        task: Task,
        platform: Platform,
        measured_on: Sequence[MeasuringGpu],
        *,
        screen_families: Sequence[str] = SCREEN_FAMILIES,
        name: str = "",
    ) -> None:
        """Each candidate also runs and is timed on one of the GPUs of `measured_on`; without any on the executor alone.
        `screen_families` are the input families of the forward in a screen. `name` is its folder, unique among the
        evaluators of a platform."""
        self.task, self.platform = task, platform
        self.gpu_device = measured_on[0].device if measured_on else None
        self._n_gpus = len(measured_on)
        self.choice = CaseChoice(task, platform.seed, bool(measured_on), tuple(screen_families))
        self._baseline_wait_s = max((gpu.full_wait_s for gpu in measured_on), default=0.0)
        self.store = CaseStore(task, platform.worker, platform.directory / name, self._local_gpu, may_sample=True)
        self.gpu_checks = GpuChecks(self.store, measured_on, platform.seed) if measured_on else None
        self.runs = RunBuilder(self)
        self._ahead: asyncio.Task[None] | None = None
        self.passed_gpu = set[str]()
        """Ids of candidates that an executor loaded, and that then passed their cases on a GPU."""

    @property
    def device_name(self) -> str:
        """Return the name of the device that verdicts are reached on."""
        if self.gpu_device is None:
            return DEVICE_NAME
        several = f"{self._n_gpus} x {self.gpu_device.facts.name}"
        return screened_on(several if self._n_gpus > 1 else self.gpu_device.name)

    @property
    def _local_gpu(self) -> GpuDevice | None:
        """Return the GPU that references may be made on: the worker that makes them runs here."""
        return self.gpu_device if self.gpu_device is not None and self.gpu_device.is_local else None

    @property
    def n_directions(self) -> int:
        """Return the number of operations: forward, and backward where it was captured."""
        return 1 if self.task.backward is None else 2

    @property
    def baseline_wait_s(self) -> float:
        """Return the longest time that a full verdict waits for PyTorch's compiled modes; 0 where nothing is timed."""
        return self._baseline_wait_s * self.n_directions

    def make_full_cases_ahead(self, prepared: Prepared, built: Built) -> None:
        """Make the cases of a full check while a search goes on, once for all candidates: most have the same. To choose
        those of DenseNet201 takes 8 s, which its first measurement does not wait for."""
        if self.gpu_checks is None or self._ahead is not None or (os.cpu_count() or 1) < MANY_PROCESSORS:
            return
        self._ahead = asyncio.create_task(self._full_cases(self.gpu_checks, prepared, built))

    async def _full_cases(self, checks: GpuChecks, prepared: Prepared, built: Built) -> None:
        with suppress(KernelLspError):  # recurs in the full check
            checks.make_ahead(await asyncio.to_thread(self.choice.full_plans, prepared, built))

    async def close(self) -> None:
        """Stop making cases, and offering them."""
        await end_tasks(self._ahead)
        if self.gpu_checks is not None:
            await self.gpu_checks.close()
        await self.store.close()

    async def worker_is_free(self) -> None:
        """Wait until captures delay no case. With a GPU all cases are made at once, and the GPU waits for them. The
        executor needs longer for a case than the worker."""
        if self.gpu_device is not None:
            await self.store.idle()


def screened_on(gpu: str) -> str:
    """Return the name of a GPU whose candidates the executor screens."""
    return f"{gpu}, screened on the {DEVICE_NAME}"


@dataclass(frozen=True)
class ReadyRun:
    """One direction of a built candidate, bound to the sizes of a case."""

    built: Built
    case: Case
    bound: BoundOperation

    @property
    def is_given(self) -> bool:
        """Return whether it runs the user's own inputs at the captured sizes."""
        return self.case.is_captured and self.case.family == "given"


@dataclass(frozen=True)
class RunBuilder:
    """Builds candidates of one task and counts what they do, with an `evaluator`'s resources. Reaches no verdict."""

    by: Evaluator

    async def ready_runs(self, candidate: Candidate, file_name: str = COMPILED_AS) -> list[ReadyRun] | CheckOutcome:
        """Build, and bind each direction at captured and at small sizes. Tools call the text `file_name`."""
        prepared = prepare(candidate.text, self.by.task)
        if isinstance(prepared, BuildFailed):
            return prepared
        try:
            plans = [self.by.choice.plan(prepared, direction, "screen") for direction in prepared.directions]
        except PlanError as error:
            return plan_failure(error)
        operations = [bound for plan in plans for _, bound in plan]
        request = candidate_request(prepared, operations, self.by.platform.gpu, self.by.gpu_device, file_name)
        built = await self.by.platform.compiler.compile(request)
        if not isinstance(built, Built):
            return built
        refused = audited(candidate.text, built, Progress(candidate.id))
        return refused or [ReadyRun(built, case, bound) for plan in plans for case, bound in plan]

    async def count_runs(self, runs: Sequence[ReadyRun]) -> tuple[Profile, ...] | CheckOutcome:
        """Count on the executor what the launches of runs do, which share one build, or return why that fails. Values
        are not judged."""
        built, profiles = runs[0].built, list[Profile]()
        async with self.by.platform.cpu.prepare(KernelBuild("", built)) as kernel:
            if not isinstance(kernel, CpuKernel):
                return kernel
            for run in runs:
                files = await self.by.store.get(run.case)
                if isinstance(files, NoCase):
                    return Unsupported(message=files.reason)
                profile = await kernel.profile(run.bound, run.case, files, FULL_LIMITS)
                if not isinstance(profile, Profile):
                    return profile
                profiles.append(profile)
        return tuple(profiles)

    async def inputs_of(self, run: ReadyRun) -> CaseFiles | NoCase:
        """Return the inputs of a run as files, and its expected results."""
        return await self.by.store.get(run.case)


def audited(text: str, built: Built, progress: Progress) -> Rejected | None:
    """Reject a build whose PTX breaks a rule; warnings are recorded."""
    findings = audit(text, built) if is_on("audit") else ()
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        return Rejected(message=errors[0].message, findings=findings)
    progress.findings += findings
    return None
