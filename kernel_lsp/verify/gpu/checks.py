"""Run the GPU checks of a built candidate: every case of its plan, then its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

from kernel_lsp.core.measurement import Measurement
from kernel_lsp.core.plan import BoundLibraryStep, BoundOperation
from kernel_lsp.core.verdict import Built, CheckOutcome, Unsupported
from kernel_lsp.errors import ConnectionLostError, KernelLspError
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.process.case_files import CaseFiles
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx
from kernel_lsp.verify.cpu.executor_checks import screened_cases
from kernel_lsp.verify.devices.device import DeviceCase, KernelBuild, Timer
from kernel_lsp.verify.gpu.gpu_device import GpuDevice, TurnElsewhere
from kernel_lsp.verify.gpu.gpu_kernel import GpuFailure, GpuJob, GpuReport
from kernel_lsp.verify.model.cases import Case, Look, Plan, Progress, StageTimes
from kernel_lsp.verify.oracle.case_store import CaseStore, NoCase
from kernel_lsp.verify.timing.result import NotTimed, TimedOperation, TimingOutcome
from kernel_lsp.verify.timing.rounds import Asker

T = TypeVar("T")
PATIENCE_S = 2.0
"""Seconds to wait for the executors' findings after the GPU found a failure: theirs are more precise."""
ATOMICS = ("atom.", "red.", "multimem.red.")
LEFT_OUT_S = 10.0
"""Seconds for which a GPU whose machine was lost gets no candidates while others are there."""


@dataclass(frozen=True)
class MeasuringGpu:
    """A GPU and the timer of one task's candidates on it. A full verdict waits at least `full_wait_s` for PyTorch's
    compiled modes, but not beyond `wait_end` of the monotonic clock. That pays for the result of a search, not for a
    kernel in development."""

    device: GpuDevice
    timer: Timer
    full_wait_s: float = 0.0
    wait_end: float = inf

    @property
    def wait_s(self) -> float:
        """Return the seconds for which a full verdict that waits from now on does."""
        return max(0.0, min(self.full_wait_s, self.wait_end - time.monotonic()))


class Untimed:
    """A timer for checks of correctness alone: it measures nothing."""

    async def wait_for_baselines(self, operation: TimedOperation, *, at_least_s: float = 0.0) -> None:
        """Return at once: there are no baselines."""

    async def has_baselines(self, operation: TimedOperation, *, at_least_s: float = 0.0) -> bool:
        """Return True: none is missing."""
        return True

    async def offer(self, operation: TimedOperation) -> None:
        """Do nothing."""

    async def time_operation(self, worker: Asker, operation: TimedOperation) -> TimingOutcome:
        """Return `NotTimed`."""
        return NotTimed("only its results were asked for")


