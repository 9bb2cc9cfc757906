"""Judging runs beside the device, and never beside timing: what it finds comes first, and it leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernel_lsp.core.verdict import CaseResult, CheckOutcome, Crashed, Mismatch, TimedOut
from kernel_lsp.errors import TargetError
from kernel_lsp.verify.devices.device import DeviceCase
from kernel_lsp.verify.gpu import candidate_run as gpu_attempt
from kernel_lsp.verify.gpu import gpu_kernel
from kernel_lsp.verify.gpu.gpu_device import GpuDevice
from kernel_lsp.verify.gpu.gpu_kernel import GpuFailure, GpuJob, GpuReport
from kernel_lsp.verify.model.cases import StageTimes
from kernel_lsp.verify.timing.result import NotTimed, TimedOperation
from kernel_lsp.verify.timing.rounds import Asker

from .harness import LARGE, SMALL, NoClock, build, case, gpu, run

SLOW_S = 0.3
"""Duration of one judgement: longer than all the fake device has to do."""


class Log(NoClock):
    """Actions, in order."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    async def time_operation(self, worker: Asker, operation: TimedOperation) -> NotTimed:
        self.entries.append("timed")
        return await super().time_operation(worker, operation)

    def judged(self) -> None:
        self.entries.append("judged")


async def evaluated(device: GpuDevice, folder: Path, name: str, clock: Log) -> GpuReport | GpuFailure:
    cases = [case(folder, name, n) for n in (SMALL, LARGE)]
    job = GpuJob(build(name), cases, cases[1:], clock, may_vary=False, rechecks=True, seed=0)
    return await device.evaluate(job, StageTimes())


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """Every judgement takes a while, and is kept in it."""
    clock, judge = Log(), gpu_kernel._judge_copies

    def slowly(case: DeviceCase, paths: Mapping[str, Path], device: str) -> CaseResult | Mismatch:
        time.sleep(SLOW_S)
        clock.judged()
        return judge(case, paths, device)

    monkeypatch.setattr(gpu_kernel, "_judge_copies", slowly)
    return clock


async def test_timing_begins_when_everything_is_judged(tmp_path: Path, log: Log) -> None:
    async with gpu(tmp_path) as device:
        assert isinstance(await evaluated(device, tmp_path, "affine", log), GpuReport)
    assert log.entries == ["judged", "judged", "timed"]


async def test_timing_begins_when_pytorch_is_ready_for_all_that_is_timed(tmp_path: Path) -> None:
    """A forward pass came before its gradient was ready, and had no time."""
    entries: list[str] = []

    class Clock(NoClock):
        async def offer(self, operation: TimedOperation) -> None:
            await asyncio.sleep(SLOW_S)
            entries.append("offered")

        async def time_operation(self, worker: Asker, operation: TimedOperation) -> NotTimed:
            entries.append("timed")
            return NotTimed("no clock here")

    cases = [case(tmp_path, "affine", n) for n in (SMALL, LARGE)]
    job = GpuJob(build("affine"), cases, cases, Clock(), may_vary=False, rechecks=False, seed=0)
    async with gpu(tmp_path) as device:
        assert isinstance(await device.evaluate(job, StageTimes()), GpuReport)
    assert entries == ["offered", "offered", "timed", "timed"]


def test_every_result_that_a_tensor_holds_is_compared(tmp_path: Path) -> None:
    given = case(tmp_path, "affine", SMALL)
    right = given.expectations[0]
    wrong = replace(right, reference=right.reference + 1.0)
    right.reference.astype(np.float32).tofile(tmp_path / "out.bin")
    for holder, expected, outcome in (("out", right, CaseResult), ("out", wrong, Mismatch), ("x", right, Mismatch)):
        bound = given.bound.model_copy(update={"returns": {"out": "out", "again": holder}})
        both = replace(given, bound=bound, expectations=(right, expected))
        assert isinstance(gpu_kernel._judge_copies(both, {"out": tmp_path / "out.bin"}, "a GPU"), outcome)


