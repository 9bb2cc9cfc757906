"""Run one candidate in one worker of a GPU: load, run on every case, judge from copies, run again, time.

The worker reports what only the device can detect (guards, inputs, a second run). Values are compared here.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import time
import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernel_lsp.core.measurement import Comparison
from kernel_lsp.core.plan import BoundLaunch, BoundTensor
from kernel_lsp.core.verdict import CaseResult, Crashed, Mismatch
from kernel_lsp.errors import InternalError
from kernel_lsp.process.worker_client import CaseTensor
from kernel_lsp.verify.gpu.job import GpuCase, GpuFailure, GpuJob, GpuReport, Stages
from kernel_lsp.verify.gpu.slot import GpuSlot, Lost, load_request, raise_if_environment
from kernel_lsp.verify.gpu.spare_files import SpareFiles
from kernel_lsp.verify.oracle.judgement import judge_outputs
from kernel_lsp.verify.timing.outcome import NotTimed, Timed, TimedOperation, TimingFailure, verdict_of

LOAD_DEADLINE_S = 30.0
CASE_DEADLINE_S = 15.0
"""Wall-clock seconds of two runs of one case with their copies, which take milliseconds. 6 s were too few for two
correct kernels in 151 on a host that was short of processors."""
CASE_DEADLINE_S_PER_GIB = 4.0
"""Additional seconds per GiB, for cases that are slow to copy."""
RUN_DEADLINE_S, RUN_DEADLINE_S_PER_GIB = 6.0, 2.0
"""Seconds of each of the two runs, counted while the worker had a processor to watch it."""
RECHECK_DEADLINE_S = 30.0
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


@dataclass
class _Found:
    """The results of one run so far."""

    results: list[CaseResult] = field(default_factory=list)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    fingerprints: dict[str, dict[str, int]] = field(default_factory=dict)
    spreads: dict[tuple[str, str], float] = field(default_factory=dict)
    scratch_bytes: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Attempt:
    """One run of a candidate in one worker."""

    def __init__(self, slot: GpuSlot, job: GpuJob, directory: Path, stages: Stages, spare_files: SpareFiles) -> None:
        self._slot, self._job, self._directory, self._stages = slot, job, directory, stages
        self._spare_files = spare_files
        self._found = _Found()
        self._judging: list[_Judging] = []

    async def run(self) -> GpuReport | GpuFailure | Lost:
        """Load, run every case, run again from a fresh module, time, unload."""
        offering = asyncio.create_task(self._offer())
        try:
            failure = await self._stages_of_one(offering)
            await offering
        finally:
            for task in (offering, *(judging.task for judging in self._judging)):
                task.cancel()
        await self._slot.ask("unload", {"candidate": self._job.candidate_id}, deadline_s=LOAD_DEADLINE_S)
        if failure is not None:
            return failure
        if self._job.is_in_vain:
            return GpuReport((), {}, ())
        return GpuReport(tuple(self._found.results), self._found.comparisons, tuple(self._notes()))

    async def _offer(self) -> None:
        """Prepare PyTorch's side of the timing in its own process meanwhile. Nothing is timed yet."""
        started = time.monotonic()
        for case in self._job.timed:
            await self._job.timer.offer(self._operation(case))
        self._stages.add_stage("gpu baseline, beside cases", time.monotonic() - started)

    async def _stages_of_one(self, offering: asyncio.Task[None]) -> GpuFailure | Lost | None:
        steps = {
            "gpu load": self._load,
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
        if beside is not None and (os.cpu_count() or 1) < MANY_PROCESSORS:
            await asyncio.wait([beside], timeout=MAX_WAIT_BESIDE_S)
            if not beside.done() and self._job.timed:
                self._found.notes.append("timed while executors still looked at other sizes: launches may have waited")

    async def _ask(
        self, command: str, arguments: Mapping[str, Any], deadline_s: float
    ) -> dict[str, Any] | Crashed | Lost:
        """Return the answer, or the outcome of a candidate's failure. Raises EnvironmentProblem, InternalError."""
        reply = await self._slot.ask(command, {"candidate": self._job.candidate_id, **arguments}, deadline_s=deadline_s)
        if isinstance(reply, Lost):
            return reply
        raise_if_environment(reply)
        if "error" in reply:
            raise InternalError(f"the GPU's worker refused '{command}': {reply['error']['message']}")
        if reply.get("status") == "out_of_memory":
            return Crashed(message=f"it does not fit into the memory of {self._slot.facts.name}: {reply['message']}")
        if reply.get("status") in ("crashed", "refused"):
            return Crashed(message=f"on {self._slot.facts.name}: {reply['message']}")
        return reply

    async def _load(self) -> Crashed | Lost | None:
        built = self._job.built
        loaded = await self._ask("load", load_request(self._job.candidate_id, built), LOAD_DEADLINE_S)
        if not isinstance(loaded, dict):
            return loaded
        return None if loaded["loaded"] else Crashed(message=f"the GPU's driver does not load it: {loaded['log']}")

    async def _run_cases(self) -> GpuFailure | Lost | None:
        """Run the ready cases in random order, so that a case cannot be recognised by its position. Copies are judged
        while the device continues, and the next case is requested before the last answer is read."""
        draw, position = random.Random(_seed_of(self._job)), itertools.count()
        ready, coming = list(self._job.cases), set(self._job.coming)
        running = deque[asyncio.Task[Crashed | Lost | None]]()
        failure: GpuFailure | Lost | None = None
        try:
            while failure is None and not self._job.is_in_vain and (ready or coming or running):
                must_wait = not ready or len(running) >= N_CASES_ASKED
                ended = [*list(running)[:1], *(judging.task for judging in self._judging[:1])]
                ready += await _made(coming, ended, must_wait=must_wait)
                failure = await self._ended(running)
                if ready and failure is None and len(running) < N_CASES_ASKED:
                    case = ready.pop(draw.randrange(len(ready)))
                    folder = self._directory / f"case-{next(position)}"
                    running.append(asyncio.create_task(self._run_case(case, folder)))
        except asyncio.CancelledError:
            for task in running:
                task.cancel()
            raise
        finally:
            # Await what is under way unless cancelled: the worker would be lost with it.
            await asyncio.gather(*running, return_exceptions=True)
        return failure

    async def _ended(self, running: deque[asyncio.Task[Crashed | Lost | None]]) -> GpuFailure | Lost | None:
        """Return the failure of a case that has ended, or of one that was judged."""
        while running and running[0].done():
            failure = running.popleft().result()
            if failure is not None:
                return failure
        return await self._judged(at_most_bytes=MAX_WAITING_BYTES)

    async def _run_case(self, case: GpuCase, folder: Path) -> Crashed | Lost | None:
        tensors = [tensor for tensor in case.bound.tensors if tensor.role == "output"]
        outputs = [tensor.name for tensor in tensors]
        for tensor in tensors:
            self._spare_files.place(folder / f"{tensor.name}.bin", tensor.n_bytes)
        request = {
            **_operation_request(case),
            "case": f"{case.bound.name} {case.case.family} {dict(case.case.sizes)} {case.case.seed}",
            "outputs": {name: str(folder / f"{name}.bin") for name in outputs},
            "again": {name: str(folder / f"{name}.again.bin") for name in outputs},
        }
        n_gib = sum(tensor.n_bytes for tensor in case.bound.tensors) / (1 << 30)
        request["run_deadline_s"] = RUN_DEADLINE_S + RUN_DEADLINE_S_PER_GIB * n_gib
        ran = await self._ask("check", request, CASE_DEADLINE_S + CASE_DEADLINE_S_PER_GIB * n_gib)
        if not isinstance(ran, dict):
            return ran
        for name, elapsed_s in ran["stages_s"].items():
            self._stages.add_stage(f"gpu cases: {name}", elapsed_s)
        failure = _misbehaviour(ran, self._slot.facts.name, self._job.may_vary, case)
        if failure is not None:
            return failure
        self._note_what_varied(case, ran)
        copies = [{name: folder / f"{name}.bin" for name in outputs}]
        if ran["spread"]:
            second = {name: folder / f"{name}.again.bin" for name in ran["spread"]}
            copies.append({**copies[0], **second})
        n_copied = sum(tensor.n_bytes for tensor in tensors) * len(copies)
        self._judging.append(_Judging(asyncio.create_task(self._judge(case, copies, folder)), max(1, n_copied)))
        return None

    async def _judge(self, case: GpuCase, copies: Sequence[Mapping[str, Path]], folder: Path) -> CaseResult | Mismatch:
        started = time.monotonic()
        try:
            return await asyncio.to_thread(self._judge_and_remove, case, copies, folder)
        finally:
            self._stages.add_stage("judging, beside cases", time.monotonic() - started)

    def _judge_and_remove(
        self, case: GpuCase, copies: Sequence[Mapping[str, Path]], folder: Path
    ) -> CaseResult | Mismatch:
        """Judge each of the `copies` up to the first failure, then remove their files. Runs in a thread, since freeing
        the pages of large files takes a while, too."""
        try:
            for paths in copies[:-1]:
                judged = _judge_copies(case, paths, self._slot.facts.name)
                if isinstance(judged, Mismatch):
                    return judged
            return _judge_copies(case, copies[-1], self._slot.facts.name)
        finally:
            with suppress(OSError):  # the folder was removed with its run
                self._spare_files.keep(folder)
            shutil.rmtree(folder, ignore_errors=True)

    async def _judged(self, *, at_most_bytes: int) -> Mismatch | None:
        """Collect finished judgements in order. Wait until at most `at_most_bytes` are still being judged."""
        while self._judging and (self._judging[0].task.done() or self._n_waiting_bytes() > at_most_bytes):
            result = await self._judging.pop(0).task
            if isinstance(result, Mismatch):
                return result
            self._found.results.append(result)
        return None

    def _n_waiting_bytes(self) -> int:
        return sum(judging.n_bytes for judging in self._judging)

    async def _recheck(self) -> GpuFailure | Lost | None:
        """Run all cases again, then collect every judgement. No judging is left when timing begins."""
        failure = await self._run_again() if self._job.rechecks else None
        return await self._judged(at_most_bytes=0) or failure

    async def _run_again(self) -> Crashed | Lost | None:
        request = {"seed": _seed_of(self._job), "run_deadline_s": RUN_DEADLINE_S + RUN_DEADLINE_S_PER_GIB}
        again = await self._ask("recheck", request, RECHECK_DEADLINE_S)
        if not isinstance(again, dict):
            return again
        if again["differs"] and not self._job.may_vary:
            return Crashed(
                message=f"on {self._slot.facts.name}: run again from a fresh module it gave other results: "
                f"{again['differs'][0]}"
            )
        return None

    # --- below: time, and what is worth a note

    async def _time(self, offering: asyncio.Task[None]) -> GpuFailure | Lost | None:
        await offering  # a process that is preparing one operation cannot time another
        for case in self._job.timed:
            name = case.bound.name
            match await self._job.timer.time_operation(self._slot, self._operation(case)):
                case Timed(comparison):
                    self._found.comparisons[name] = comparison
                case NotTimed(reason):
                    self._found.notes.append(f"{name}: not timed: {reason}")
                case TimingFailure() as failure:
                    return verdict_of(failure, name, self._slot.facts.name)
        return None

    def _operation(self, case: GpuCase) -> TimedOperation:
        fingerprints = self._found.fingerprints.get(case.bound.name, {})
        return TimedOperation(
            self._job.candidate_id,
            case.bound,
            case.case.operation,
            case.files,
            fingerprints,
            is_ranking=self._job.is_ranking,
        )

    def _note_what_varied(self, case: GpuCase, ran: Mapping[str, Any]) -> None:
        for name, spread in ran["spread"].items():
            key = (case.bound.name, name)
            self._found.spreads[key] = max(self._found.spreads.get(key, 0.0), spread["relative_l2"])
        if case in self._job.timed:
            self._found.fingerprints[case.bound.name] = ran["fingerprints"]
            self._found.scratch_bytes[case.bound.name] = ran["scratch_bytes"]

    def _notes(self) -> list[str]:
        notes = self._found.notes + [
            f"{operation}: '{output}' differs from run to run by up to {spread:.1e} (relative L2), within tolerance: "
            "atomics or a library add in no fixed order"
            for (operation, output), spread in sorted(self._found.spreads.items())
        ]
        return notes + [_memory_note(case, self._found.scratch_bytes[case.bound.name]) for case in self._job.timed]


# --- below: requests and answers


async def _made(
    coming: set[asyncio.Task[GpuCase | None]], others: Iterable[asyncio.Task[Any]], *, must_wait: bool
) -> list[GpuCase]:
    """Return the cases that are ready now and remove them from `coming`. With `must_wait`, wait until one is ready or
    one of the others has ended."""
    waited: set[asyncio.Task[Any]] = {*coming, *others}
    if not waited:
        return []
    done, _ = await asyncio.wait(waited, timeout=None if must_wait else 0.0, return_when=asyncio.FIRST_COMPLETED)
    made = coming & done
    coming -= made
    return [case for task in made if (case := task.result()) is not None]


def _operation_request(case: GpuCase) -> dict[str, Any]:
    return {
        "operation": case.bound.model_dump(mode="json"),
        "inputs": [_entry(tensor) for tensor in case.files.inputs],
        "offsets": {tensor.name: case.case.device_offset_of(tensor.name) for tensor in case.files.inputs},
    }


def _entry(tensor: CaseTensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "path": str(tensor.path),
        "dtype": tensor.dtype.value,
        "shape": list(tensor.shape),
    }


def _misbehaviour(ran: Mapping[str, Any], gpu: str, may_vary: bool, case: GpuCase) -> Crashed | None:
    """Return the failure of a run that breaks a rule for kernels, independent of its values."""
    if ran["changed_inputs"]:
        return Crashed(message=f"on {gpu} it changed its inputs: {', '.join(ran['changed_inputs'])}")
    if ran["overrun"]:
        return Crashed(message=f"on {gpu} it wrote outside of: {', '.join(ran['overrun'])}")
    if ran["spread"] and not may_vary:
        name, spread = next(iter(ran["spread"].items()))
        return Crashed(
            message=f"on {gpu} two runs of {case.bound.name} on the same inputs ('{case.case.family}') differ in "
            f"'{name}' by {spread['relative_l2']:.1e} (relative L2), and it has no atomics: a race, or memory that "
            "nobody wrote"
        )
    return None


def _memory_note(case: GpuCase, scratch_bytes: int) -> str:
    """Describe the peak memory beyond the inputs, against PyTorch's own where that was measured."""
    output_bytes = sum(tensor.n_bytes for tensor in case.bound.tensors if tensor.role == "output")
    ours = f"{case.bound.name}: {_mib(output_bytes + scratch_bytes)} of device memory at its peak beside the inputs"
    return f"{ours}, eager PyTorch {_mib(case.files.eager_bytes)}" if case.files.eager_bytes else ours


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.4g} MiB"


def _judge_copies(case: GpuCase, paths: Mapping[str, Path], gpu: str) -> CaseResult | Mismatch:
    outputs: list[BoundTensor] = [tensor for tensor in case.bound.tensors if tensor.role == "output"]
    n_blocks = sum(step.n_blocks for step in case.bound.steps if isinstance(step, BoundLaunch))
    return judge_outputs(
        case.case.operation,
        CaseResult(
            device=gpu,
            operation=case.bound.name,
            family=replace(case.case, family=case.files.family).kind,
            shapes={tensor.name: tensor.shape for tensor in case.bound.tensors if tensor.role == "input"},
            n_blocks=n_blocks,
            n_blocks_run=n_blocks,
            errors=(),
        ),
        [(tensor, paths[tensor.name]) for tensor in outputs],
        case.expectations,
    )


def _seed_of(job: GpuJob) -> int:
    return zlib.crc32(f"{job.seed}/{job.candidate_id}".encode())
