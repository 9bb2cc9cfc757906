"""Run the CPU checks of a built candidate, in parallel where cores are free."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kernel_lsp.core.finding import Severity
from kernel_lsp.core.verdict import Built, CheckOutcome, Crashed, Mismatch, Rejected, TimedOut, Unsupported
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.toolchain.integrity.audit import audit
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.verify.build.building import kernel_build
from kernel_lsp.verify.build.other_builds import N_CASES_ELSEWHERE, guarded, other_programs, said_of, said_of_guarded
from kernel_lsp.verify.cpu.device import CpuDevice
from kernel_lsp.verify.cpu.executor_checks import NOT_SCREENED, ExecutorChecks, screened_cases
from kernel_lsp.verify.cpu.executor_pool import N_LOOKS
from kernel_lsp.verify.cpu.loaded_kernel import LoadedKernel
from kernel_lsp.verify.cpu.prepared import CpuKernel
from kernel_lsp.verify.model.cases import Depth, OperationKind
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.model.progress import Plan, Progress
from kernel_lsp.verify.model.resolved_kernel import Prepared
from kernel_lsp.verify.oracle.case_store import CaseStore
from kernel_lsp.verify.probes.grid_coverage import left_undone
from kernel_lsp.verify.probes.large_size_values import wrong_at_vast_sizes

NOT_LOOKED_FURTHER = "not looked at beyond the sizes of its cases"
Look = Callable[[Progress], Awaitable[CheckOutcome | None]]
Check = Callable[[LoadedKernel], Awaitable[CheckOutcome | None]]


@dataclass(frozen=True)
class Lookout:
    """The resources of one task's CPU checks. `has_gpu`: a GPU runs the candidates that pass."""

    device: CpuDevice
    store: CaseStore
    checks: ExecutorChecks
    compiler: Compiler
    gpu: GpuSpec
    has_gpu: bool


@dataclass
class Looks:
    """The CPU checks of one candidate that was built from `request`."""

    lookout: Lookout
    request: BuildRequest
    prepared: Prepared
    built: Built
    plans: Mapping[OperationKind, Plan]
    is_loaded: bool = True
    """False once no executor loads it; the candidate is then left to the GPU."""

    async def first(self, depth: Depth, progress: Progress) -> CheckOutcome | None:
        """Run all cases; with a GPU, only those that must pass before the GPU may run the candidate. None when nothing
        failed."""
        check = _check_of(self.lookout, depth)
        looks = [partial(self._loaded, self.built, [plan], [check], without=NOT_SCREENED) for plan in self._plans]
        return await first_failure(looks, progress)

    async def others(self, progress: Progress) -> CheckOutcome | None:
        """Run the longer checks, which no GPU has to wait for. None when nothing failed."""
        looks: list[Look] = [
            partial(self._loaded, self.built, [plan], [check], without=NOT_LOOKED_FURTHER)
            for check in self._further()
            for plan in self._plans
            if self.is_loaded
        ]
        if self.is_loaded and is_on("guards"):
            looks.append(self._with_guards)
        return await first_failure([*looks, self._elsewhere], progress)

    # --- below: looks

    @property
    def _plans(self) -> list[Plan]:
        return list(self.plans.values())

    def _further(self) -> list[Check]:
        """Return the checks beyond the cases. Without a GPU the check of all cases begins with estimates."""
        estimates = [self._estimated] if self.lookout.has_gpu else []
        return [*estimates, *((left_undone, self._vast) if is_on("sizes") else ())]

    async def _estimated(self, kernel: LoadedKernel) -> None:
        await self.lookout.checks.estimate(kernel)

    async def _vast(self, kernel: LoadedKernel) -> CheckOutcome | None:
        return await wrong_at_vast_sizes(kernel, self.lookout.gpu)

    async def _elsewhere(self, progress: Progress) -> CheckOutcome | None:
        """Run a few cases of the text's other programs, on other GPUs."""
        few = [plan[:N_CASES_ELSEWHERE] for plan in self.plans.values()]
        checks = [_check_of(self.lookout, "full"), *([left_undone] if is_on("sizes") else [])]
        async for other in other_programs(self.lookout.compiler, self.request, self.built):
            aside = Progress(progress.candidate_id)
            failure = audited(self.request.text, other, aside)
            found = failure or await self._loaded(other, few, checks, aside, without=NOT_SCREENED)
            if isinstance(found, Mismatch | Crashed | Rejected):
                return said_of(found, f"compiled for {other.architecture}")
        return None

    async def _with_guards(self, progress: Progress) -> CheckOutcome | None:
        """Run small cases with guards around local arrays, where there are any."""
        apart = await guarded(self.lookout.compiler, self.request, self.built)
        if apart is None:
            return None
        few = [[plan[0], *screened_cases(plan)] for plan in self.plans.values()]
        check, aside = _check_of(self.lookout, "screen"), Progress(progress.candidate_id)
        return said_of_guarded(await self._loaded(apart, few, [check], aside, without=NOT_SCREENED))

    # --- below: executors

    async def _loaded(
        self, built: Built, plans: Sequence[Plan], checks: Sequence[Check], progress: Progress, *, without: str
    ) -> CheckOutcome | None:
        """Run the checks of each plan on an executor that has loaded this build, until one fails. Where none loads it
        and a GPU runs all cases, note the missing check as `without`."""
        lookout = self.lookout
        async with lookout.device.prepare(kernel_build(progress.candidate_id, built, self.prepared.plan)) as loaded:
            if isinstance(loaded, CpuKernel):
                progress.has_atomics = any(kernel.uses_global_atomics for kernel in loaded.facts)
                progress.may_wait = any(kernel.may_wait for kernel in loaded.facts)
                for plan, check in itertools.product(plans, checks):
                    kernel = LoadedKernel(loaded, lookout.store, self.prepared, plan, progress)
                    if (failure := await check(kernel)) is not None:
                        return failure
                return None
            if isinstance(loaded, Rejected):
                return _with_names(loaded, built)
            self.is_loaded = self.is_loaded and built is not self.built
            if not lookout.has_gpu or not isinstance(loaded, Unsupported | TimedOut):
                return loaded
            progress.notes.append(f"{without}: {loaded.message}")
            return None