async def looked_at(after: asyncio.Event | None, failure: CheckOutcome | None) -> CheckOutcome | None:
    if after is not None:
        await after.wait()
    return failure


def job_beside(name: str, cases: list[DeviceCase], clock: Log, beside: asyncio.Task[CheckOutcome | None]) -> GpuJob:
    return GpuJob(build(name), cases, cases, clock, may_vary=False, rechecks=True, seed=0, beside=beside)


@pytest.mark.parametrize(("failure", "entries"), [(None, ["timed"]), (Crashed(message="a race"), [])])
async def test_timing_waits_for_what_executors_look_at_beside_where_processors_are_few(
    tmp_path: Path, failure: CheckOutcome | None, entries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that what they find wrong is not timed then."""
    monkeypatch.setattr(gpu_attempt, "MANY_PROCESSORS", 1 << 20)
    clock, everything_ran, again = Log(), asyncio.Event(), gpu_attempt.Attempt._run_again

    async def runs_again(self: gpu_attempt.Attempt) -> Crashed | TimedOut | None:
        asyncio.get_running_loop().call_later(0.1, everything_ran.set)
        return await again(self)

    monkeypatch.setattr(gpu_attempt.Attempt, "_run_again", runs_again)
    cases = [case(tmp_path, "affine", SMALL)]
    beside = asyncio.create_task(looked_at(everything_ran, failure))
    job = job_beside("affine", cases, clock, beside)
    async with gpu(tmp_path) as device:
        await device.evaluate(job, StageTimes())
    assert beside.done()
    assert clock.entries == entries


async def test_what_failed_beside_before_its_turn_does_not_run(tmp_path: Path) -> None:
    beside = asyncio.create_task(looked_at(None, Crashed(message="a race")))
    await beside
    cases = [case(tmp_path, "wrong_value", SMALL)]
    clock = Log()
    job = job_beside("wrong_value", cases, clock, beside)
    async with gpu(tmp_path) as device:
        assert isinstance(await device.evaluate(job, StageTimes()), GpuReport)
    assert clock.entries == []


async def test_many_processors_are_enough_for_executors_and_timing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_attempt, "MANY_PROCESSORS", 1)
    clock, cases = Log(), [case(tmp_path, "affine", SMALL)]
    beside = asyncio.create_task(looked_at(asyncio.Event(), None))
    job = job_beside("affine", cases, clock, beside)
    async with gpu(tmp_path) as device:
        assert isinstance(await device.evaluate(job, StageTimes()), GpuReport)
    assert clock.entries == ["timed"]
    assert not beside.done()
    beside.cancel()


async def test_executors_that_are_never_done_do_not_keep_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_attempt, "MANY_PROCESSORS", 1 << 20)
    monkeypatch.setattr(gpu_attempt, "MAX_WAIT_BESIDE_S", 0.1)
    clock, cases = Log(), [case(tmp_path, "affine", SMALL)]
    beside = asyncio.create_task(looked_at(asyncio.Event(), None))
    job = job_beside("affine", cases, clock, beside)
    async with gpu(tmp_path) as device:
        assert isinstance(await device.evaluate(job, StageTimes()), GpuReport)
    assert clock.entries == ["timed"]
    beside.cancel()


async def test_what_is_wrong_is_never_timed_however_late_that_is_known(tmp_path: Path, log: Log) -> None:
    async with gpu(tmp_path) as device:
        assert isinstance(await evaluated(device, tmp_path, "wrong_value", log), Mismatch)
    assert "timed" not in log.entries


async def test_a_wrong_value_is_told_before_what_a_second_run_did(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def differs(_: gpu_attempt.Attempt) -> Crashed:
        return Crashed(message="run again it gave other results")

    monkeypatch.setattr(gpu_attempt.Attempt, "_run_again", differs)
    async with gpu(tmp_path) as device:
        assert isinstance(await evaluated(device, tmp_path, "wrong_value", log), Mismatch)
        assert isinstance(await evaluated(device, tmp_path, "affine", log), Crashed)


async def test_a_cancelled_judgement_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, let_go, judge = threading.Event(), threading.Event(), gpu_kernel._judge_copies

    def waits(case: DeviceCase, paths: Mapping[str, Path], device: str) -> CaseResult | Mismatch:
        begun.set()
        let_go.wait(20)
        return judge(case, paths, device)

    monkeypatch.setattr(gpu_kernel, "_judge_copies", waits)
    async with gpu(tmp_path) as device:
        running = asyncio.create_task(run(device, tmp_path, "affine"))
        assert await asyncio.to_thread(begun.wait, 20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        let_go.set()
        monkeypatch.undo()
        assert isinstance(await run(device, tmp_path, "affine"), GpuReport)
    assert not list((tmp_path / "gpu").rglob("out*.bin"))


async def test_no_copy_is_left_of_what_was_judged(tmp_path: Path) -> None:
    async with gpu(tmp_path) as device:
        await run(device, tmp_path, "affine")
        await run(device, tmp_path, "varying", may_vary=True)
        assert not [path for path in (tmp_path / "gpu").rglob("*") if path.is_file()]


def job_of(name: str, ready: list[DeviceCase], coming: list[asyncio.Task[DeviceCase | None]]) -> GpuJob:
    return GpuJob(build(name), ready, (), NoClock(), may_vary=False, rechecks=False, seed=0, coming=coming)


async def made_after(event: asyncio.Event, made: DeviceCase | None) -> DeviceCase | None:
    await event.wait()
    return made


async def test_a_case_that_is_still_being_made_runs_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones run meanwhile."""
    small, large = (case(tmp_path, "affine", n) for n in (SMALL, LARGE))
    first_ran, run_case = asyncio.Event(), gpu_attempt.Attempt._run_case

    async def runs(self: gpu_attempt.Attempt, each: DeviceCase) -> Crashed | TimedOut | None:
        first_ran.set()
        return await run_case(self, each)

    monkeypatch.setattr(gpu_attempt.Attempt, "_run_case", runs)
    coming = [asyncio.create_task(made_after(first_ran, each)) for each in (large, None)]
    async with gpu(tmp_path) as device:
        report = await device.evaluate(job_of("affine", [small], coming), StageTimes())
    assert isinstance(report, GpuReport)
    assert len(report.cases) == 2


async def test_a_case_that_comes_later_is_judged_like_any_other(tmp_path: Path) -> None:
    at_once = asyncio.Event()
    at_once.set()
    coming = [asyncio.create_task(made_after(at_once, case(tmp_path, "wrong_value", LARGE)))]
    async with gpu(tmp_path) as device:
        assert isinstance(await device.evaluate(job_of("wrong_value", [], coming), StageTimes()), Mismatch)


async def test_what_cannot_be_made_for_want_of_a_worker_is_raised_and_the_next_candidate_is_judged(
    tmp_path: Path,
) -> None:
    async def fails() -> DeviceCase | None:
        raise TargetError("the worker died")

    async with gpu(tmp_path) as device:
        with pytest.raises(TargetError, match="the worker died"):
            await device.evaluate(job_of("affine", [], [asyncio.create_task(fails())]), StageTimes())
        assert isinstance(await run(device, tmp_path, "affine"), GpuReport)


async def test_copies_that_wait_to_be_judged_are_no_more_than_so_many_bytes(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_attempt, "MAX_WAITING_BYTES", 0)
    most, run_case = [0], gpu_attempt.Attempt._run_case

    async def runs(self: gpu_attempt.Attempt, each: DeviceCase) -> Crashed | TimedOut | None:
        most.append(len(self._judging))
        return await run_case(self, each)

    monkeypatch.setattr(gpu_attempt.Attempt, "_run_case", runs)
    async with gpu(tmp_path) as device:
        assert isinstance(await evaluated(device, tmp_path, "affine", log), GpuReport)
    assert max(most) == 0