class GpuChecks:
    """Checks of one task's candidates, each on one of the GPUs."""

    def __init__(self, store: CaseStore, gpus: Sequence[MeasuringGpu], seed: int) -> None:
        self._store, self._gpus, self._seed = store, gpus, seed
        self._offering: asyncio.Task[None] | None = None

    def prefetch(self, plans: Sequence[Plan]) -> None:
        """Have the references made while the candidate is compiled and screened. Order: those of the screen, those that
        need the GPU without a candidate, then the smallest."""
        screened = [case for plan in plans for case, _ in screened_cases(plan)]
        first = [case for plan in plans for n, (case, _) in enumerate(plan) if self._is_first(n, case)]
        cases = [(sum(tensor.n_bytes for tensor in bound.tensors), case) for plan in plans for case, bound in plan]
        then = [case for _, case in sorted(cases, key=lambda entry: entry[0])]
        by_workers = _read_by_workers([entry for plan in plans for entry in plan])
        self._store.begin_in_order([*screened, *first], then, by_workers=by_workers)
        if self._offering is None and len(self._gpus) == 1 and self._gpus[0].full_wait_s > 0:
            self._offering = asyncio.create_task(self._offer(self._gpus[0].timer, plans))

    def make_ahead(self, plans: Sequence[Plan]) -> None:
        """Make the cases of a later check in the background, those that need the GPU without a candidate first."""
        entries = [entry for plan in plans for entry in plan]
        cases = sorted((case for case, _ in entries), key=lambda case: not self._store.takes_a_turn(case))
        self._store.make_ahead(cases, by_workers=_read_by_workers(entries))

    async def close(self) -> None:
        """Stop offering."""
        await end_tasks(self._offering)

    async def check(
        self, built: Built, plans: Sequence[Plan], progress: Progress, *, beside: Look | None, is_ranking: bool = False
    ) -> CheckOutcome | None:
        """Run, judge and time; None when everything passed. A full verdict runs `beside` on the executors meanwhile,
        and all cases again from a fresh module. `is_ranking` times as `TimedOperation` says."""

        piece = progress.piece()
        looking = asyncio.create_task(_staged(beside, piece, progress)) if beside is not None else None

        async def on(gpu: MeasuringGpu) -> GpuReport | GpuFailure:
            progress.gpu = gpu.device.name
            return await self._run(gpu, built, plans, progress, looking, is_ranking and beside is None)

        try:
            found = await on_one_of(self._gpus, on)
            if looking is None:
                return _taken(found, progress)
            if not isinstance(found, GpuReport):
                await asyncio.wait([looking], timeout=PATIENCE_S)
                if not looking.done():
                    return found
            failure = await looking
        finally:
            await end_tasks(looking)
        progress.take(piece)
        return failure or _taken(found, progress)

    async def _run(
        self,
        gpu: MeasuringGpu,
        built: Built,
        plans: Sequence[Plan],
        progress: Progress,
        beside: asyncio.Task[CheckOutcome | None] | None,
        is_ranking: bool = False,
    ) -> GpuReport | GpuFailure:
        with progress.stage("references"):
            n_first = sum(self._is_first(n, case) for plan in plans for n, (case, _) in enumerate(plan))
            progress.n_cases["references"] = 0, n_first
            chosen = [case for plan in plans for case in await self._first(plan, progress)]
        timed = [case for case in chosen if _is_timed(case.case)]
        async with self._rest(plans) as coming:
            job = GpuJob(
                build=KernelBuild(progress.candidate_id, built),
                cases=chosen,
                timed=timed,
                timer=gpu.timer,
                may_vary=_may_vary(built, [bound for plan in plans for _, bound in plan]),
                rechecks=beside is not None,
                is_ranking=is_ranking,
                seed=self._seed,
                coming=coming,
                beside=beside,
            )
            if not await _is_timed_later(gpu, job, progress):
                return await gpu.device.evaluate(job, progress)
            found = await gpu.device.evaluate(replace(job, timed=()), progress)
        if not isinstance(found, GpuReport) or job.is_in_vain:
            return found
        await _wait_for_baselines(gpu, job, progress, gpu.wait_s)
        if job.is_in_vain:
            return found
        times = await gpu.device.evaluate(replace(job, cases=timed, coming=(), rechecks=False), progress)
        if isinstance(times, Unsupported):  # others fill the GPU by now: the cases were judged
            return GpuReport(found.cases, found.comparisons, [*found.notes, f"not timed: {times.message}"])
        if not isinstance(times, GpuReport):
            return times
        return GpuReport(found.cases, times.comparisons, [*dict.fromkeys((*found.notes, *times.notes))])

    async def _offer(self, timer: Timer, plans: Sequence[Plan]) -> None:
        """Have PyTorch's side prepared while the first candidate is compiled and screened, once no reference needs the
        GPU. Errors recur where the candidate needs the same."""
        entries = [entry for plan in plans for n, entry in enumerate(plan) if self._is_first(n, entry[0])]
        with suppress(KernelLspError):
            found = await asyncio.gather(*(self._files(*entry) for entry in entries))
            for (case, bound), files in zip(entries, found, strict=True):
                if _is_timed(case) and isinstance(files, CaseFiles):
                    await timer.offer(TimedOperation("", bound, case.operation, files))

    async def _first(self, plan: Plan, progress: Progress) -> list[DeviceCase]:
        """Return the captured cases, and those that are made on the GPU itself, which the candidate occupies
        afterwards."""
        first = [entry for position, entry in enumerate(plan) if self._is_first(position, entry[0])]

        async def counted(case: Case, bound: BoundOperation) -> CaseFiles | NoCase:
            files = await self._files(case, bound)
            n_done, n_all = progress.n_cases["references"]
            progress.n_cases["references"] = n_done + 1, n_all
            return files

        found = await asyncio.gather(*(counted(*entry) for entry in first))
        if isinstance(found[0], NoCase):
            progress.notes.append(f"{plan[0][1].name}: not measured: {found[0].reason}")
        return [
            self._gpu_case(*entry, files)
            for entry, files in zip(first, found, strict=True)
            if isinstance(files, CaseFiles)
        ]

    def _is_first(self, position: int, case: Case) -> bool:
        return position == 0 or self._store.takes_a_turn(case)

    @asynccontextmanager
    async def _rest(self, plans: Sequence[Plan]) -> AsyncIterator[Sequence[asyncio.Task[DeviceCase | None]]]:
        """Make the other cases while the first ones run."""
        entries = [entry for plan in plans for n, entry in enumerate(plan) if not self._is_first(n, entry[0])]
        coming = [asyncio.create_task(self._case(case, bound)) for case, bound in entries]
        try:
            yield coming
        finally:
            await end_tasks(*coming)

    async def _case(self, case: Case, bound: BoundOperation) -> DeviceCase | None:
        """Return the case with its files. None where PyTorch itself cannot run it."""
        files = await self._files(case, bound)
        return self._gpu_case(case, bound, files) if isinstance(files, CaseFiles) else None

    async def _files(self, case: Case, bound: BoundOperation) -> CaseFiles | NoCase:
        return await self._store.get(case, by_workers=_is_read_by_workers(bound))

    def _gpu_case(self, case: Case, bound: BoundOperation, files: CaseFiles) -> DeviceCase:
        return DeviceCase(case, bound, files, self._store.expectations(files))


