"""The pipeline: plan -> build -> integrity -> screen or check on the executor -> run and time on the GPU -> verdict.

The PTX executor checks everything where there is no GPU. Where there is one, it screens what may touch the GPU, and the
GPU runs every case at its full size. A candidate never raises: whatever it does becomes its outcome.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.measurement import Estimate, Measurement
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import (
    BuildFailed,
    Built,
    CheckOutcome,
    Correct,
    TimedOut,
    Unsupported,
    Verdict,
)
from kernel_lsp.errors import PlanError, ScratchFullError
from kernel_lsp.evaluate.building import COMPILED_AS, Module, all_names, module_of, request_of
from kernel_lsp.evaluate.case_store import CaseStore, NoCase
from kernel_lsp.evaluate.cases import (
    SCREEN_FAMILIES,
    Case,
    OperationKind,
)
from kernel_lsp.evaluate.cpu import CpuDevice, Profile, Skipped, new_executor
from kernel_lsp.evaluate.executor_checks import (
    FULL_LIMITS,
    ExecutorChecks,
)
from kernel_lsp.evaluate.executor_pool import N_LOOKS, ExecutorPool
from kernel_lsp.evaluate.gpu_checks import GpuChecks, MeasuringGpu
from kernel_lsp.evaluate.judgement import lost_nans
from kernel_lsp.evaluate.looks import Lookout, Looks, audited
from kernel_lsp.evaluate.planned_cases import CaseChoice, Depth
from kernel_lsp.evaluate.pointed_cases import with_pointed_cases
from kernel_lsp.evaluate.pointed_sizes import singles_out_a_block
from kernel_lsp.evaluate.prepare import Prepared, kernel_names, plan_failure, prepare
from kernel_lsp.evaluate.progress import Plan, Progress
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.process.confinement import SandboxLevel
from kernel_lsp.process.worker_client import CaseFiles, Worker
from kernel_lsp.ptx.executor import Loaded
from kernel_lsp.toolchain.compile import BuildRequest, Compiler
from kernel_lsp.toolchain.own_architecture import is_plain
from kernel_lsp.toolchain.ptx_identity import program_hash

MIN_SLOTS, MAX_SLOTS = 2, 8
N_SLOTS = max(MIN_SLOTS, min(MAX_SLOTS, (os.cpu_count() or 1) // 2))
"""Candidates under way at once: a compiler and an executor are one core each, and the GPU takes one at a time."""
DEVICE_NAME = "PTX executor (CPU)"
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
        self._choice = CaseChoice(task, seed, measured_on is not None, tuple(screen_families))
        self._baseline_wait_s = 0.0 if measured_on is None else measured_on.full_wait_s
        self._store = CaseStore(task, worker, directory / name, self._gpu_device)
        self._device = CpuDevice(self._store, worker, directory, name)
        self._gpu_checks = None if measured_on is None else GpuChecks(self._store, measured_on, seed)
        self.directory = directory
        self.executors = executors or ExecutorPool(lambda: new_executor(directory, sandbox), N_SLOTS)
        checks = ExecutorChecks(task, self._device, gpu)
        self._lookout = Lookout(self.executors, self._device, checks, compiler, gpu, measured_on is not None)
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
            plans = [self._choice.plan(prepared, direction, "screen") for direction in prepared.directions]
        except PlanError as error:
            return plan_failure(error)
        operations = [bound for plan in plans for _, bound in plan]
        built = await self._compiler.compile(self._request(prepared, operations, file_name))
        if not isinstance(built, Built):
            return built
        refused = audited(candidate.text, built, Progress(candidate.id))
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
        building = self._begin_building(prepared)
        try:
            await asyncio.sleep(0)  # a warm compiler has it before cases are chosen, which keeps this loop busy
            plans = {direction: self._choice.plan(prepared, direction, depth) for direction in prepared.directions}
            if self._gpu_checks is not None:
                self._gpu_checks.prefetch(list(plans.values()))
            with progress.stage("build"):
                built = await (building or self._compiler.compile(self._request(prepared, _operations(plans))))
        finally:
            if building is not None:
                building.cancel()
        if not isinstance(built, Built):
            return built
        progress.built = built
        progress.findings += built.warnings
        if not is_plain(built.architecture):
            progress.notes.append(f"compiled for {built.architecture}: it uses what that architecture alone has")
        with self.executors.loading_ahead(module_of(built, prepared.plan), min(len(plans), N_LOOKS)):
            await asyncio.sleep(0)  # they are asked to before this loop is busy
            return await self._evaluate_built(candidate, prepared, built, plans, depth, progress)

    async def _evaluate_built(
        self,
        candidate: Candidate,
        prepared: Prepared,
        built: Built,
        plans: dict[OperationKind, Plan],
        depth: Depth,
        progress: Progress,
    ) -> CheckOutcome:
        if refused := audited(candidate.text, built, progress):
            return refused
        if depth == "full":
            plans = {kind: with_pointed_cases(prepared, kind, built, plan, self._seed) for kind, plan in plans.items()}
            progress.singles_out_a_block = any(singles_out_a_block(prepared, kind, built) for kind in plans)
            if self._gpu_checks is not None:
                self._gpu_checks.prefetch(list(plans.values()))
        if self._gpu_checks is None:
            progress.when_worker_is_free()  # the executor takes seconds, and asks for one case at a time
        request = self._request(prepared, _operations(plans))
        looks = Looks(self._lookout, request, prepared, built, plans)
        with progress.stage("executor"):
            failure = await looks.first(depth, progress)
            if failure is None and depth == "full" and self._gpu_checks is None:
                failure = await looks.others(progress)
        if failure is None and self._gpu_checks is not None:
            failure = await self._gpu_checks.check(
                built, list(plans.values()), progress, beside=looks.others if depth == "full" else None
            )
        return failure or Correct(cases=tuple(progress.cases))

    def _begin_building(self, prepared: Prepared) -> asyncio.Task[Built | BuildFailed | TimedOut] | None:
        """Where the names of kernels depend on no size; None where they do."""
        names = all_names(map(prepared.operation, prepared.directions), prepared.signatures)
        if names is None:
            return None
        return asyncio.create_task(self._compiler.compile(self._request_for(prepared, names)))

    def _request(
        self, prepared: Prepared, operations: Sequence[BoundOperation], file_name: str = COMPILED_AS
    ) -> BuildRequest:
        """With all kernels that the plan may launch, or where their names depend on sizes those that are launched."""
        names = all_names(map(prepared.operation, prepared.directions), prepared.signatures)
        if names is None:
            names = set().union(*(kernel_names(operation) for operation in operations))
        return self._request_for(prepared, names, file_name)

    def _request_for(self, prepared: Prepared, names: set[str], file_name: str = COMPILED_AS) -> BuildRequest:
        return request_of(prepared.text, names, self._gpu, self._gpu_device, file_name)

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
            findings=(*progress.findings, *lost_nans(progress.cases)),
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


def _operations(plans: Mapping[OperationKind, Plan]) -> list[BoundOperation]:
    return [bound for plan in plans.values() for _, bound in plan]


def _held_by_the_task(prepared: Prepared) -> Sequence[str]:
    """What a plan leaves open and no case can change."""
    held = ", ".join(f"{name} = {size}" for name, size in prepared.fixed_dims.items())
    return [f"{held} in every case, since the target holds it: the operator takes no other size"] if held else []


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
