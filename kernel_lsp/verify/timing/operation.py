"""Time one operation of a candidate against PyTorch: the timer of a pipeline.

async with OperationTimer(task, Baselines(make_worker, cache, device=0)) as timer:
    outcome = await timer.time_operation(candidate_worker, TimedOperation(candidate_id, bound, "forward", files))
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from kernel_lsp.core.measurement import (
    BaselineResult,
    Comparison,
    Measurement,
    MissingBaseline,
    TimedBaseline,
    TimeFloor,
    is_pytorch,
)
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.task import Task, TaskTensor
from kernel_lsp.errors import SettingError
from kernel_lsp.gpu.estimate import time_floor
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.process.case_files import CaseFiles
from kernel_lsp.process.worker_client import OperationName
from kernel_lsp.verify.timing.baselines import MODES, Baselines, Job, hash_of
from kernel_lsp.verify.timing.result import (
    CandidateBroke,
    ImpossibleTime,
    NotTimed,
    Timed,
    TimedOperation,
    TimingOutcome,
    WrongWhileTimed,
    measurement,
    ratio,
    self_noise,
)
from kernel_lsp.verify.timing.rounds import (
    MIN_ROUNDS,
    Asker,
    Rounds,
    Subject,
    SubjectFailed,
    TimingPlan,
    aligned,
    end,
    measure_in_turn,
    prepare,
)

PREPARE_DEADLINE_S = 60.0
RANKING = TimingPlan(MIN_ROUNDS, MIN_ROUNDS, n_warm_samples=0, has_operator_calls=False, budget_s=0.0)
"""Measurement of a candidate that is to be ordered among others: a third of the rounds of a full one, or fewer."""
MAX_DIFFERENCE = 1e-2
"""Maximum relative L2 difference between outputs of timed calls. The order of atomic additions changes far less,
missing work far more. Values were judged before."""
OURS, AGAIN = "ours", "ours again"
NOT_IDLE = "timed while the GPU still ran work of a compilation: both sides may have waited for it"
N_SELF_PAIRS = 2
"""A-A pairs with other buffers, per GPU and order of magnitude of the time. The larger noise counts."""
PROBE_DEADLINE_S = 60.0
PROBE_PLAN = TimingPlan(max_rounds=8, n_warm_samples=0)
SAMPLE_OVERHEAD_US = 3.0
"""Microseconds of a graph's launch and two events, divided among a sample's calls: 2.9 us on one H200, 2026-11-21.
Where the two sides have different numbers of calls, so much of it may look like a difference."""
ENQUEUE_US_PER_LAUNCH = 5.0
"""Approximate host time of one launch, in microseconds. It gives the number of launches of a call that is not ours."""


class OperationTimer:
    """Times the candidates of one task on one GPU, one at a time. Use as ``async with``."""

    def __init__(
        self,
        task: Task,
        baselines: Baselines,
        *,
        plan: TimingPlan | None = None,
        patience_s: float,
        seed: int = 0,
    ) -> None:
        """`baselines` start and end with the timer. `patience_s` is the maximum wait of a timing for compilations."""
        self._task, self._baselines, self._plan, self._seed = task, baselines, plan or TimingPlan(), seed
        self._noise = TimingNoise(baselines.device, seed)
        self._patience_s, self._numbers = patience_s, count()
        self._waited_until: dict[str, float] = {}
        self._ranked: dict[str, Timed] = {}
        self._turn, self._offering = asyncio.Lock(), asyncio.Lock()
        self._offers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> OperationTimer:
        await self._baselines.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks(*self._offers)
        await self._baselines.__aexit__()

    async def offer(self, operation: TimedOperation) -> None:
        """Prepare PyTorch's own run, e.g. while the candidate is checked. Errors are reported with the time."""
        await self._offered(self._job(operation))

    async def wait_for_baselines(self, operation: TimedOperation, *, at_least_s: float = 0.0) -> None:
        """Wait until all baselines are ready, at most the timer's patience, or `at_least_s` where that is more, from
        the first request on.

        Call it without holding the GPU: other candidates use it while PyTorch compiles. `time_operation` does not wait
        again then.
        """
        patience_s = max(self._patience_s, at_least_s)
        if patience_s <= 0:
            return
        job = self._job(operation)
        deadline = self._waited_until.setdefault(job.job_id, time.monotonic() + patience_s)
        await self._offered(job)
        await self._baselines.wait(job, deadline - time.monotonic())

    async def has_baselines(self, operation: TimedOperation, *, at_least_s: float = 0.0) -> bool:
        """Check whether no baseline of the operation is waited for any more: each is ready, timed or given up, or the
        wait that `wait_for_baselines` describes, which the first request starts, is over."""
        job = self._job(operation)
        patience_s = max(self._patience_s, at_least_s)
        deadline = self._waited_until.setdefault(job.job_id, time.monotonic() + patience_s)
        await self._offered(job)
        return self._baselines.is_complete(job) or time.monotonic() >= deadline

    async def time_operation(
        self, worker: Asker, operation: TimedOperation, *, patience_s: float | None = None
    ) -> TimingOutcome:
        """Time the candidate against eager and the modes that are compiled by then. `patience_s` defaults to the
        timer's.

        Modes that are still being compiled are listed as missing; a later call has them.
        """
        async with self._turn:
            job = self._job(operation)
            if (ranked := self._ranked.get(_ranking_key(operation, job))) is not None:
                return ranked
            await self._offered(job)
            patience = 0.0 if job.job_id in self._waited_until else self._patience_s
            await self._baselines.wait(job, patience if patience_s is None else patience_s)
            async with self._baselines.held() as is_idle:
                try:
                    outcome = await self._time(worker, operation, job)
                except SubjectFailed as failed:
                    outcome = CandidateBroke(failed.message)
            if isinstance(outcome, Timed) and not is_idle:
                notes = (*outcome.comparison.notes, NOT_IDLE)
                outcome = Timed(outcome.comparison.model_copy(update={"notes": notes}))
            if isinstance(outcome, Timed) and is_idle and (key := _ranking_key(operation, job)):
                self._ranked[key] = outcome
            return outcome

    def _job(self, operation: TimedOperation) -> Job:
        return baseline_job(self._task, self._baselines.device, operation.bound, operation.direction, operation.files)

    async def _offered(self, job: Job) -> None:
        """Continue when the caller is cancelled: a process whose answer is not read is lost for all later jobs."""

        async def offer() -> None:
            async with self._offering:
                await self._baselines.offer(job)

        task = asyncio.create_task(offer())
        self._offers.add(task)
        task.add_done_callback(self._offers.discard)
        await asyncio.shield(task)

    async def _time(self, worker: Asker, operation: TimedOperation, job: Job) -> TimingOutcome:
        """Raises SubjectFailed for the candidate; baselines that fail are left out."""
        number = next(self._numbers)
        ours = await self._prepare(worker, operation, OURS, number)
        extra: list[Subject] = []
        racing = self._baselines.ranking_subjects(job) if operation.is_ranking else []
        if not operation.is_ranking and self._noise.needs_self_pair(ours):
            extra.append(await self._prepare(worker, operation, AGAIN, number, beside=ours))
        measured = await self._rounds([ours, *extra], racing, job)
        if not isinstance(measured, Measured):
            return measured
        for subject in measured.candidates:
            wrong = await self._wrong(subject)
            if wrong is not None:
                return wrong
        return await self._outcome(ours, measured, operation, job)

    async def _rounds(self, candidates: list[Subject], racing: list[Subject], job: Job) -> Measured | NotTimed:
        """Measure all in turn, without the baselines that fail. `racing` are the baselines of a ranking; empty for a
        full measurement."""
        while True:
            plan = RANKING if racing else self._plan
            baselines = racing or self._baselines.subjects(job)
            if not baselines:
                missing = self._baselines.others(job, ())
                return NotTimed("; ".join(f"{found.name}: {_reason(found)}" for found in missing))
            try:
                return await self._measure(candidates, baselines, plan, job)
            except SubjectFailed as failed:
                if failed.name in (OURS, AGAIN):
                    raise
                await self._baselines.drop(job, failed)
                if failed.is_disconnected:
                    await self._offered(job)
            racing = []

    async def _measure(
        self, candidates: list[Subject], baselines: list[Subject], plan: TimingPlan, job: Job
    ) -> Measured:
        arranged = []
        for baseline in baselines:
            found = await aligned(baseline, candidates[0])
            self._baselines.rearranged(job, found)
            arranged.append(found)
        rounds = await measure_in_turn(candidates, arranged, plan, self._seed)
        return Measured(rounds, tuple(arranged), tuple(candidates), is_ranking=plan is RANKING)

    async def _outcome(self, ours: Subject, measured: Measured, operation: TimedOperation, job: Job) -> TimingOutcome:
        for again in measured.candidates[1:]:
            self._noise.add_self_pair(ours, again, measured.rounds)
        mine = measurement(ours, measured.rounds, operation.bound, self._seed)
        timed = [await self._timed(ours, baseline, measured, operation) for baseline in measured.baselines]
        for baseline in () if measured.is_ranking else timed:
            await self._baselines.record(job, baseline)
        others = self._baselines.others(job, [baseline.name for baseline in timed])
        best = _best([*timed, *others])
        floor, notes = self._floor(operation, mine)
        if floor is not None and mine.time_us < floor.impossible_below_us:
            return ImpossibleTime(
                f"measured {mine.time_us:.3g} us, and no correct kernel takes less than "
                f"{floor.impossible_below_us:.3g} us on {mine.gpu} "
                f"(speed of light {floor.time_us:.3g} us: {floor.basis}): "
                "the work was not done, or not timed"
            )
        comparison = Comparison(
            baseline_name=best.name,
            baseline=best.measurement,
            ours=mine,
            ratio=best.ratio,
            baselines=_in_order([*timed, *others]),
            floor=floor,
            notes=notes,
        )
        return Timed(comparison)

    async def _timed(
        self, ours: Subject, baseline: Subject, measured: Measured, operation: TimedOperation
    ) -> TimedBaseline:
        noise = await self._noise.between(ours, baseline)
        return TimedBaseline(
            name=baseline.name,
            measurement=measurement(baseline, measured.rounds, operation.bound, self._seed),
            ratio=ratio(ours, baseline, measured.rounds, noise, self._seed),
        )

    async def _prepare(
        self, worker: Asker, operation: TimedOperation, name: str, number: int, beside: Subject | None = None
    ) -> Subject:
        bound = operation.bound
        request = {
            "candidate": operation.candidate_id,
            "operation": bound.timed.model_dump(mode="json"),
            **({"before": bound.before.model_dump(mode="json")} if bound.n_before else {}),
            "inputs": [tensor.entry for tensor in operation.files.inputs],
            "expected": dict(operation.expected),
            **({} if beside is None else {"n_calls": beside.n_calls, "beside": beside.subject_id}),
        }
        return await prepare(
            name, f"{name}-{number}".replace(" ", "-"), worker, "prepare_candidate", request, PREPARE_DEADLINE_S
        )

    async def _wrong(self, subject: Subject) -> WrongWhileTimed | None:
        """Return the failure in the results of timed calls, as their process saw them; None when they are correct."""
        seen = await end(subject)
        if seen.get("changed_inputs"):
            return WrongWhileTimed(f"timed calls changed their inputs: {', '.join(seen['changed_inputs'])}")
        if seen.get("overrun"):
            return WrongWhileTimed(f"timed calls wrote outside of: {', '.join(seen['overrun'])}")
        if not (difference := float(seen.get("relative_difference", 0.0))) <= MAX_DIFFERENCE:
            which = f"{seen['n_unequal']} of {seen['n_checked']} timed calls"
            by = f"{difference:.2g} in relative L2, at most {MAX_DIFFERENCE:g}"
            return WrongWhileTimed(f"{which} gave other outputs than the call that was judged: {by}")
        return None

    def _floor(self, operation: TimedOperation, mine: Measurement) -> tuple[TimeFloor | None, tuple[str, ...]]:
        graph = self._task.forward if operation.direction == "forward" else self._task.backward
        try:
            gpu = find_gpu(mine.gpu)
        except SettingError:
            return None, (f"no speed of light (roofline bound): no figures are known for {mine.gpu}",)
        return (time_floor(graph, operation.bound, gpu), ()) if graph is not None else (None, ())


