"""A candidate in a worker of a GPU, as a job with a report: load it, run and judge its cases, run them again, time
them, unload it.

The worker reports what only the device can detect (guards, inputs, a second run). Values are compared here.

Reuse the files of judged outputs for the next outputs. New pages of a file in memory cost more than writing them (64
million floats took 0.20 s into a new file and 0.08 s over an old one, two cores).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernel_lsp.core.measurement import Comparison
from kernel_lsp.core.plan import BoundTensor
from kernel_lsp.core.verdict import CaseResult, CheckOutcome, Crashed, Mismatch, TimedOut, Unsupported
from kernel_lsp.errors import InternalError
from kernel_lsp.verify.devices.device import CaseRun, DeviceCase, KernelBuild, Timer
from kernel_lsp.verify.gpu.slot import GpuSlot, Lost, load_request, raise_if_environment
from kernel_lsp.verify.model.cases import StageTimes, unjudged
from kernel_lsp.verify.oracle.judgement import judge_outputs
from kernel_lsp.verify.timing.result import TimedOperation, TimingOutcome


@dataclass(frozen=True)
class GpuJob:
    """Everything that the device needs of a candidate.

    `cases` are ready; `coming` are being made, None where PyTorch cannot run one. `timed` are the cases to time.
    `may_vary`: two runs may differ in their last bits, through atomics or a library. `rechecks` runs all cases again
    from a fresh module. `beside` are concurrent executor checks: their failure ends the job before its next case, and
    timing waits for them, but not indefinitely. `is_ranking` is as `TimedOperation`'s.
    """

    build: KernelBuild
    cases: Sequence[DeviceCase]
    timed: Sequence[DeviceCase]
    timer: Timer
    may_vary: bool
    rechecks: bool
    seed: int
    coming: Sequence[asyncio.Task[DeviceCase | None]] = ()
    beside: asyncio.Task[CheckOutcome | None] | None = None
    is_ranking: bool = False

    @property
    def candidate_id(self) -> str:
        return self.build.candidate_id

    @property
    def is_in_vain(self) -> bool:
        """Check whether the job has already failed on the executors."""
        return has_failed(self.beside)


@dataclass
class GpuReport:
    """The cases in which a candidate is correct on the GPU, and its times by operation."""

    cases: list[CaseResult] = field(default_factory=list)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def has_failed(looking: asyncio.Task[CheckOutcome | None] | None) -> bool:
    """Check whether the concurrent executor checks are known to have failed."""
    if looking is None or not looking.done():
        return False
    return looking.cancelled() or looking.exception() is not None or looking.result() is not None


GpuFailure = Crashed | Mismatch | TimedOut | Unsupported


LEAST_BYTES = 4 << 20
"""Minimum bytes of a file that is worth keeping."""
MAX_BYTES = 1 << 30
"""Maximum bytes of all spare files together."""


class SpareFiles:
    """Spare files in one folder that the writers have access to. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sizes: dict[Path, int] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def place(self, path: Path, n_bytes: int) -> None:
        """Move the spare file of the nearest size to this path, if `n_bytes` are enough to be worth it."""
        with self._lock:
            if n_bytes < LEAST_BYTES or not self._sizes:
                return
            spare = min(self._sizes, key=lambda each: abs(self._sizes[each] - n_bytes))
            del self._sizes[spare]
        with suppress(OSError):  # otherwise a new file is written there
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(spare, path)

    def keep(self, folder: Path) -> None:
        """Take the large files of a folder, as far as there is room for them. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            n_bytes, spare = path.stat().st_size, self._directory / f"{next(self._numbers)}.bin"
            with self._lock:
                if LEAST_BYTES <= n_bytes <= MAX_BYTES - sum(self._sizes.values()):
                    os.replace(path, spare)
                    self._sizes[spare] = n_bytes


LOAD_DEADLINE_S = 30.0
CASE_DEADLINE_S = 15.0
"""Wall-clock seconds of two runs of one case with their copies, which take milliseconds. 6 s were too few for two
correct kernels in 151 on a host that was short of processors."""
CASE_DEADLINE_S_PER_GIB = 4.0
"""Additional seconds per GiB, for cases that are slow to copy."""
RUN_DEADLINE_S, RUN_DEADLINE_S_PER_GIB = 6.0, 2.0
"""Seconds of each of the two runs, counted while the worker had a processor to watch it."""
RECHECK_DEADLINE_S = 30.0
LEAST_BYTES_OF_OTHERS = 4 << 30
"""Bytes that other processes, and the context of the worker itself, occupy at least where too little memory is the
others' fault."""


@dataclass(frozen=True)
class Launched:
    """A case that ran on the GPU, with copies of its outputs in `folder`: of the first run, and of the second where it
    differed. `answer` is the worker's."""

    given: DeviceCase
    folder: Path
    copies: Sequence[Mapping[str, Path]]
    answer: Mapping[str, Any] = field(repr=False)

    @property
    def n_bytes(self) -> int:
        """Return the bytes of the copies, at least one."""
        outputs = self.given.bound.outputs
        return max(1, sum(_n_copied(self.given, tensor) for tensor in outputs) * len(self.copies))


