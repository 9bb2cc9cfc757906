"""Run the CPU checks of a built candidate, in parallel where cores are free."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kernel_lsp.core.finding import Severity
from kernel_lsp.core.verdict import Built, CheckOutcome, Crashed, Mismatch, Rejected, TimedOut, Unsupported
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.ptx.executor import Loaded, PtxExecutor
from kernel_lsp.toolchain.integrity.audit import audit
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.verify.build.building import module_of
from kernel_lsp.verify.build.guarded_arrays import guarded, said_of_guarded
from kernel_lsp.verify.build.other_architectures import N_CASES_ELSEWHERE, other_programs, said_of
from kernel_lsp.verify.cpu.device import CpuDevice
from kernel_lsp.verify.cpu.executor_checks import NOT_SCREENED, ExecutorChecks, screened_cases
from kernel_lsp.verify.cpu.executor_pool import N_LOOKS, ExecutorPool
from kernel_lsp.verify.model.cases import Depth, OperationKind
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.model.progress import Plan, Progress
from kernel_lsp.verify.model.resolved_kernel import Prepared
from kernel_lsp.verify.probes.grid_coverage import left_undone
from kernel_lsp.verify.probes.large_size_values import wrong_at_vast_sizes

NOT_LOOKED_FURTHER = "not looked at beyond the sizes of its cases"
Look = Callable[[Progress], Awaitable[CheckOutcome | None]]
Check = Callable[[PtxExecutor, Built, Prepared, Plan, Progress], Awaitable[CheckOutcome | None]]
LoadedLook = Callable[[PtxExecutor, Loaded], Awaitable[CheckOutcome | None]]


@dataclass(frozen=True)
class Lookout:
    """The resources of one task's CPU checks. `has_gpu`: a GPU runs the candidates that pass."""

    executors: ExecutorPool
    device: CpuDevice
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
        return await first_failure([partial(self._checked, plan, depth) for plan in self.plans.values()], progress)

    async def others(self, progress: Progress) -> CheckOutcome | None:
        """Run the longer checks, which no GPU has to wait for. None when nothing failed."""
        rows: list[tuple[str, bool, Callable[[Plan, Progress], Awaitable[CheckOutcome | None]]]] = [
            ("", self.lookout.has_gpu, self._estimated),
            ("sizes", True, self._far),
            ("sizes", True, self._vast),
        ]
        looks: list[Look] = [
            partial(look, plan)
            for defence, is_asked, look in rows
            for plan in self.plans.values()
            if is_asked and self.is_loaded and is_on(defence)
        ]
        if self.is_loaded and is_on("guards"):
            looks.append(self._with_guards)
        return await first_failure([*looks, self._elsewhere], progress)

    # --- below: looks

    async def _checked(self, plan: Plan, depth: Depth, progress: Progress) -> CheckOutcome | None:
        return await self._cases(self.built, [plan], depth, progress)

    async def _far(self, plan: Plan, progress: Progress) -> CheckOutcome | None:
        async def look(executor: PtxExecutor, loaded: Loaded) -> CheckOutcome | None:
            return await left_undone(self.lookout.device, executor, self.built, self.prepared, plan, loaded.kernels)

        return await self._on_executor(self.built, look, progress, NOT_LOOKED_FURTHER)

    async def _estimated(self, plan: Plan, progress: Progress) -> CheckOutcome | None:
        """Count what launches at the captured sizes do. Without a GPU the check of all cases begins with that."""

        async def look(executor: PtxExecutor, _: Loaded) -> CheckOutcome | None:
            await self.lookout.checks.estimate(executor, self.built, self.prepared, plan, progress)
            return None

        return await self._on_executor(self.built, look, progress, NOT_LOOKED_FURTHER)

    async def _vast(self, plan: Plan, progress: Progress) -> CheckOutcome | None:
        async def look(executor: PtxExecutor, _: Loaded) -> CheckOutcome | None:
            return await wrong_at_vast_sizes(
                self.lookout.device, executor, self.built, self.prepared, plan, self.lookout.gpu, progress
            )

        return await self._on_executor(self.built, look, progress, NOT_LOOKED_FURTHER)

    async def _elsewhere(self, progress: Progress) -> CheckOutcome | None:
        """Run a few cases of the text's other programs, on other GPUs."""
        few = [plan[:N_CASES_ELSEWHERE] for plan in self.plans.values()]
        async for other in other_programs(self.lookout.compiler, self.request, self.built):
            aside = Progress(progress.candidate_id)
            failure = audited(self.request.text, other, aside)
            found = failure or await self._cases(other, few, "full", aside, looks_far=True)
            if isinstance(found, Mismatch | Crashed | Rejected):
                return said_of(found, f"compiled for {other.architecture}")
        return None

    async def _with_guards(self, progress: Progress) -> CheckOutcome | None:
        """Run small cases with guards around local arrays, where there are any."""
        apart = await guarded(self.lookout.compiler, self.request, self.built)
        if apart is None:
            return None
        few = [[plan[0], *screened_cases(plan)] for plan in self.plans.values()]
        return said_of_guarded(await self._cases(apart, few, "screen", Progress(progress.candidate_id)))

    # --- below: executors

    async def _cases(
        self, built: Built, plans: Sequence[Plan], depth: Depth, progress: Progress, *, looks_far: bool = False
    ) -> CheckOutcome | None:
        """Run the cases of these plans one after the other; None when nothing failed."""
        lookout, prepared = self.lookout, self.prepared

        async def look(executor: PtxExecutor, loaded: Loaded) -> CheckOutcome | None:
            progress.has_atomics = any(kernel.uses_global_atomics for kernel in loaded.kernels)
            progress.may_wait = any(kernel.may_wait for kernel in loaded.kernels)
            check = _check_of(lookout, depth)
            for plan in plans:
                failure = await check(executor, built, prepared, plan, progress)
                if failure is None and looks_far and is_on("sizes"):
                    failure = await left_undone(lookout.device, executor, built, prepared, plan, loaded.kernels)
                if failure is not None:
                    return failure
            return None

        return await self._on_executor(built, look, progress, NOT_SCREENED)

    async def _on_executor(
        self, built: Built, look: LoadedLook, progress: Progress, without: str
    ) -> CheckOutcome | None:
        """Run a check on an executor that has loaded this build. Where none loads it and a GPU runs all cases, note the
        missing check as `without`."""
        lookout, module = self.lookout, module_of(built, self.prepared.plan)
        async with lookout.executors.executor(module) as executor:
            loaded = await lookout.executors.load(executor, module)
            if isinstance(loaded, Loaded):
                return await look(executor, loaded)
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
        return checks.screen_and_estimate if depth == "screen" else checks.screen
    return checks.rank if depth == "screen" else checks.check


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