def _check_of(lookout: Lookout, depth: Depth) -> Check:
    """Return the check of a depth. With a GPU, it is what must pass before the GPU runs; a full verdict estimates
    during the GPU's cases."""
    checks = lookout.checks
    if lookout.has_gpu:
        return checks.screen if depth == "full" else checks.screen_and_estimate
    return checks.check if depth == "full" else checks.rank


async def first_failure(looks: Sequence[Look], progress: Progress, n_at_once: int = N_LOOKS) -> CheckOutcome | None:
    """Run checks concurrently and return the first failure in their order. Results are recorded in that order, too.
    Checks behind a failure are not started, or cancelled."""
    turn, failures = asyncio.Semaphore(n_at_once), list[CheckOutcome]()

    async def look_in_turn(look: Look, piece: Progress) -> CheckOutcome | None:
        async with turn:
            failure = None if failures else await look(piece)
            failures.extend([failure] if failure is not None else [])
        return failure

    pieces = [progress.piece() for _ in looks]
    tasks = [asyncio.create_task(look_in_turn(*each)) for each in zip(looks, pieces, strict=True)]
    try:
        for task, piece in zip(tasks, pieces, strict=True):
            failure = await task
            progress.take(piece)
            if failure is not None:
                return failure
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return None


def audited(text: str, built: Built, progress: Progress) -> Rejected | None:
    """Reject a build whose PTX breaks a rule; warnings are recorded."""
    findings = audit(text, built) if is_on("audit") else ()
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        return Rejected(message=errors[0].message, findings=findings)
    progress.findings += findings
    return None


# --- below


def _with_names(refused: Rejected, built: Built) -> Rejected:
    """Replace symbols in findings by the plan's names of kernels."""
    names = {symbol: name for name, symbol in built.symbols.items()}
    findings = [
        finding.model_copy(update={"kernel": names.get(finding.kernel or "", finding.kernel)})
        for finding in refused.findings
    ]
    return refused.model_copy(update={"findings": tuple(findings)})
