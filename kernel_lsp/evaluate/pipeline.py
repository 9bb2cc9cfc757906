"""The pipeline: plan -> build -> integrity -> screen or check on the executor -> run and time on the GPU -> verdict.

The PTX executor checks everything where there is no GPU. Where there is one, it screens what may touch the GPU, and the
GPU runs every case at its full size. A candidate never raises: whatever it does becomes its outcome.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.finding import Severity
from kernel_lsp.core.measurement import Estimate, Measurement
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import (
    BuildFailed,
    Built,
    CheckOutcome,
    Correct,
    Crashed,
    Mismatch,
    Rejected,
    TimedOut,
    Unsupported,
    Verdict,
)
from kernel_lsp.errors import PlanError, ScratchFullError
from kernel_lsp.evaluate.building import COMPILED_AS, Module, module_of, request_of
from kernel_lsp.evaluate.case_store import CaseStore, NoCase
from kernel_lsp.evaluate.cases import (
    N_BEFORE_WIDE,
    SCREEN_FAMILIES,
    Case,
    OperationKind,
    captured_sizes,
    configured_sizes,
    equal_integer_cases,
    fresh_case,
    full_cases,
    hidden_cases,
    hidden_sizes,
    reduced_sizes,
    screen_cases,
    vast_cases,
    wide_cases,
)
from kernel_lsp.evaluate.cpu import WATCHED_ORDER, CpuDevice, Profile, Skipped, new_executor
from kernel_lsp.evaluate.executor_checks import (
    FULL_LIMITS,
    NOT_SCREENED,
    ExecutorChecks,
    screened_cases,
)
from kernel_lsp.evaluate.executor_pool import ExecutorPool
from kernel_lsp.evaluate.gpu_checks import GpuChecks, MeasuringGpu
from kernel_lsp.evaluate.guarded_arrays import guarded, said_of_guarded
from kernel_lsp.evaluate.index_cases import index_cases
from kernel_lsp.evaluate.left_undone import left_undone
from kernel_lsp.evaluate.other_architectures import N_CASES_ELSEWHERE, said_of
from kernel_lsp.evaluate.other_compilers import programs_elsewhere
from kernel_lsp.evaluate.pointed_cases import with_pointed_cases
from kernel_lsp.evaluate.pointed_sizes import pointed_sizes, singles_out_a_block
from kernel_lsp.evaluate.prepare import Prepared, kernel_names, plan_failure, prepare
from kernel_lsp.evaluate.progress import Plan, Progress
from kernel_lsp.evaluate.several_blocks import several_blocks_cases, several_blocks_sizes
from kernel_lsp.evaluate.vast_values import wrong_at_vast_sizes
from kernel_lsp.evaluate.wide_sizes import vast_sizes, wide_sizes
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.process.confinement import SandboxLevel
from kernel_lsp.process.worker_client import CaseFiles, Worker
from kernel_lsp.ptx.executor import Loaded
from kernel_lsp.toolchain.compile import BuildRequest, Compiler
from kernel_lsp.toolchain.integrity import audit
from kernel_lsp.toolchain.own_architecture import is_plain
from kernel_lsp.toolchain.ptx_identity import program_hash

Depth = Literal["screen", "full"]

MIN_SLOTS, MAX_SLOTS = 2, 8
N_SLOTS = max(MIN_SLOTS, min(MAX_SLOTS, (os.cpu_count() or 1) // 2))
"""Candidates under way at once: a compiler and an executor are one core each, and the GPU takes one at a time."""
DEVICE_NAME = "PTX executor (CPU)"
FRESH_SEED_BITS = 31
N_BEFORE_FRESH = 2
"""The captured sizes and the first small ones come before it, and what the time allows after it."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class ReadyRun:
    """One direction of a built candidate, bound to the sizes of a case."""

    built: Built
    case: Case
    bound: BoundOperation

    @property
    def is_given(self) -> bool:
        """Whether it is at the captured sizes, on the user's own inputs."""
        return self.case.is_captured and self.case.family == "given"


