"""The pipeline: plan -> build -> integrity -> screen or check on the executor -> run and time on the GPU -> verdict.

The PTX executor checks everything where there is no GPU. Where there is one, it screens what may touch the GPU, and the
GPU runs every case at its full size. A candidate never raises: whatever it does becomes its outcome.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Mapping, Sequence

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
from kernel_lsp.toolchain.integrity.ptx_text import program_hash
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest
from kernel_lsp.toolchain.nvrtc.own_architecture import is_plain
from kernel_lsp.verify.build.building import all_names, candidate_request, module_of, request_of
from kernel_lsp.verify.cpu.device import CpuDevice
from kernel_lsp.verify.cpu.executor_checks import ExecutorChecks
from kernel_lsp.verify.cpu.executor_pool import N_LOOKS
from kernel_lsp.verify.gpu.checks import GpuChecks, MeasuringGpu
from kernel_lsp.verify.gpu.device import GpuDevice
from kernel_lsp.verify.model.cases import SCREEN_FAMILIES, Depth, OperationKind
from kernel_lsp.verify.model.progress import Plan, Progress
from kernel_lsp.verify.model.resolved_kernel import Prepared, plan_failure, prepare
from kernel_lsp.verify.oracle.case_store import CaseStore
from kernel_lsp.verify.oracle.judgement import lost_nans
from kernel_lsp.verify.probes.choice import CaseChoice
from kernel_lsp.verify.probes.code_guided_sizes import singles_out_a_block
from kernel_lsp.verify.session.check_scheduler import Lookout, Looks, audited
from kernel_lsp.verify.session.platform import Platform
from kernel_lsp.verify.session.ready_runs import RunBuilder

MIN_SLOTS, MAX_SLOTS = 2, 8
N_SLOTS = max(MIN_SLOTS, min(MAX_SLOTS, (os.cpu_count() or 1) // 2))
"""Concurrent candidates: a compiler and an executor take one core each, and the GPU takes one candidate at a time."""
DEVICE_NAME = CpuDevice.name
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class Evaluator:
    """Runs the pipeline for candidates of one captured task. Private to this room: other rooms use a `Verifier`."""

    def __init__(
        self,
        task: Task,
        platform: Platform,
        measured_on: Sequence[MeasuringGpu] = (),
        *,
        screen_families: Sequence[str] = SCREEN_FAMILIES,
        name: str = "",
    ) -> None:
        """Each candidate also runs and is timed on one of the GPUs of `measured_on`; without any on the executor alone.
        `screen_families` are the input families of the forward in a screen. `name` is its folder, unique among the
        evaluators of a platform."""
        self._task, self._platform = task, platform
        self._compiler, self._gpu, self._cpu = platform.compiler, platform.gpu, platform.cpu
        self._gpu_device = measured_on[0].device if measured_on else None
        self._n_gpus = len(measured_on)
        self._choice = CaseChoice(task, platform.seed, bool(measured_on), tuple(screen_families))
        self._baseline_wait_s = max((gpu.full_wait_s for gpu in measured_on), default=0.0)
        self._store = CaseStore(task, platform.worker, platform.directory / name, self._local_gpu)
        self._gpu_checks = GpuChecks(self._store, measured_on, platform.seed) if measured_on else None
        checks = ExecutorChecks(task, self._gpu)
        self._lookout = Lookout(self._cpu, self._store, checks, self._compiler, self._gpu, bool(measured_on))
        self.runs = RunBuilder(task, platform, self._gpu_device, self._choice, self._store)

    @property
    def device_name(self) -> str:
        """Return the name of the device that verdicts are reached on."""
        if self._gpu_device is None:
            return DEVICE_NAME
        several = f"{self._n_gpus} x {self._gpu_device.facts.name}"
        return _screened(several if self._n_gpus > 1 else self._gpu_device.name)

    @property
    def _local_gpu(self) -> GpuDevice | None:
        """Return the GPU that references may be made on: the worker that makes them runs here."""
        return self._gpu_device if self._gpu_device is not None and self._gpu_device.is_local else None

    @property
    def baseline_wait_s(self) -> float:
        """Return the longest time that a full verdict waits for PyTorch's compiled modes; 0 where nothing is timed."""
        return self._baseline_wait_s * len(self._directions())

    def _directions(self) -> tuple[OperationKind, ...]:
        return ("forward",) if self._task.backward is None else ("forward", "backward")

    async def close(self) -> None:
        """Stop making cases."""
        await self._store.close()

    async def worker_is_free(self) -> None:
        """Wait until captures delay no case. With a GPU all cases are made at once, and the GPU waits for them. The
        executor needs longer for a case than the worker."""
        if self._gpu_device is not None:
            await self._store.idle()

    async def evaluate(self, candidate: Candidate, depth: Depth) -> Verdict:
        """Run the pipeline. Raises only for a broken machine or a worker that died."""
        started, progress = time.monotonic(), Progress(candidate.id)
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

    async def _evaluate(
        self, candidate: Candidate, prepared: Prepared, depth: Depth, progress: Progress
    ) -> CheckOutcome:
        building = self._begin_building(prepared)
        try:
            await asyncio.sleep(0)  # send the request to a warm compiler before choosing cases blocks this loop
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
        with self._cpu.executors.loading_ahead(module_of(built, prepared.plan), min(len(plans), N_LOOKS)):
            await asyncio.sleep(0)  # send the load requests before this loop is blocked
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
            plans = {kind: self._choice.with_code(prepared, kind, built, plan) for kind, plan in plans.items()}
            progress.singles_out_a_block = any(singles_out_a_block(prepared, kind, built) for kind in plans)
            if self._gpu_checks is not None:
                self._gpu_checks.prefetch(list(plans.values()))
        request = self._request(prepared, _operations(plans))
        looks = Looks(self._lookout, request, prepared, built, plans)
        with progress.stage("executor"):
            failure = await looks.first(depth, progress)
            if failure is None and depth == "full" and self._gpu_checks is None:
                failure = await looks.others(progress)
        if failure is None and self._gpu_checks is not None:
            beside = looks.others if depth == "full" else None
            all_plans, is_ranking = list(plans.values()), depth == "rank"
            failure = await self._gpu_checks.check(built, all_plans, progress, beside=beside, is_ranking=is_ranking)
        return failure or Correct(cases=tuple(progress.cases))

    def _begin_building(self, prepared: Prepared) -> asyncio.Task[Built | BuildFailed | TimedOut] | None:
        """Begin the build where kernel names depend on no size; None where they do."""
        names = all_names(map(prepared.operation, prepared.directions), prepared.signatures)
        if names is None:
            return None
        request = request_of(prepared.text, names, self._gpu, self._gpu_device)
        return asyncio.create_task(self._compiler.compile(request))

    def _request(self, prepared: Prepared, operations: Sequence[BoundOperation]) -> BuildRequest:
        return candidate_request(prepared, operations, self._gpu, self._gpu_device)

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
            device=_screened(progress.gpu) if progress.gpu else self.device_name,
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


def _screened(gpu: str) -> str:
    return f"{gpu}, screened on the {DEVICE_NAME}"


def _operations(plans: Mapping[OperationKind, Plan]) -> list[BoundOperation]:
    return [bound for plan in plans.values() for _, bound in plan]


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