@dataclass(frozen=True)
class Measured:
    """Rounds with their subjects; the candidate itself is the first of `candidates`."""

    rounds: Rounds
    baselines: tuple[Subject, ...]
    candidates: tuple[Subject, ...]
    is_ranking: bool = False


def baseline_job(
    task: Task, device: int | str, bound: BoundOperation, direction: OperationName, files: CaseFiles
) -> Job:
    """Return PyTorch's job for these shapes, with everything that its times depend on."""
    reference = reference_request(task, direction)
    shapes = ", ".join(f"{tensor.name} {tensor.dtype.value}{list(tensor.shape)}" for tensor in bound.inputs)
    return Job(
        task_hash=hash_of(reference),
        configuration=f"{direction}: {shapes}",
        request={
            "device": device,
            "reference": reference,
            "inputs": [tensor.entry for tensor in files.inputs],
            "written_bytes": sum(tensor.n_bytes for tensor in bound.outputs),
        },
        n_bytes=sum(tensor.n_bytes for tensor in bound.tensors),
    )


def _ranking_key(operation: TimedOperation, job: Job) -> str:
    """Return what the time of a ranking depends on: code, launches and shapes. Empty where it is to be measured."""
    if not (operation.is_ranking and operation.code):
        return ""
    return f"{operation.code} {job.job_id} {operation.bound.model_dump_json(exclude={'name'})}"


