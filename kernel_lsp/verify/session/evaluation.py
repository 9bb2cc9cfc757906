"""One candidate's way through the pipeline: plan -> build -> audit -> cases on the executor -> cases and time on a GPU.

The PTX executor checks everything where there is no GPU. Where there is one, it screens what may touch the GPU, and the
GPU runs every case at its full size. A candidate never raises: whatever it does becomes its outcome.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.measurement import Estimate, Measurement
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.verdict import (
    BuildFailed,
    Built,
    CheckOutcome,
    Correct,
    Crashed,
    Mismatch,
    Rejected,
    Stalled,
    TimedOut,
    Unsupported,
    Verdict,
)
from kernel_lsp.errors import PlanError, ScratchFullError
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.ptx.executor import LoadFailure, NoAnswer
from kernel_lsp.toolchain.integrity.ptx_text import program_hash
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, is_plain
from kernel_lsp.verify.cpu.cpu_device import CpuKernel, LoadedKernel
from kernel_lsp.verify.cpu.executor_checks import (
    NOT_SCREENED,
    RANKED_WAIT_S,
    WAITING_LIMITS,
    check,
    estimate,
    is_too_long_to_run,
    is_too_long_to_screen,
    rank,
    refused_launches,
    screen,
    screened_cases,
)
from kernel_lsp.verify.cpu.executor_pool import N_LOOKS
from kernel_lsp.verify.devices.building import (
    N_CASES_ELSEWHERE,
    all_names,
    candidate_request,
    guarded,
    other_programs,
    request_of,
    said_of,
    said_of_guarded,
)
from kernel_lsp.verify.devices.device import KernelBuild
from kernel_lsp.verify.model.cases import Depth, Look, OperationKind, Plan, Progress
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.model.resolved_kernel import Prepared, plan_failure, prepare
from kernel_lsp.verify.oracle.judgement import lost_nans
from kernel_lsp.verify.probes.code_guided_sizes import singles_out_a_block
from kernel_lsp.verify.probes.far_sizes import left_undone, wrong_at_vast_sizes
from kernel_lsp.verify.probes.finder import finder_of
from kernel_lsp.verify.session.pipeline import Evaluator, audited, screened_on

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
NOT_LOOKED_FURTHER = "not looked at beyond the sizes of its cases"
NOT_ESTIMATED = "not estimated"
Check = Callable[[LoadedKernel], Awaitable[CheckOutcome | None]]


class Evaluation:
    """Evaluates one candidate with an `evaluator`'s resources. Private to this room: other rooms use a `Verifier`."""

    def __init__(self, evaluator: Evaluator, candidate: Candidate, depth: Depth) -> None:
        self._by, self._candidate, self._depth = evaluator, candidate, depth
        self.progress = Progress(candidate.id)
        self._plans: dict[OperationKind, Plan] = {}
        self._prepared: Prepared
        self._built: Built
        self._is_loaded = True
        """False once no executor loads it; the candidate is then left to the GPU."""

    async def verdict(self) -> Verdict:
        """Run the pipeline. Raises only for a broken machine or a worker that died."""
        started, prepared = time.monotonic(), prepare(self._candidate.text, self._by.task)
        outcome: CheckOutcome
        try:
            outcome = prepared if isinstance(prepared, BuildFailed) else await self._outcome(prepared)
        except PlanError as error:
            outcome = plan_failure(error)
        except ScratchFullError as error:
            outcome = Unsupported(message=error.message)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            outcome = Unsupported(message=f"the scratch folder is full: {error.strerror} ({error.filename})")
        library_steps = prepared.library_steps if isinstance(prepared, Prepared) else ()
        return self._verdict(outcome, library_steps, time.monotonic() - started)

    async def _outcome(self, prepared: Prepared) -> CheckOutcome:
        progress, gpu_checks, self._prepared = self.progress, self._by.gpu_checks, prepared
        progress.findings += prepared.findings
        progress.notes += _held_by_the_task(prepared)
        built = await self._build()
        if not isinstance(built, Built):
            return built
        progress.built = self._built = built
        is_known = self._candidate.id in self._by.passed_gpu or self._is_long()
        runs_nowhere = self._is_too_long_to_run() or (is_known and self._depth == "rank")
        n_executors = 0 if runs_nowhere else min(len(self._plans), N_LOOKS)
        with self._by.platform.cpu.executors.loading_ahead(built.ptx, n_executors):
            await asyncio.sleep(0)  # send the load requests before this loop is blocked
            if refused := audited(self._candidate.text, built, progress):
                return refused
            if self._depth == "full":
                self._add_cases_of_code()
            first, failure = self._first_looks(), None
            if not is_known:
                with progress.stage("executor"):
                    failure = await first_failure(first, progress)
                    if failure is None and self._depth == "full" and gpu_checks is None:
                        failure = await first_failure(self._other_looks(), progress)
            if failure is None and gpu_checks is not None:
                plans, is_ranking = list(self._plans.values()), self._depth == "rank"
                looks = [*(first if is_known else ()), *self._other_looks()]
                beside = partial(first_failure, looks) if self._depth == "full" else None
                failure = await gpu_checks.check(built, plans, progress, beside=beside, is_ranking=is_ranking)
                if is_ranking:
                    self._by.make_full_cases_ahead(prepared, built)
                if failure is None and self._is_loaded:
                    self._by.passed_gpu.add(self._candidate.id)
        return failure or Correct(cases=tuple(progress.cases))

    async def _build(self) -> Built | BuildFailed | TimedOut:
        """Choose the cases and build the text meanwhile."""
        progress, compiler, prepared = self.progress, self._by.platform.compiler, self._prepared
        building = self._begin_building()
        try:
            await asyncio.sleep(0)  # send the request to a warm compiler before choosing cases blocks this loop
            choice, depth = self._by.choice, self._depth
            self._plans = {direction: choice.plan(prepared, direction, depth) for direction in prepared.directions}
            self._prefetch()
            with progress.stage("build"):
                built = await (building or compiler.compile(self._request()))
        finally:
            if building is not None:
                building.cancel()
        if isinstance(built, Built):
            progress.findings += built.warnings
            if not is_plain(built.architecture):
                progress.notes.append(f"compiled for {built.architecture}: it uses what that architecture alone has")
        return built

    def _begin_building(self) -> asyncio.Task[Built | BuildFailed | TimedOut] | None:
        """Begin the build where kernel names depend on no size; None where they do."""
        prepared = self._prepared
        names = all_names(map(prepared.operation, prepared.directions), prepared.signatures)
        if names is None:
            return None
        request = request_of(prepared.text, names, self._by.platform.gpu, self._by.gpu_device)
        return asyncio.create_task(self._by.platform.compiler.compile(request))

    def _request(self) -> BuildRequest:
        operations: list[BoundOperation] = [bound for plan in self._plans.values() for _, bound in plan]
        return candidate_request(self._prepared, operations, self._by.platform.gpu, self._by.gpu_device)

    def _prefetch(self) -> None:
        if self._by.gpu_checks is not None:
            self._by.gpu_checks.prefetch(list(self._plans.values()))

    def _add_cases_of_code(self) -> None:
        """Add the cases that the compiled code asks for."""
        prepared, built, plans = self._prepared, self._built, self._plans.items()
        self._plans = {kind: self._by.choice.with_code(prepared, kind, built, plan) for kind, plan in plans}
        self.progress.singles_out_a_block = any(
            singles_out_a_block(finder_of(prepared, kind), built) for kind in self._plans
        )
        self._prefetch()

    def _is_long(self) -> bool:
        """Check whether a screen before the GPU's first run would end without an answer. A candidate that is only
        ranked runs there without one, and the full check has it beside the GPU."""
        if self._by.gpu_checks is None or self._depth != "rank":
            return False
        task, gpu = self._by.task, self._by.platform.gpu
        return any(is_too_long_to_screen(task, plan, self._built, gpu) for plan in self._plans.values())

    def _is_too_long_to_run(self) -> bool:
        """Check whether a GPU runs what no executor can."""
        task, gpu = self._by.task, self._by.platform.gpu
        return self._by.gpu_checks is not None and any(
            is_too_long_to_run(task, plan, gpu) for plan in self._plans.values()
        )

    def _first_looks(self) -> list[Look]:
        """Return the runs of all cases; with a GPU, only of those that must pass before the GPU may run the candidate
        for the first time. A full check of one that ran there has them beside its cases, another measurement none."""
        if self._is_too_long_to_run():
            return [partial(self._inspected, self._built)]
        loaded, checks = partial(self._loaded, self._built), [self._check_of(self._depth)]
        return [partial(loaded, [plan], checks, without=NOT_SCREENED) for plan in self._plans.values()]

    def _other_looks(self) -> list[Look]:
        """Return the longer checks, which no GPU has to wait for."""
        looks: list[Look] = []
        if self._is_loaded and not self._is_too_long_to_run():
            loaded = partial(self._loaded, self._built)
            # Without a GPU the check of all cases begins with estimates.
            checks: list[tuple[Check, str]] = [(estimate, NOT_ESTIMATED)] if self._by.gpu_checks is not None else []
            far = (left_undone, wrong_at_vast_sizes) if is_on("sizes") else ()
            checks += [(each, NOT_LOOKED_FURTHER) for each in far]
            pairs = itertools.product(checks, self._plans.values())
            looks += [partial(loaded, [plan], [each], without=without) for (each, without), plan in pairs]
            looks += [self._with_guards] if is_on("guards") else []
        return [*looks, self._elsewhere]

    async def _inspected(self, built: Built, progress: Progress) -> CheckOutcome | None:
        """Check a build that no executor can run: its launches' limits, and for loops that cannot end."""
        by, why = self._by, "its smallest size is too long for the executor"
        for kind, plan in self._plans.items():
            if refused := refused_launches(built, plan, finder_of(self._prepared, kind), by.platform.gpu):
                return refused
            progress.notes.append(f"{plan[0][1].name}: {NOT_SCREENED}: {why}")
        found = await by.platform.cpu.executors.inspect(built.ptx)
        return None if found is None else self._not_loaded(found, built, progress, NOT_SCREENED)

    async def _elsewhere(self, progress: Progress) -> CheckOutcome | None:
        """Run a few cases of the text's other programs, on other GPUs."""
        few = [plan[:N_CASES_ELSEWHERE] for plan in self._plans.values()]
        checks = [self._check_of("full"), *([left_undone] if is_on("sizes") else [])]
        async with aclosing(other_programs(self._by.platform.compiler, self._request(), self._built)) as others:
            async for other in others:
                if isinstance(other, Stalled):
                    return other
                aside, where = Progress(progress.candidate_id), f"compiled for {other.architecture}"
                failure = audited(self._candidate.text, other, aside)
                if failure is None and self._is_too_long_to_run():
                    found = await self._inspected(other, aside)
                else:
                    found = failure or await self._loaded(other, few, checks, aside, without=NOT_SCREENED)
                if isinstance(found, Mismatch | Crashed | Rejected | TimedOut | Stalled):
                    return said_of(found, where)
                progress.notes += _missing_of(aside, found, where)
        return None

    async def _with_guards(self, progress: Progress) -> CheckOutcome | None:
        """Run small cases with guards around local arrays, where there are any."""
        apart = await guarded(self._by.platform.compiler, self._request(), self._built)
        if apart is None or isinstance(apart, Stalled):
            return apart
        few = [[plan[0], *screened_cases(plan)] for plan in self._plans.values()]
        checks, aside = [self._check_of("screen")], Progress(progress.candidate_id)
        found = await self._loaded(apart, few, checks, aside, without=NOT_SCREENED)
        progress.notes += _missing_of(aside, found, "with guards around local arrays")
        return said_of_guarded(found)

    def _check_of(self, depth: Depth) -> Check:
        """Return the check of a depth. With a GPU, it is what must pass before the GPU runs; a full verdict estimates
        during the GPU's cases."""
        if self._by.gpu_checks is not None:
            wait_s = WAITING_LIMITS.cpu_s if depth == "full" else RANKED_WAIT_S
            return partial(screen, estimates=depth != "full", wait_s=wait_s)
        return check if depth == "full" else rank

    async def _loaded(
        self,
        built: Built,
        plans: Sequence[Plan],
        checks: Sequence[Check],
        progress: Progress,
        *,
        without: str,
    ) -> CheckOutcome | None:
        """Run the checks of each plan on an executor that has loaded this build, until one fails. One without an answer
        is missing: unsupported, but a note of `without` where a GPU runs all cases instead."""
        by = self._by
        async with by.platform.cpu.prepare(KernelBuild(progress.candidate_id, built)) as loaded:
            if isinstance(loaded, CpuKernel):
                progress.has_atomics = any(kernel.uses_global_atomics for kernel in loaded.facts)
                progress.may_wait = any(kernel.may_wait for kernel in loaded.facts)
                for plan, each in itertools.product(plans, checks):
                    kernel = LoadedKernel(loaded, by.store, self._prepared, plan, progress, by.platform.gpu)
                    if (failure := await each(kernel)) is not None:
                        return failure
                return self._missing(loaded.no_answer, progress, without)
            return self._not_loaded(loaded, built, progress, without)

    def _not_loaded(self, found: LoadFailure, built: Built, progress: Progress, without: str) -> CheckOutcome | None:
        """Return the outcome of a build that no executor loads; None where that is a note of `without`."""
        if isinstance(found, Rejected):
            return _with_names(found, built)
        self._is_loaded = self._is_loaded and built is not self._built
        if self._by.gpu_checks is None or isinstance(found, Stalled) or not isinstance(found, Unsupported | TimedOut):
            return found
        progress.notes.append(f"{without}: {found.message}")
        return None

    def _missing(self, no_answer: NoAnswer | None, progress: Progress, without: str) -> Unsupported | None:
        """Return the outcome of checks whose executor ended without an answer; None where that is a note."""
        if no_answer is None:
            return None
        message = f"in part {without}: {no_answer.message}"
        if isinstance(no_answer, Stalled) and without != NOT_ESTIMATED:
            return Stalled(message=message)
        if without == NOT_LOOKED_FURTHER or self._by.gpu_checks is None:
            return Unsupported(message=message)
        progress.notes.append(message)
        return None

    def _verdict(self, outcome: CheckOutcome, library_steps: tuple[str, ...], elapsed_s: float) -> Verdict:
        progress = self.progress
        return Verdict(
            candidate_id=self._candidate.id,
            depth=self._depth,
            device=screened_on(progress.gpu) if progress.gpu else self._by.device_name,
            outcome=outcome,
            findings=(*progress.findings, *lost_nans(progress.cases)),
            kernels=progress.built.kernels if progress.built is not None else (),
            program_hash=program_hash(progress.built.ptx) if progress.built is not None else "",
            library_steps=library_steps,
            times=progress.times,
            estimate=_total_estimate(progress.estimates),
            measurement=_total_measurement(progress.measurements, self._by.n_directions),
            notes=tuple(progress.notes),
            evaluate_s=elapsed_s,
            stages_s=progress.stages_s,
        )


