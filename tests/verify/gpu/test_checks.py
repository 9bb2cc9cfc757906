"""A full verdict's cases run while PyTorch compiles, and the GPU is free for others during the rest of the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp.core.verdict import CheckOutcome, Crashed, Unsupported
from kernel_lsp.process.case_files import CaseFiles
from kernel_lsp.verify.devices.device import DeviceCase
from kernel_lsp.verify.gpu.checks import GpuChecks, MeasuringGpu, on_one_of
from kernel_lsp.verify.gpu.gpu_device import GpuDevice, Load, Turns
from kernel_lsp.verify.model.cases import Case, Progress
from kernel_lsp.verify.oracle.compare import Expectation
from kernel_lsp.verify.timing.result import NotTimed, TimedOperation
from kernel_lsp.verify.timing.rounds import Asker

from .harness import LARGE, SMALL, NoClock, build, case, gpu

WAIT_S = 60.0


class Cases:
    """A store of cases that are made."""

    def __init__(self, made: Sequence[DeviceCase]) -> None:
        self._made: Mapping[Case, DeviceCase] = {each.case: each for each in made}

    async def get(self, case: Case, *, by_workers: bool = False) -> CaseFiles:
        return self._made[case].files

    def takes_a_turn(self, case: Case) -> bool:
        return False

    def expectations(self, files: CaseFiles) -> tuple[Expectation, ...]:
        return next(each.expectations for each in self._made.values() if each.files is files)


class Compiling(NoClock):
    """PyTorch's side of the timing, whose modes are ready once somebody waited for them."""

    def __init__(self, *, is_ready: bool) -> None:
        self.is_ready, self.entries = is_ready, list[str]()
        self.device: GpuDevice

    async def has_baselines(self, operation: TimedOperation, *, at_least_s: float = 0.0) -> bool:
        return self.is_ready

    async def wait_for_baselines(self, operation: TimedOperation, *, at_least_s: float = 0.0) -> None:
        in_turn = f" in a turn of {turn}" if (turn := self.device.current_candidate) else ""
        self.entries.append(f"waited {at_least_s:.0f} s{in_turn}")

    async def time_operation(self, worker: Asker, operation: TimedOperation) -> NotTimed:
        self.entries.append("timed" if operation.expected else "timed without a judged run")
        return NotTimed("no clock here")


async def checked(
    folder: Path, clock: Compiling, *, kernel: str = "affine", beside: CheckOutcome | None = None, is_full: bool = True
) -> tuple[CheckOutcome | None, Progress]:
    made = [case(folder, kernel, n) for n in (LARGE, SMALL)]
    made[0] = replace(made[0], case=replace(made[0].case, family="given"))

    async def look(progress: Progress) -> CheckOutcome | None:
        return beside

    async with gpu(folder) as device:
        clock.device = device
        progress = Progress(kernel)
        store: Any = Cases(made)
        checks = GpuChecks(store, [MeasuringGpu(device, clock, WAIT_S)], 0)
        plans = [[(each.case, each.bound) for each in made]]
        return await checks.check(build(kernel).built, plans, progress, beside=look if is_full else None), progress


async def test_a_full_verdict_waits_for_pytorch_when_its_cases_have_run(tmp_path: Path) -> None:
    clock = Compiling(is_ready=False)
    failure, progress = await checked(tmp_path, clock)
    assert failure is None
    assert clock.entries == ["waited 60 s", "timed"]
    assert sorted(each.shapes["x"] for each in progress.cases) == [(SMALL,), (LARGE,)]  # each is reported once
    assert progress.notes.count("affine: not timed: no clock here") == 1


class TakenMeanwhile(Compiling):
    """PyTorch's side, whose modes are compiled for so long that others fill the GPU."""

    async def wait_for_baselines(self, operation: TimedOperation, *, at_least_s: float = 0.0) -> None:
        async def evaluate(*_: object) -> Unsupported:
            return Unsupported(message="other processes fill the GPU")

        device: Any = self.device
        device.evaluate = evaluate


async def test_cases_stay_judged_where_others_fill_the_gpu_during_the_wait(tmp_path: Path) -> None:
    failure, progress = await checked(tmp_path, TakenMeanwhile(is_ready=False))
    assert failure is None
    assert len(progress.cases) == 2
    assert "not timed: other processes fill the GPU" in progress.notes


class Endless(Compiling):
    """PyTorch's side, whose modes are compiled for ever."""

    async def wait_for_baselines(self, operation: TimedOperation, *, at_least_s: float = 0.0) -> None:
        self.entries.append("waits")
        await asyncio.Event().wait()