def reference_request(task: Task, direction: OperationName) -> dict[str, Any]:
    """Return PyTorch's functional reference of one direction as the worker's requests describe it. The forward of a
    task with a backward has its gradients, too: it is timed as in a training step."""
    arguments = [
        {"tensor": argument.name} if isinstance(argument, TaskTensor) else {"value": argument.value}
        for argument in task.arguments
    ]
    outputs = task.backward.outputs if task.backward is not None else ()
    gradients = [output.name.removeprefix("grad_") for output in outputs if output.node is not None]
    return {
        "name": task.name,
        "source": task.reference_source,
        "arguments": arguments,
        "direction": direction,
        "gradients": gradients,
    }


def _best(found: Sequence[BaselineResult]) -> TimedBaseline:
    """Return the fastest baseline of PyTorch; eager among them was measured just now."""
    timed = [baseline for baseline in found if isinstance(baseline, TimedBaseline) and is_pytorch(baseline.name)]
    return min(timed, key=lambda baseline: baseline.measurement.time_us)


def _in_order(found: Sequence[BaselineResult]) -> tuple[BaselineResult, ...]:
    """Return PyTorch's baselines in their order, then those of peers."""
    order = {name: position for position, name in enumerate(MODES)}
    return tuple(sorted(found, key=lambda baseline: order.get(baseline.name, len(order))))


