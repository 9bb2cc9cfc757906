"""Build and bind candidates without judging them: for profiles, and for tools that only compile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import BuildFailed, Built, CheckOutcome, Unsupported
from kernel_lsp.errors import PlanError
from kernel_lsp.process.worker_client import CaseFiles
from kernel_lsp.verify.build.building import COMPILED_AS, candidate_request
from kernel_lsp.verify.cpu.executor_checks import FULL_LIMITS
from kernel_lsp.verify.cpu.prepared import CpuKernel, Profile
from kernel_lsp.verify.devices.device import KernelBuild
from kernel_lsp.verify.gpu.device import GpuDevice
from kernel_lsp.verify.model.cases import Case
from kernel_lsp.verify.model.progress import Progress
from kernel_lsp.verify.model.resolved_kernel import plan_failure, prepare
from kernel_lsp.verify.oracle.case_store import CaseStore, NoCase
from kernel_lsp.verify.probes.table import CaseChoice
from kernel_lsp.verify.session.check_scheduler import audited
from kernel_lsp.verify.session.platform import Platform


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
    """Builds candidates of one task and counts what they do. Reaches no verdict."""

    task: Task
    platform: Platform
    gpu_device: GpuDevice | None
    choice: CaseChoice
    store: CaseStore

    async def ready_runs(self, candidate: Candidate, file_name: str = COMPILED_AS) -> list[ReadyRun] | CheckOutcome:
        """Build and bind each direction at the captured sizes and at small ones, or return why that is impossible.
        Tools call the text `file_name`."""
        prepared = prepare(candidate.text, self.task)
        if isinstance(prepared, BuildFailed):
            return prepared
        try:
            plans = [self.choice.plan(prepared, direction, "screen") for direction in prepared.directions]
        except PlanError as error:
            return plan_failure(error)
        operations = [bound for plan in plans for _, bound in plan]
        request = candidate_request(prepared, operations, self.platform.gpu, self.gpu_device, file_name)
        built = await self.platform.compiler.compile(request)
        if not isinstance(built, Built):
            return built
        refused = audited(candidate.text, built, Progress(candidate.id))
        return refused or [ReadyRun(built, case, bound) for plan in plans for case, bound in plan]

    async def count_runs(self, runs: Sequence[ReadyRun]) -> tuple[Profile, ...] | CheckOutcome:
        """Count on the executor what the launches of runs do, which share one build, or return why that fails. Values
        are not judged."""
        built, profiles = runs[0].built, list[Profile]()
        async with self.platform.cpu.prepare(KernelBuild("", built, COMPILED_AS)) as kernel:
            if not isinstance(kernel, CpuKernel):
                return kernel
            for run in runs:
                files = await self.store.get(run.case)
                if isinstance(files, NoCase):
                    return Unsupported(message=files.reason)
                profile = await kernel.profile(run.bound, run.case, files, FULL_LIMITS)
                if not isinstance(profile, Profile):
                    return profile
                profiles.append(profile)
        return tuple(profiles)

    async def inputs_of(self, run: ReadyRun) -> CaseFiles | NoCase:
        """Return the inputs of a run as files, and its expected results."""
        return await self.store.get(run.case)