class Evaluator:
    """Verdicts on one task. Keeps executors warm between candidates. Use as ``async with``."""

    n_slots = N_SLOTS

    def __init__(
        self,
        task: Task,
        worker: Worker,
        compiler: Compiler,
        gpu: GpuSpec,
        directory: Path,
        *,
        seed: int,
        measured_on: MeasuringGpu | None = None,
        sandbox: SandboxLevel | None = None,
        executors: ExecutorPool | None = None,
        screen_families: Sequence[str] = SCREEN_FAMILIES,
        name: str = "",
    ) -> None:
        """`measured_on` is where candidates are run and timed beside the executor; None for the executor alone.
        `sandbox` is how executors are confined; None takes the strongest level that this machine has. `executors` are
        of the same folder, where some have begun already. `screen_families` are the forward's in a screen. `name` is
        needed by all but one of several that share executors."""
        self._task, self._compiler, self._gpu, self._seed = task, compiler, gpu, seed
        self._gpu_device = None if measured_on is None else measured_on.device
        self._baseline_wait_s = 0.0 if measured_on is None else measured_on.full_wait_s
        self._store = CaseStore(task, worker, directory / name, self._gpu_device)
        self._device = CpuDevice(self._store, worker, directory, name)
        self._executor_checks = ExecutorChecks(task, self._device, gpu)
        self._gpu_checks = None if measured_on is None else GpuChecks(self._store, measured_on, seed)
        self._screen_families = screen_families
        self._fresh_seed = secrets.randbits(FRESH_SEED_BITS)
        self.directory = directory
        self.executors = executors or ExecutorPool(lambda: new_executor(directory, sandbox), N_SLOTS)
        self._under_way: set[asyncio.Task[Verdict]] = set()

    async def __aenter__(self) -> Evaluator:
        self.executors.start()
        return self

    @property
    def device_name(self) -> str:
        """Where verdicts are reached."""
        return DEVICE_NAME if self._gpu_device is None else f"{self._gpu_device.name}, screened on the {DEVICE_NAME}"

    @property
    def baseline_wait_s(self) -> float:
        """How long a full verdict waits at most for what PyTorch compiles; 0 where nothing is timed."""
        return self._baseline_wait_s * len(self._directions())

    def _directions(self) -> tuple[OperationKind, ...]:
        return ("forward",) if self._task.backward is None else ("forward", "backward")

    async def __aexit__(self, *_: object) -> None:
        """Evaluations end with it: left to themselves they would start processes anew, and hold the GPU."""
        for evaluation in self._under_way:
            evaluation.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._store.close()
        await self.executors.close()

    async def evaluate(
        self, candidate: Candidate, depth: Depth, when_worker_is_free: Callable[[], None] = lambda: None
    ) -> Verdict:
        """The verdict. `when_worker_is_free` is called once the worker that makes the cases has little left to do,
        before the candidate is done. Raises only for a broken machine or a worker that died."""
        evaluation = asyncio.create_task(self._evaluated(candidate, depth, when_worker_is_free))
        self._under_way.add(evaluation)
        evaluation.add_done_callback(self._under_way.discard)
        return await evaluation

    async def _evaluated(self, candidate: Candidate, depth: Depth, when_worker_is_free: Callable[[], None]) -> Verdict:
        started, progress = time.monotonic(), Progress(candidate.id, when_worker_is_free)
        prepared = prepare(candidate.text, self._task)
        outcome: CheckOutcome
        if isinstance(prepared, BuildFailed):
            outcome = prepared
        else:
            progress.findings += prepared.findings
            progress.notes += _held_by_the_task(prepared)
            try:
                outcome = await self._evaluate(candidate, prepared, depth, progress)
            except PlanError as error:
                outcome = plan_failure(error)
            except ScratchFullError as error:
                outcome = Unsupported(message=error.message)
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
                outcome = Unsupported(message=f"the scratch folder is full: {error.strerror} ({error.filename})")
        return self._verdict(candidate, depth, outcome, prepared, progress, time.monotonic() - started)

    async def count_runs(self, runs: Sequence[ReadyRun]) -> tuple[Profile, ...] | CheckOutcome:
        """What the launches of runs that are ready, which share one build, do at the captured sizes, as the executor
        counts it; or why it cannot be told. Values are not judged."""
        return await self._count(runs[0].built, [(run.case, run.bound) for run in runs])

    async def ready_runs(self, candidate: Candidate, file_name: str = COMPILED_AS) -> list[ReadyRun] | CheckOutcome:
        """Each direction built and bound, at the captured sizes and at small ones; or why it cannot be run. `file_name`
        is what tools will call the text."""
        prepared = prepare(candidate.text, self._task)
        if isinstance(prepared, BuildFailed):
            return prepared
        try:
            plans = [self._plan_cases(prepared, direction, "screen") for direction in prepared.directions]
        except PlanError as error:
            return plan_failure(error)
        built = await self._build(candidate, [bound for plan in plans for _, bound in plan], file_name)
        if not isinstance(built, Built):
            return built
        refused = _audit(candidate.text, built, Progress(candidate.id))
        return refused or [ReadyRun(built, case, bound) for plan in plans for case, bound in plan]

    async def inputs_of(self, run: ReadyRun) -> CaseFiles | NoCase:
        """The inputs of a run as files, and what its results should be."""
        return await self._store.get(run.case)

    async def _count(
        self, built: Built, plans: Sequence[tuple[Case, BoundOperation]]
    ) -> tuple[Profile, ...] | CheckOutcome:
        profiles = []
        async with self.executors.executor() as executor:
            loaded = await self.executors.load(executor, Module(built.ptx, COMPILED_AS))
            if not isinstance(loaded, Loaded):
                return loaded
            for case, bound in plans:
                profile = await self._device.profile(executor, built, bound, case, FULL_LIMITS)
                if isinstance(profile, Skipped):
                    return Unsupported(message=profile.reason)
                if not isinstance(profile, Profile):
                    return profile
                profiles.append(profile)
        return tuple(profiles)

    async def _evaluate(
        self, candidate: Candidate, prepared: Prepared, depth: Depth, progress: Progress
    ) -> CheckOutcome:
        plans = {direction: self._plan_cases(prepared, direction, depth) for direction in prepared.directions}
        if self._gpu_checks is not None:
            self._gpu_checks.prefetch(list(plans.values()))
        with progress.stage("build"):
            built = await self._build(candidate, [bound for plan in plans.values() for _, bound in plan])
        if not isinstance(built, Built):
            return built
        progress.built = built
        progress.findings += built.warnings
        if not is_plain(built.architecture):
            progress.notes.append(f"compiled for {built.architecture}: it uses what that architecture alone has")
        failure: CheckOutcome | None = _audit(candidate.text, built, progress)
        if failure is None and depth == "full":
            plans = {kind: with_pointed_cases(prepared, kind, built, plan, self._seed) for kind, plan in plans.items()}
            progress.singles_out_a_block = any(singles_out_a_block(prepared, kind, built) for kind in plans)
            if self._gpu_checks is not None:
                self._gpu_checks.prefetch(list(plans.values()))
        if failure is None and self._gpu_checks is None:
            progress.when_worker_is_free()  # the executor takes seconds, and asks for one case at a time
        with progress.stage("executor"):
            failure = failure or await self._on_executor(built, prepared, plans, depth, progress)
            if failure is None and depth == "full":
                failure = await self._elsewhere(candidate, prepared, plans, built)
                failure = failure or await self._with_guards(candidate, prepared, plans, built)
        if failure is None and self._gpu_checks is not None:
            failure = await self._gpu_checks.check(built, list(plans.values()), progress, rechecks=depth == "full")
        return failure or Correct(cases=tuple(progress.cases))

    async def _elsewhere(
        self, candidate: Candidate, prepared: Prepared, plans: Mapping[OperationKind, Plan], built: Built
    ) -> CheckOutcome | None:
        """A few cases of what the text is on other GPUs and for other compilers; None when nothing failed."""
        few = {direction: plan[:N_CASES_ELSEWHERE] for direction, plan in plans.items()}
        request = self._request(candidate, [bound for plan in few.values() for _, bound in plan])
        async for other in programs_elsewhere(self._compiler, request, built):
            aside = Progress(candidate.id)
            failure = _audit(candidate.text, other.built, aside)
            found = failure or await self._on_executor(other.built, prepared, few, "full", aside)
            if isinstance(found, Mismatch | Crashed | Rejected):
                return said_of(found, other.where)
        return None

    async def _with_guards(
        self, candidate: Candidate, prepared: Prepared, plans: Mapping[OperationKind, Plan], built: Built
    ) -> CheckOutcome | None:
        """Small cases with guards around local arrays; None when nothing failed, and where there are none."""
        request = self._request(candidate, [bound for plan in plans.values() for _, bound in plan])
        apart = await guarded(self._compiler, request, built)
        if apart is None:
            return None
        few = {direction: [plan[0], *screened_cases(plan)] for direction, plan in plans.items()}
        return said_of_guarded(await self._on_executor(apart, prepared, few, "screen", Progress(candidate.id)))

    async def _on_executor(
        self,
        built: Built,
        prepared: Prepared,
        plans: Mapping[OperationKind, Plan],
        depth: Depth,
        progress: Progress,
    ) -> CheckOutcome | None:
        """All that the executor is asked; None when nothing failed."""
        async with self.executors.executor() as executor:
            loaded = await self.executors.load(executor, module_of(built, prepared.plan))
            if isinstance(loaded, Rejected):
                return _with_names(loaded, built)
            if not isinstance(loaded, Loaded):
                if self._gpu_checks is None or not isinstance(loaded, Unsupported | TimedOut):
                    return loaded
                progress.notes.append(f"{NOT_SCREENED}: {loaded.message}")
                return None
            progress.has_atomics = any(kernel.uses_global_atomics for kernel in loaded.kernels)
            progress.may_wait = any(kernel.may_wait for kernel in loaded.kernels)
            checks = self._executor_checks
            alone = checks.rank if depth == "screen" else checks.check
            look = alone if self._gpu_checks is None else checks.screen
            for plan in plans.values():
                failure = await look(executor, built, prepared, plan, progress)
                if failure is None and depth == "full":
                    failure = await left_undone(self._device, executor, built, prepared, plan, loaded.kernels)
                if failure is None and depth == "full" and progress.built is built:
                    failure = await wrong_at_vast_sizes(
                        self._device, executor, built, prepared, plan, self._gpu, progress
                    )
                if failure is not None:
                    return failure
        return None

    def _plan_cases(
        self, prepared: Prepared, direction: OperationKind, depth: Depth
    ) -> list[tuple[Case, BoundOperation]]:
        """The cases of one direction with the launches each makes; the captured sizes come first, to be profiled.

        Raises PlanError when the plan does not bind, ContractError when it excludes the captured sizes."""
        captured = captured_sizes(self._task)
        reduced = reduced_sizes(self._task, direction, lambda sizes: prepared.holds(direction, sizes))
        given = Case(direction, tuple(sorted(captured.items())), "given", self._seed, "forward", is_captured=True)
        if depth == "screen":
            families = self._screen_families if direction == "forward" else SCREEN_FAMILIES
            chosen = screen_cases(direction, reduced, captured, self._seed, families)
        else:
            configured = [sizes for sizes in configured_sizes(self._task) if prepared.holds(direction, sizes)]
            chosen = full_cases(direction, reduced, captured, self._seed, configured)
            fresh = fresh_case(
                self._task, direction, lambda sizes: prepared.holds(direction, sizes), reduced, self._fresh_seed
            )
            chosen.insert(N_BEFORE_FRESH, fresh)
            wide = wide_sizes(self._task, direction, lambda sizes: prepared.holds(direction, sizes))
            known = [sizes for sizes in (captured, *reduced, *wide) if prepared.holds(direction, sizes)]
            chosen += equal_integer_cases(self._task, direction, wide, captured, self._seed)
            places = index_cases(
                self._task, direction, lambda sizes: prepared.holds(direction, sizes), wide, self._seed
            )
            wide += pointed_sizes(prepared, direction, known)
            watched = [dict(c.sizes) for c in chosen if (c.family, c.thread_order) == ("normal", WATCHED_ORDER)]
            alone = several_blocks_sizes(prepared, direction, watched, [*known, *wide])
            chosen[N_BEFORE_WIDE:N_BEFORE_WIDE] = [
                *several_blocks_cases(direction, alone, self._seed),
                *wide_cases(direction, wide, captured, self._seed),
                *places,
            ]
            if self._gpu_device is not None:
                vast = vast_sizes(self._task, direction, lambda sizes: prepared.can_bind(direction, sizes))
                chosen += vast_cases(direction, vast, captured, self._seed)
                hidden = hidden_sizes(self._task, direction, lambda sizes: prepared.holds(direction, sizes), self._seed)
                chosen += hidden_cases(direction, hidden, captured, self._seed)
        cases = [given, *(case for case in chosen if case != given)]
        bound = {sizes: prepared.bind(direction, dict(sizes)) for sizes in dict.fromkeys(case.sizes for case in cases)}
        return [(case, bound[case.sizes]) for case in cases]

    async def _build(
        self, candidate: Candidate, operations: Sequence[BoundOperation], file_name: str = COMPILED_AS
    ) -> Built | BuildFailed | TimedOut:
        return await self._compiler.compile(self._request(candidate, operations, file_name))

    def _request(
        self, candidate: Candidate, operations: Sequence[BoundOperation], file_name: str = COMPILED_AS
    ) -> BuildRequest:
        names: set[str] = set().union(*(kernel_names(operation) for operation in operations))
        return request_of(candidate.text, names, self._gpu, self._gpu_device, file_name)

    def _verdict(
        self,
        candidate: Candidate,
        depth: Depth,
        outcome: CheckOutcome,
        prepared: Prepared | BuildFailed,
        progress: Progress,
        elapsed_s: float,
    ) -> Verdict:
        return Verdict(
            candidate_id=candidate.id,
            depth=depth,
            device=self.device_name,
            outcome=outcome,
            findings=tuple(progress.findings),
            kernels=progress.built.kernels if progress.built is not None else (),
            program_hash=program_hash(progress.built.ptx) if progress.built is not None else "",
            library_steps=prepared.library_steps if isinstance(prepared, Prepared) else (),
            times=progress.times,
            estimate=_total_estimate(progress.estimates),
            measurement=_total_measurement(progress.measurements, len(self._directions())),
            notes=tuple(progress.notes),
            evaluate_s=elapsed_s,
            stages_s=progress.stages_s,
        )