class GpuKernel:
    """A candidate that the worker of a slot has loaded."""

    def __init__(
        self, slot: GpuSlot, build: KernelBuild, directory: Path, stages: StageTimes, spare_files: SpareFiles
    ) -> None:
        """`directory` is for the copies of outputs."""
        self.slot, self.build, self._directory, self._stages = slot, build, directory, stages
        self._spare_files, self._numbers = spare_files, itertools.count()
        self.lacked_memory = False
        """A case found too little memory, since other processes occupy it: it may fit later."""

    @property
    def is_alive(self) -> bool:
        """Check whether its worker can run another case."""
        return self.slot.is_healthy

    async def run(self, case: DeviceCase) -> CaseRun | GpuFailure:
        """Run one case twice, in other buffers over other poison, and judge both results."""
        launched = await self.launch(case)
        if not isinstance(launched, Launched):
            return launched
        judged = await self.judge(launched)
        return judged if isinstance(judged, Mismatch) else CaseRun(judged)

    async def time(self, timer: Timer, operation: TimedOperation) -> TimingOutcome:
        """Time an operation in turn with PyTorch."""
        return await timer.time_operation(self.slot, operation)

    async def load(self) -> Crashed | TimedOut | Unsupported | None:
        """Load its code. None when that succeeded."""
        loaded = await self._ask("load", load_request(self.build.candidate_id, self.build.built), LOAD_DEADLINE_S)
        if not isinstance(loaded, dict):
            return loaded
        return None if loaded["loaded"] else Crashed(message=f"the GPU's driver does not load it: {loaded['log']}")

    async def unload(self) -> None:
        """Free its code and buffers."""
        await self.slot.ask("unload", {"candidate": self.build.candidate_id}, deadline_s=LOAD_DEADLINE_S)

    async def launch(self, given: DeviceCase) -> Launched | Crashed | TimedOut | Unsupported:
        """Run one case, and have its outputs copied. The caller removes them by `judge`."""
        folder = self._directory / f"case-{next(self._numbers)}"
        tensors = given.bound.outputs
        outputs = [tensor.name for tensor in tensors]
        for tensor in tensors:
            self._spare_files.place(folder / f"{tensor.name}.bin", _n_copied(given, tensor))
        request = {
            **_operation_request(given),
            "case": f"{given.bound.name} {given.case.family} {dict(given.case.sizes)} {given.case.seed}",
            "outputs": {name: str(folder / f"{name}.bin") for name in outputs},
            "again": {name: str(folder / f"{name}.again.bin") for name in outputs},
            "slices": _slices_by_holder(given),
        }
        n_gib = sum(tensor.n_bytes for tensor in given.bound.tensors) / (1 << 30)
        request["run_deadline_s"] = RUN_DEADLINE_S + RUN_DEADLINE_S_PER_GIB * n_gib
        deadline_s = CASE_DEADLINE_S + CASE_DEADLINE_S_PER_GIB * n_gib
        ran = await self._ask(
            "check", request, deadline_s, n_bytes=2 * sum(tensor.n_bytes for tensor in given.bound.tensors)
        )
        if not isinstance(ran, dict):
            return ran
        for name, elapsed_s in ran["stages_s"].items():
            self._stages.add_stage(f"gpu cases: {name}", elapsed_s)
        failure = _misbehaviour(ran, self.slot.facts.name)
        if failure is not None:
            return failure
        copies = [{name: folder / f"{name}.bin" for name in outputs}]
        if ran["spread"]:
            second = {name: folder / f"{name}.again.bin" for name in ran["spread"]}
            copies.append({**copies[0], **second})
        return Launched(given, folder, copies, ran)

    async def judge(self, launched: Launched) -> CaseResult | Mismatch:
        """Judge each of the copies up to the first failure, then remove their files."""
        started = time.monotonic()
        try:
            return await asyncio.to_thread(self._judge_and_remove, launched)
        finally:
            self._stages.add_stage("judging, beside cases", time.monotonic() - started)

    async def time_launches(self, given: DeviceCase) -> list[float] | Crashed | TimedOut | Unsupported:
        """Return the microseconds of each launch of a case, in order: medians of events around it, with cold caches."""
        n_bytes = sum(tensor.n_bytes for tensor in given.bound.tensors)
        deadline_s = CASE_DEADLINE_S + CASE_DEADLINE_S_PER_GIB * n_bytes / (1 << 30)
        timed = await self._ask("time_launches", _operation_request(given), deadline_s, n_bytes=n_bytes)
        return list(timed["launches_us"]) if isinstance(timed, dict) else timed

    async def recheck(self, seed: int) -> list[str] | Crashed | TimedOut | Unsupported:
        """Run all cases that gave the same bytes twice again, from a module loaded anew. Return those that differ."""
        request = {"seed": seed, "run_deadline_s": RUN_DEADLINE_S + RUN_DEADLINE_S_PER_GIB}
        again = await self._ask("recheck", request, RECHECK_DEADLINE_S)
        return list(again["differs"]) if isinstance(again, dict) else again

    async def _ask(
        self, command: str, arguments: Mapping[str, Any], deadline_s: float, *, n_bytes: int = 0
    ) -> dict[str, Any] | Crashed | TimedOut | Unsupported:
        """Return the answer, or the outcome of a candidate's failure, whose buffers take `n_bytes` bytes. Raises
        EnvironmentProblem, InternalError."""
        asked = {"candidate": self.build.candidate_id, **arguments}
        reply = await self.slot.ask(command, asked, deadline_s=deadline_s)
        if isinstance(reply, Lost):
            return as_outcome(reply)
        raise_if_environment(reply)
        if "error" in reply:
            raise InternalError(f"the GPU's worker refused '{command}': {reply['error']['message']}")
        if reply.get("status") == "out_of_memory":
            return self._too_large(reply, n_bytes)
        if reply.get("status") in ("crashed", "refused"):
            return Crashed(message=f"on {self.slot.facts.name}: {reply['message']}")
        return reply

    def _too_large(self, reply: Mapping[str, Any], n_bytes: int) -> Crashed | Unsupported:
        """Return the outcome of too little memory, which others occupy or the candidate alone lacks."""
        name, others, total = self.slot.facts.name, reply["others_bytes"], reply["total_bytes"]
        self.lacked_memory = others >= LEAST_BYTES_OF_OTHERS and n_bytes < total
        if not self.lacked_memory:
            return Crashed(message=f"it does not fit into the memory of {name}: {reply['message']}")
        held = f"other processes hold {others / (1 << 30):.1f} of {total / (1 << 30):.1f} GiB"
        return Unsupported(message=f"too little memory is free on {name}: {held}. Check it again without them")

    def _judge_and_remove(self, launched: Launched) -> CaseResult | Mismatch:
        """Runs in a thread, since freeing the pages of large files takes a while, too."""
        try:
            for paths in launched.copies[:-1]:
                judged = _judge_copies(launched.given, paths, self.slot.facts.name)
                if isinstance(judged, Mismatch):
                    return judged
            return _judge_copies(launched.given, launched.copies[-1], self.slot.facts.name)
        finally:
            with suppress(OSError):  # the folder was removed with its run
                self._spare_files.keep(launched.folder)
            shutil.rmtree(launched.folder, ignore_errors=True)


