"""Run a loaded candidate on every case, several at a time where that saves time, run it again, and time it."""

from __future__ import annotations

import asyncio
import os
import random
import time
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kernel_lsp.core.verdict import CaseResult, Crashed, Mismatch, TimedOut, Unsupported
from kernel_lsp.toolchain.integrity.ptx_text import kernels_hash
from kernel_lsp.verify.devices.device import DeviceCase
from kernel_lsp.verify.gpu.gpu_kernel import GpuFailure, GpuJob, GpuKernel, GpuReport, Launched
from kernel_lsp.verify.model.cases import StageTimes
from kernel_lsp.verify.timing.result import NotTimed, Timed, TimedOperation, TimingFailure, verdict_of

MAX_WAIT_BESIDE_S = 10.0
"""Maximum seconds to wait for executors: other candidates, which wait for the GPU, may hold all of them."""
MANY_PROCESSORS = 12
"""Processors from which the executors of all candidates leave enough for the two timed processes."""
N_CASES_ASKED = 2
"""Requests in flight: the worker starts the next case as soon as one is done."""
MAX_WAITING_BYTES = 2 << 30
"""Maximum bytes of outputs that wait to be compared while the device continues. One case alone may exceed it."""


@dataclass(frozen=True)
class _Judging:
    """A case that is being judged from copies of `n_bytes` bytes, at least one."""

    task: asyncio.Task[CaseResult | Mismatch]
    n_bytes: int


class Attempt:
    """One run of all cases of a loaded candidate, and its timing."""

    def __init__(self, kernel: GpuKernel, job: GpuJob, stages: StageTimes) -> None:
        self._kernel, self._job, self._stages = kernel, job, stages
        self._report, self._n_cases = GpuReport(), len(job.cases) + len(job.coming)
        self._fingerprints = dict[str, dict[str, int]]()
        self._spreads = dict[tuple[str, str], float]()
        self._scratch_bytes = dict[str, int]()
        self._judging: list[_Judging] = []

    async def run(self) -> GpuReport | GpuFailure:
        """Run every case, run again from a fresh module, time."""
        offering = asyncio.create_task(self._offer())
        try:
            failure = await self._stages_of_one(offering)
            await offering
        finally:
            for task in (offering, *(judging.task for judging in self._judging)):
                task.cancel()
        if failure is not None:
            return failure
        if self._job.is_in_vain:
            return GpuReport()
        self._report.notes += self._notes()
        return self._report

    async def _offer(self) -> None:
        """Prepare PyTorch's side of the timing in its own process meanwhile. Nothing is timed yet."""
        started = time.monotonic()
        for case in self._job.timed:
            await self._job.timer.offer(self._operation(case))
        self._stages.add_stage("gpu baseline, beside cases", time.monotonic() - started)

    async def _stages_of_one(self, offering: asyncio.Task[None]) -> GpuFailure | None:
        steps = {
            "gpu cases": self._run_cases,
            "gpu again": self._recheck,
            "gpu waits for executors": self._others,
            "gpu time": lambda: self._time(offering),
        }
        for name, step in steps.items():
            if self._job.is_in_vain:
                return None
            with self._stages.stage(name):
                failure = await step()
            if failure is not None:
                return failure
        return None

    async def _others(self) -> None:
        """Wait for the executors where processors are few: they would slow down our launches."""
        beside = self._job.beside
        if beside is not None and self._job.timed and (os.cpu_count() or 1) < MANY_PROCESSORS:
            await asyncio.wait([beside], timeout=MAX_WAIT_BESIDE_S)
            if not beside.done():
                self._report.notes.append("timed while executors still looked at other sizes: launches may have waited")

    async def _run_cases(self) -> GpuFailure | None:
        """Run the ready cases in random order, so that a case cannot be recognised by its position. Copies are judged
        while the device continues, and the next case is requested before the last answer is read."""
        draw = random.Random(_seed_of(self._job))
        ready, coming = list(self._job.cases), set(self._job.coming)
        running = deque[asyncio.Task[Crashed | TimedOut | Unsupported | None]]()
        failure: GpuFailure | None = None
        try:
            while failure is None and not self._job.is_in_vain and (ready or coming or running):
                must_wait = not ready or len(running) >= N_CASES_ASKED
                ended = [*list(running)[:1], *(judging.task for judging in self._judging[:1])]
                ready += await _made(coming, ended, must_wait=must_wait)
                failure = await self._ended(running)
                if ready and failure is None and len(running) < N_CASES_ASKED:
                    case = ready.pop(draw.randrange(len(ready)))
                    running.append(asyncio.create_task(self._run_case(case)))
        except asyncio.CancelledError:
            for task in running:
                task.cancel()
            raise
        finally:
            # Await what is under way unless cancelled: the worker would be lost with it.
            await asyncio.gather(*running, return_exceptions=True)
        return failure

    async def _ended(self, running: deque[asyncio.Task[Crashed | TimedOut | Unsupported | None]]) -> GpuFailure | None:
        """Return the failure of a case that has ended, or of one that was judged."""
        while running and running[0].done():
            failure = running.popleft().result()
            if failure is not None:
                return failure
        return await self._judged(at_most_bytes=MAX_WAITING_BYTES)

    async def _run_case(self, case: DeviceCase) -> Crashed | TimedOut | Unsupported | None:
        launched = await self._kernel.launch(case)
        if not isinstance(launched, Launched):
            return launched
        if launched.answer["spread"] and not self._job.may_vary:
            return _race(launched, self._kernel.slot.facts.name)
        self._note_what_varied(case, launched.answer)
        self._judging.append(_Judging(asyncio.create_task(self._kernel.judge(launched)), launched.n_bytes))
        return None

    async def _judged(self, *, at_most_bytes: int) -> Mismatch | None:
        """Collect finished judgements in order. Wait until at most `at_most_bytes` are still being judged."""
        while self._judging and (self._judging[0].task.done() or self._n_waiting_bytes() > at_most_bytes):
            result = await self._judging.pop(0).task
            if isinstance(result, Mismatch):
                return result
            self._report.cases.append(result)
            self._stages.n_cases["gpu cases"] = len(self._report.cases), self._n_cases
        return None

    def _n_waiting_bytes(self) -> int:
        return sum(judging.n_bytes for judging in self._judging)

    async def _recheck(self) -> GpuFailure | None:
        """Run all cases again, then collect every judgement. No judging is left when timing begins."""
        failure = await self._run_again() if self._job.rechecks else None
        return await self._judged(at_most_bytes=0) or failure

    async def _run_again(self) -> Crashed | TimedOut | Unsupported | None:
        differing = await self._kernel.recheck(_seed_of(self._job))
        if not isinstance(differing, list):
            return differing
        if differing and not self._job.may_vary:
            return Crashed(
                message=f"on {self._kernel.slot.facts.name}: run again from a fresh module it gave other results: "
                f"{differing[0]}"
            )
        return None

    async def _time(self, offering: asyncio.Task[None]) -> GpuFailure | None:
        await offering  # a process that is preparing one operation cannot time another
        for case in self._job.timed:
            name = case.bound.name
            match await self._kernel.time(self._job.timer, self._operation(case)):
                case Timed(comparison):
                    self._report.comparisons[name] = comparison
                case NotTimed(reason):
                    self._report.notes.append(f"{name}: not timed: {reason}")
                case TimingFailure() as failure:
                    return verdict_of(failure, name, self._kernel.slot.facts.name)
        return None

    def _operation(self, case: DeviceCase) -> TimedOperation:
        fingerprints = self._fingerprints.get(case.bound.name, {})
        built = self._job.build.built
        launched = {built.symbols[launch.kernel] for launch in case.bound.launches}
        return TimedOperation(
            self._job.candidate_id,
            case.bound,
            case.case.operation,
            case.files,
            fingerprints,
            is_ranking=self._job.is_ranking,
            code=kernels_hash(built.ptx, launched) if self._job.is_ranking else "",
        )

    def _note_what_varied(self, case: DeviceCase, ran: Mapping[str, Any]) -> None:
        for name, spread in ran["spread"].items():
            key = (case.bound.name, name)
            self._spreads[key] = max(self._spreads.get(key, 0.0), spread["relative_l2"])
        if case in self._job.timed:
            self._fingerprints[case.bound.name] = ran["fingerprints"]
            self._scratch_bytes[case.bound.name] = ran["scratch_bytes"]

    def _notes(self) -> list[str]:
        notes = [
            f"{operation}: '{output}' differs from run to run by up to {spread:.1e} (relative L2), within tolerance: "
            "atomics or a library add in no fixed order"
            for (operation, output), spread in sorted(self._spreads.items())
        ]
        return notes + [_memory_note(case, self._scratch_bytes[case.bound.name]) for case in self._job.timed]