# --- below: small decisions


def _audit(text: str, built: Built, progress: Progress) -> Rejected | None:
    findings = audit(text, built)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        return Rejected(message=errors[0].message, findings=findings)
    progress.findings += findings
    return None


def _held_by_the_task(prepared: Prepared) -> Sequence[str]:
    """What a plan leaves open and no case can change."""
    held = ", ".join(f"{name} = {size}" for name, size in prepared.fixed_dims.items())
    return [f"{held} in every case, since the target holds it: the operator takes no other size"] if held else []


def _with_names(refused: Rejected, built: Built) -> Rejected:
    """Findings call kernels by the names that the plan gives them, not by symbols."""
    names = {symbol: name for name, symbol in built.symbols.items()}
    findings = [
        finding.model_copy(update={"kernel": names.get(finding.kernel or "", finding.kernel)})
        for finding in refused.findings
    ]
    return refused.model_copy(update={"findings": tuple(findings)})


def _total_estimate(estimates: Sequence[Estimate]) -> Estimate | None:
    """Forward and backward together: what the search minimizes."""
    if not estimates:
        return None
    sums = ("time_us", "low_us", "high_us", "bytes_moved", "n_operations", "n_launches")
    return estimates[0].model_copy(update={name: sum(getattr(e, name) for e in estimates) for name in sums})


def _total_measurement(measurements: Sequence[Measurement], n_expected: int) -> Measurement | None:
    """Forward and backward together, when both were measured."""
    if len(measurements) < n_expected:
        return None
    sums = ("time_us", "low_us", "high_us")
    return measurements[0].model_copy(update={name: sum(getattr(m, name) for m in measurements) for name in sums})