def as_outcome(lost: Lost) -> Crashed | TimedOut:
    """Return the outcome of a candidate whose worker was lost."""
    if lost.deadline_s:
        return TimedOut(message=f"on the GPU: {lost.message}", deadline_s=lost.deadline_s)
    return Crashed(message=f"on the GPU: {lost.message}")


def _operation_request(case: DeviceCase) -> dict[str, Any]:
    return {
        "operation": case.bound.model_dump(mode="json"),
        "inputs": [tensor.entry for tensor in case.files.inputs],
        "offsets": {tensor.name: case.case.device_offset_of(tensor.name) for tensor in case.files.inputs},
    }


def _slices_by_holder(case: DeviceCase) -> dict[str, dict[str, Any]]:
    """Return the dim and ranges to copy of each output, by its tensor in the plan; empty where all of it is copied."""
    slices = case.files.slices
    if slices is None:
        return {}
    pairs = zip(case.bound.results, case.expectations, strict=True)
    return {
        holder.name: {"dim": slices.dims[expectation.output], "ranges": list(slices.ranges)}
        for (_, holder), expectation in pairs
        if holder.role == "output"
    }


def _n_copied(case: DeviceCase, tensor: BoundTensor) -> int:
    """Return the bytes that are copied of an output."""
    sliced = _slices_by_holder(case).get(tensor.name)
    if sliced is None:
        return tensor.n_bytes
    n_slices = sum(end - start for start, end in sliced["ranges"])
    return tensor.n_bytes // max(tensor.shape[sliced["dim"]], 1) * n_slices


def _misbehaviour(ran: Mapping[str, Any], gpu: str) -> Crashed | None:
    """Return the failure of a run that breaks a rule for kernels, independent of its values."""
    for name, n in ran["unwritten"].items():
        return Crashed(message=f"on {gpu} it never writes {n} elements of '{name}'")
    if ran["changed_inputs"]:
        return Crashed(message=f"on {gpu} it changed its inputs: {', '.join(ran['changed_inputs'])}")
    if ran["overrun"]:
        return Crashed(message=f"on {gpu} it wrote outside of: {', '.join(ran['overrun'])}")
    return None


def _judge_copies(case: DeviceCase, paths: Mapping[str, Path], gpu: str) -> CaseResult | Mismatch:
    given = {tensor.name: tensor.path for tensor in case.files.inputs}
    n_blocks = case.bound.n_blocks
    return judge_outputs(
        case.case.operation,
        unjudged(case.bound, replace(case.case, family=case.files.family).kind, n_blocks, n_blocks, device=gpu),
        [(result, paths.get(holder.name) or given[holder.name]) for result, holder in case.bound.results],
        case.expectations,
        are_sampled=True,
    )