async def _is_timed_later(gpu: MeasuringGpu, job: GpuJob, progress: Progress) -> bool:
    """Check whether a full verdict has modes of PyTorch to wait for: its cases then run meanwhile, and those that are
    timed once more afterwards. Any other verdict has waited as long as it may."""
    if job.beside is None or gpu.wait_s <= 0.0 or job.is_in_vain:
        await _wait_for_baselines(gpu, job, progress, 0.0)
        return False
    with progress.stage("baselines"):
        return not all([await gpu.timer.has_baselines(each, at_least_s=gpu.wait_s) for each in _operations(job)])


async def _wait_for_baselines(gpu: MeasuringGpu, job: GpuJob, progress: Progress, at_least_s: float) -> None:
    with progress.stage("baselines"):
        for operation in () if job.is_in_vain else _operations(job):
            await gpu.timer.wait_for_baselines(operation, at_least_s=at_least_s)


def _operations(job: GpuJob) -> list[TimedOperation]:
    return [TimedOperation(job.candidate_id, each.bound, each.case.operation, each.files) for each in job.timed]


def _read_by_workers(entries: Plan) -> set[Case]:
    return {case for case, bound in entries if _is_read_by_workers(bound)}


def _is_read_by_workers(bound: BoundOperation) -> bool:
    """Check whether none but workers reads the inputs: this process judges a result that is an input."""
    return all(holder.role != "input" for _, holder in bound.results)


def _is_timed(case: Case) -> bool:
    return case.is_captured and case.family == "given"


async def _staged(look: Look, piece: Progress, stages: StageTimes) -> CheckOutcome | None:
    with stages.stage("executor, beside the GPU"):
        return await look(piece)


def _taken(found: GpuReport | GpuFailure, progress: Progress) -> CheckOutcome | None:
    """Record what a GPU found; None when everything passed."""
    if not isinstance(found, GpuReport):
        return found
    if not found.cases:
        return Unsupported(message="PyTorch itself gives no finite reference for any case")
    progress.cases += found.cases
    progress.notes += found.notes
    progress.times.update(found.comparisons)
    ours = [comparison.ours for comparison in found.comparisons.values()]
    progress.measurements += [measurement for measurement in ours if isinstance(measurement, Measurement)]
    return None


def _may_vary(built: Built, bounds: Sequence[BoundOperation]) -> bool:
    """Check whether two runs may differ in their last bits: with atomics, and with library steps."""
    if any(isinstance(step, BoundLibraryStep) for bound in bounds for step in bound.steps):
        return True
    return any(statement.opcode.startswith(ATOMICS) for statement in read_ptx(built.ptx).statements)


async def on_one_of(gpus: Sequence[MeasuringGpu], work: Callable[[MeasuringGpu], Awaitable[T]]) -> T:
    """Do the work of one candidate on one GPU; again on another one that comes free before its turn. Raises
    ConnectionLostError when all GPUs are lost."""
    n_left = len(gpus)
    while n_left:
        gpu = min(gpus, key=_order)
        try:
            with gpu.device.load.assigned():
                return await work(gpu)
        except TurnElsewhere:
            continue
        except ConnectionLostError:
            gpu.device.lost_until = time.monotonic() + LEFT_OUT_S
            n_left -= 1
            if not n_left:
                raise
        finally:
            _give_work(gpu, gpus)
    raise ValueError("there is no GPU")


def _give_work(free: MeasuringGpu, gpus: Sequence[MeasuringGpu]) -> None:
    """Give a GPU without candidates one that waits for another GPU, the one with most. At the end of a search, GPUs
    stood idle beside others with two candidates each."""
    if _order(free) == (0.0, 0):
        busy = sorted((gpu for gpu in gpus if gpu.device.load.n > 1), key=lambda gpu: -gpu.device.load.n)
        any(gpu.device.send_one_away() for gpu in busy)


def _order(gpu: MeasuringGpu) -> tuple[float, int]:
    """Sort lost GPUs last, by the end of their time, and others by their candidates. One that a waiting candidate has
    brought back is lost no more."""
    lost_until = gpu.device.lost_until
    is_lost = lost_until > time.monotonic() and not gpu.device.slot.is_healthy
    return (lost_until if is_lost else 0.0, gpu.device.load.n)