async def _made(
    coming: set[asyncio.Task[DeviceCase | None]], others: Iterable[asyncio.Task[Any]], *, must_wait: bool
) -> list[DeviceCase]:
    """Return the cases that are ready now and remove them from `coming`. With `must_wait`, wait until one is ready or
    one of the others has ended."""
    waited: set[asyncio.Task[Any]] = {*coming, *others}
    if not waited:
        return []
    done, _ = await asyncio.wait(waited, timeout=None if must_wait else 0.0, return_when=asyncio.FIRST_COMPLETED)
    made = coming & done
    coming -= made
    return [case for task in made if (case := task.result()) is not None]


def _race(launched: Launched, gpu: str) -> Crashed:
    """Return the failure of a kernel without atomics whose two runs differ."""
    name, spread = next(iter(launched.answer["spread"].items()))
    given = launched.given
    return Crashed(
        message=f"on {gpu} two runs of {given.bound.name} on the same inputs ('{given.case.family}') differ in "
        f"'{name}' by {spread['relative_l2']:.1e} (relative L2), and it has no atomics: a race, or memory that "
        "nobody wrote"
    )


def _memory_note(case: DeviceCase, scratch_bytes: int) -> str:
    """Describe the peak memory beyond the inputs, against PyTorch's own where that was measured."""
    output_bytes = sum(tensor.n_bytes for tensor in case.bound.outputs)
    ours = f"{case.bound.name}: {_mib(output_bytes + scratch_bytes)} of device memory at its peak beside the inputs"
    return f"{ours}, eager PyTorch {_mib(case.files.eager_bytes)}" if case.files.eager_bytes else ours


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.4g} MiB"


def _seed_of(job: GpuJob) -> int:
    return zlib.crc32(f"{job.seed}/{job.candidate_id}".encode())