async def test_a_check_that_is_cancelled_names_its_stage_and_its_cases(tmp_path: Path) -> None:
    made = [case(tmp_path, "affine", n) for n in (LARGE, SMALL)]
    made[0] = replace(made[0], case=replace(made[0].case, family="given"))
    plans = [[(each.case, each.bound) for each in made]]

    class Slow(Cases):
        async def get(self, case: Case, *, by_workers: bool = False) -> CaseFiles:
            if case is not made[1].case:
                await asyncio.Event().wait()
            return await super().get(case)

        def takes_a_turn(self, case: Case) -> bool:
            return True

    async def cancelled(store: Any, clock: Compiling, is_reached: Callable[[Progress], object]) -> Progress:
        progress = Progress("affine")
        async with gpu(tmp_path) as device:
            clock.device = device
            checks = GpuChecks(store, [MeasuringGpu(device, clock, WAIT_S)], 0)
            checking = asyncio.create_task(checks.check(build("affine").built, plans, progress, beside=_endless))
            while not is_reached(progress):
                await asyncio.sleep(0.01)
            checking.cancel()
            await asyncio.wait([checking])
        return progress

    clock = Endless(is_ready=False)
    progress = await cancelled(Slow(made), clock, lambda progress: progress.n_cases.get("references") == (1, 2))
    assert progress.words_of_cancelled() == "references, 1 of 2 cases, 0 s; executor, beside the GPU, 0 s"
    progress = await cancelled(Cases(made), clock, lambda _: clock.entries)
    assert progress.words_of_cancelled().startswith("wait for torch.compile, ")
    assert progress.n_cases["gpu cases"] == (2, 2)


async def _endless(_: Progress) -> None:
    await asyncio.Event().wait()


async def test_a_candidate_that_fails_a_case_waits_for_nothing(tmp_path: Path) -> None:
    clock = Compiling(is_ready=False)
    failure, _ = await checked(tmp_path, clock, kernel="wrong")
    assert failure is not None
    assert clock.entries == []


async def test_a_candidate_that_fails_on_an_executor_is_not_timed(tmp_path: Path) -> None:
    clock = Compiling(is_ready=False)
    failure, _ = await checked(tmp_path, clock, beside=Crashed(message="it writes beside an array"))
    assert isinstance(failure, Crashed)
    assert clock.entries == []


@pytest.mark.parametrize(("is_ready", "is_full"), [(True, True), (False, False)])
async def test_where_nothing_is_waited_for_all_is_one_turn(tmp_path: Path, is_ready: bool, is_full: bool) -> None:
    clock = Compiling(is_ready=is_ready)
    failure, _ = await checked(tmp_path, clock, is_full=is_full)
    assert failure is None
    assert clock.entries == (["timed"] if is_full else ["waited 0 s", "timed"])


def lent(*, is_healthy: bool = True, lost_until: float = 0.0) -> Any:
    """Return a GPU without a worker, whose turns can be taken."""
    slot, turns = SimpleNamespace(is_healthy=is_healthy), Turns()
    device = SimpleNamespace(
        slot=slot, lost_until=lost_until, load=Load(), turns=turns, send_one_away=turns.send_one_away
    )
    return SimpleNamespace(device=device)


@pytest.mark.parametrize(("may_leave", "has_moved"), [(True, True), (False, False)])
async def test_a_gpu_that_comes_free_gets_a_candidate_that_waits_for_another(may_leave: bool, has_moved: bool) -> None:
    long, short, ends = lent(), lent(), asyncio.Event()
    ran: list[Any] = []

    async def candidate(gpu: Any) -> None:
        async with gpu.device.turns.taken(may_leave=may_leave):
            ran.append(gpu)
            await (ends.wait() if gpu is long else asyncio.sleep(0.0))

    tasks = [asyncio.create_task(on_one_of([long, short], candidate)) for _ in range(3)]
    await asyncio.wait(tasks, timeout=0.1)
    assert ran == ([long, short, short] if has_moved else [long, short])
    ends.set()
    await asyncio.gather(*tasks)
    assert (long.device.load.n, short.device.load.n) == (0, 0)


async def test_a_candidate_that_is_cancelled_when_it_is_sent_away_passes_no_turn_on() -> None:
    turns = Turns()
    async with turns.taken():
        waiting = [asyncio.create_task(turns.taken(may_leave=n == 0).__aenter__()) for n in range(2)]
        await asyncio.sleep(0.0)
        assert turns.send_one_away()
        waiting[0].cancel()
        await asyncio.wait(waiting, timeout=0.05)
        assert [task.done() for task in waiting] == [True, False]
    await waiting[1]


@pytest.mark.parametrize("is_back", [False, True])
async def test_a_lost_gpu_gets_candidates_as_soon_as_it_is_back(is_back: bool) -> None:
    lost, busy = lent(is_healthy=is_back, lost_until=inf), lent(is_healthy=True, lost_until=0.0)

    async def which(gpu: Any) -> Any:
        return gpu

    with busy.device.load.assigned():
        assert await on_one_of([lost, busy], which) is (lost if is_back else busy)