async def first_failure(looks: Sequence[Look], progress: Progress, n_at_once: int = N_LOOKS) -> CheckOutcome | None:
    """Run checks concurrently and return the first failure in their order. Results are recorded in that order, too.
    Checks behind a failure are not started, or cancelled."""
    pieces, tasks = [progress.piece() for _ in looks], list[asyncio.Task[CheckOutcome | None]]()
    try:
        for look, piece in zip(looks, pieces, strict=True):
            while len(running := [task for task in tasks if not task.done()]) >= n_at_once:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if any(task.done() and task.result() is not None for task in tasks):
                break
            tasks.append(asyncio.ensure_future(look(piece)))
        for task, piece in zip(tasks, pieces, strict=False):
            failure = await task
            progress.take(piece)
            if failure is not None:
                return failure
    finally:
        await end_tasks(*tasks)
    return None


def _missing_of(aside: Progress, found: CheckOutcome | None, where: str) -> list[str]:
    """Return the notes on checks of another build that were inconclusive."""
    missing = [note for note in aside.notes if NOT_SCREENED in note]
    missing += [found.message] if isinstance(found, TimedOut | Unsupported) else []
    return [f"{where}: {note}" for note in missing]


def _with_names(refused: Rejected, built: Built) -> Rejected:
    """Replace symbols in findings by the plan's names of kernels."""
    names: Mapping[str, str] = {symbol: name for name, symbol in built.symbols.items()}
    findings = [
        finding.model_copy(update={"kernel": names.get(finding.kernel or "", finding.kernel)})
        for finding in refused.findings
    ]
    return refused.model_copy(update={"findings": tuple(findings)})


def _held_by_the_task(prepared: Prepared) -> Sequence[str]:
    """Note the dims that are symbolic in the plan but fixed by the task."""
    held = ", ".join(f"{name} = {size}" for name, size in prepared.fixed_dims.items())
    return [f"{held} in every case, since the target holds it: the operator takes no other size"] if held else []


def _total_estimate(estimates: Sequence[Estimate]) -> Estimate | None:
    """Return the estimate of forward and backward together, which the search minimises."""
    if not estimates:
        return None
    sums = ("time_us", "low_us", "high_us", "bytes_moved", "n_operations", "n_launches")
    return estimates[0].model_copy(update={name: sum(getattr(e, name) for e in estimates) for name in sums})


def _total_measurement(measurements: Sequence[Measurement], n_expected: int) -> Measurement | None:
    """Return the measurement of forward and backward together, when both were measured."""
    if len(measurements) < n_expected:
        return None
    sums = ("time_us", "low_us", "high_us")
    return measurements[0].model_copy(update={name: sum(getattr(m, name) for m in measurements) for name in sums})