def _reason(found: BaselineResult) -> str:
    return found.reason if isinstance(found, MissingBaseline) else "timed"


class TimingNoise:
    """The known noise of this session. `device` is an index, or ``cpu``."""

    def __init__(self, device: int | str, seed: int) -> None:
        self._device, self._seed = device, seed
        self._of_buffers: dict[tuple[str, int], list[float]] = {}
        self._of_processes: dict[tuple[int, str, int, str], float] = {}

    def needs_self_pair(self, ours: Subject) -> bool:
        """Check whether the candidate should be measured against itself."""
        return len(self._of_buffers.get(_magnitude(ours), ())) < N_SELF_PAIRS

    def add_self_pair(self, ours: Subject, again: Subject, rounds: Rounds) -> None:
        """Record the noise of a candidate against itself on other buffers."""
        self._of_buffers.setdefault(_magnitude(ours), []).append(self_noise(ours, again, rounds, self._seed))

    async def between(self, ours: Subject, theirs: Subject) -> float:
        """Return the relative difference between these two that may be noise."""
        of_buffers = max(self._of_buffers.get(_magnitude(ours), [0.0]))
        offset_us = await self._offset_us(ours, theirs)
        unequal_us = SAMPLE_OVERHEAD_US * abs(1 / ours.n_calls - 1 / theirs.n_calls)
        extra_us = [unequal_us + offset_us * _n_launches(subject) for subject in (ours, theirs)]
        return max(of_buffers, *(us / subject.time_us for us, subject in zip(extra_us, (ours, theirs), strict=True)))

    async def _offset_us(self, ours: Subject, theirs: Subject) -> float:
        """Return the difference between the two processes' times of one small kernel, each by the method of its
        subject. A process that cannot be probed fails in its next block; until then the offset counts as 0."""
        key = (int(ours.facts["pid"]), ours.method, int(theirs.facts["pid"]), theirs.method)
        if key not in self._of_processes:
            try:
                self._of_processes[key] = await self._probe(ours, theirs)
            except SubjectFailed:
                return 0.0
        return self._of_processes[key]

    async def _probe(self, ours: Subject, theirs: Subject) -> float:
        probes = []
        for name, subject in (("probe of ours", ours), ("probe of theirs", theirs)):
            request = {"device": self._device, "method": subject.method}
            probes.append(await prepare(name, "probe", subject.worker, "prepare_probe", request, PROBE_DEADLINE_S))
        rounds = await measure_in_turn(probes, (), PROBE_PLAN, self._seed)
        for probe in probes:
            await end(probe)
        return self_noise(probes[0], probes[1], rounds, self._seed) * probes[0].time_us


def _magnitude(subject: Subject) -> tuple[str, int]:
    """Return the GPU, and the time's order of magnitude by factors of four."""
    return str(subject.facts.get("gpu_uuid", "")), int(math.log(max(subject.time_us, 1e-3), 4))


def _n_launches(subject: Subject) -> int:
    return max(1, round(float(subject.facts["enqueue_us"]) / ENQUEUE_US_PER_LAUNCH))
