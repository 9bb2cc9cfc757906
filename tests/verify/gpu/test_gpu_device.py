"""A device survives what candidates do to it: real worker processes, the real protocol, faults that are as real as a
machine without a GPU allows."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.core.verdict import Crashed, Mismatch, TimedOut, Unsupported
from kernel_lsp.errors import ConnectionLostError, EnvironmentProblem
from kernel_lsp.process.case_files import Slices
from kernel_lsp.process.supervisor import Overran
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.verify.devices.device import DeviceCase
from kernel_lsp.verify.gpu import gpu_device, gpu_kernel
from kernel_lsp.verify.gpu.gpu_device import GpuLock, Turns
from kernel_lsp.verify.gpu.gpu_kernel import GpuFailure, GpuKernel, GpuReport
from kernel_lsp.verify.gpu.slot import lost_by

from .harness import FAKE, LARGE, SICK, SMALL, gpu, run, worker

RIGHT = "affine"
FAULTS: dict[str, type[GpuFailure]] = {  # type: ignore[valid-type]
    "illegal_address": Crashed,
    "device_assert": Crashed,
    "out_of_memory": Crashed,
    "killed_worker": Crashed,
    "endless_loop": TimedOut,
    "never_ends": TimedOut,
}


@pytest.fixture(autouse=True)
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop without end costs one of them."""
    monkeypatch.setattr(gpu_kernel, "CASE_DEADLINE_S", 3.0)


async def test_a_right_candidate_is_right_in_every_case(tmp_path: Path) -> None:
    async with gpu(tmp_path) as device:
        found = await run(device, tmp_path, RIGHT)
    assert isinstance(found, GpuReport)
    assert {result.shapes["x"] for result in found.cases} == {(LARGE,), (SMALL,)}
    assert {result.device for result in found.cases} == {"Fake GPU"}
    assert "affine: not timed: no clock here" in found.notes


async def test_every_fault_is_an_outcome_and_the_next_candidate_is_right(tmp_path: Path) -> None:
    """In random order; each candidate has one verdict, and none is missing."""
    names = [*FAULTS, *("wrong_value", "illegal_again")]
    random.Random(3).shuffle(names)
    outcomes: dict[str, object] = {}
    async with gpu(tmp_path) as device:
        for number, name in enumerate(names):
            outcomes[name] = await run(device, tmp_path, name)
            outcomes[f"affine_{number}"] = await run(device, tmp_path, f"affine_{number}", [SMALL])
    for name, kind in {**FAULTS, "wrong_value": Mismatch, "illegal_again": Crashed}.items():
        assert isinstance(outcomes[name], kind), (name, outcomes[name])
    assert len(outcomes) == 2 * len(names)
    assert all(isinstance(outcomes[f"affine_{number}"], GpuReport) for number in range(len(names)))


async def test_a_gpu_that_others_fill_is_tried_again_and_no_fault_of_the_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_device, "WAITS_FOR_MEMORY_S", (0.0, 0.0))
    async with gpu(tmp_path) as device:
        crowded = await run(device, tmp_path, "crowded", [LARGE])
        n_replaced = device.slot.n_replaced
        alone = await run(device, tmp_path, "out_of_memory", [LARGE])
    assert isinstance(crowded, Unsupported)
    assert "other processes hold 138.0 of 140.0 GiB" in crowded.message
    assert n_replaced == 2, "it was tried three times, in three workers"
    assert isinstance(alone, Crashed)
    assert alone.message.startswith("it does not fit into the memory of Fake GPU")


async def test_a_candidate_that_failed_is_not_tried_again_for_a_case_that_lacked_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cases are under way at a time: the failure of one decides, whatever the other found."""
    monkeypatch.setattr(gpu_device, "WAITS_FOR_MEMORY_S", (0.0, 0.0))
    launch, n_launched = GpuKernel.launch, 0

    async def lacking(kernel: GpuKernel, given: DeviceCase) -> Any:
        nonlocal n_launched
        kernel.lacked_memory, n_launched = True, n_launched + 1
        return await launch(kernel, given)

    monkeypatch.setattr(GpuKernel, "launch", lacking)
    async with gpu(tmp_path) as device:
        assert isinstance(await run(device, tmp_path, "wrong_value", [LARGE]), Mismatch)
    assert n_launched == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("overrun", "wrote outside of: out"),
        ("changes_input", "changed its inputs: x"),
        ("varying", "differ in 'out'"),
    ],
)
async def test_what_only_the_device_can_tell_is_told(tmp_path: Path, name: str, words: str) -> None:
    async with gpu(tmp_path) as device:
        found = await run(device, tmp_path, name)
        assert isinstance(found, Crashed)
        assert words in found.message
        assert device.slot.n_replaced == 0


SLICES = Slices(((0, 10), (LARGE - 10, LARGE)), {"out": 0})


async def test_a_large_case_is_compared_at_its_slices(tmp_path: Path) -> None:
    async with gpu(tmp_path) as device:
        assert isinstance(await run(device, tmp_path, RIGHT, [LARGE], slices=SLICES), GpuReport)
        found = await run(device, tmp_path, "wrong_last", [LARGE], slices=SLICES)
    assert isinstance(found, Mismatch)
    assert f"at [{LARGE - 1}]" in found.message


async def test_elements_beside_the_slices_must_be_written(tmp_path: Path) -> None:
    ends = Slices(((0, 10), (20, 30)), {"out": 0})
    async with gpu(tmp_path) as device:
        found = await run(device, tmp_path, "half", [LARGE], slices=ends)
    assert isinstance(found, Crashed)
    assert f"never writes {LARGE // 2} elements of 'out'" in found.message


async def test_a_kernel_that_never_ends_is_told_by_its_worker_and_costs_that(tmp_path: Path) -> None:
    async with gpu(tmp_path) as device:
        found = await run(device, tmp_path, "never_ends")
        assert isinstance(found, TimedOut)
        assert "a kernel still ran after 6 s" in found.message
        assert found.deadline_s < 6.1
        assert isinstance(await run(device, tmp_path, RIGHT), GpuReport)
        assert device.slot.n_replaced == 1


@pytest.mark.parametrize("name", ["illegal_address", "wrong_value"])
async def test_a_failure_does_not_wait_for_cases_that_are_still_being_made(tmp_path: Path, name: str) -> None:
    async def never() -> None:
        await asyncio.sleep(3600)

    coming = [asyncio.create_task(never())]
    async with gpu(tmp_path) as device:
        found = await asyncio.wait_for(run(device, tmp_path, name, [LARGE], coming=coming), 60.0)
    assert isinstance(found, Crashed | Mismatch)
    coming[0].cancel()


async def test_a_case_that_cannot_be_made_leaves_the_worker_alive(tmp_path: Path) -> None:
    async def fails() -> None:
        raise EnvironmentProblem("no space left")

    async with gpu(tmp_path) as device:
        await run(device, tmp_path, RIGHT, [SMALL])
        before = device.slot.pid
        with pytest.raises(EnvironmentProblem):
            await run(device, tmp_path, RIGHT, coming=[asyncio.create_task(fails())])
        assert isinstance(await run(device, tmp_path, RIGHT), GpuReport)
        assert device.slot.pid == before


async def test_atomics_may_vary_inside_the_budget_and_that_is_noted(tmp_path: Path) -> None:
    async with gpu(tmp_path) as device:
        found = await run(device, tmp_path, "varying", may_vary=True)
    assert isinstance(found, GpuReport)
    assert any("differs from run to run" in note for note in found.notes)


async def test_a_worker_killed_by_others_costs_the_candidate_nothing(tmp_path: Path) -> None:
    async with gpu(tmp_path) as device:
        os.kill(device.slot.pid, signal.SIGKILL)
        assert isinstance(await run(device, tmp_path, RIGHT), GpuReport)
        assert device.slot.n_replaced == 1


async def test_a_lost_connection_starts_one_worker_and_a_crash_one_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Worker] = []

    def next_worker() -> Worker:
        made.append(worker(FAKE))
        return made[-1]

    async def cut(*_: object, **__: object) -> None:
        raise ConnectionLostError("the connection was lost", next_step="repeat the command")

    async with gpu(tmp_path, next_worker) as device:
        monkeypatch.setattr(made[0], "converse", cut)
        assert isinstance(await run(device, tmp_path, RIGHT), GpuReport)
        assert len(made) == 2
        assert isinstance(await run(device, tmp_path, "illegal_address"), Crashed)
        assert isinstance(await run(device, tmp_path, RIGHT), GpuReport)
        assert len(made) == 4


async def test_a_slot_that_was_given_up_starts_one_worker_when_it_comes_back(tmp_path: Path) -> None:
    """Its machine starts all slots at once: second workers of all of them delay the first ones."""
    made: list[Worker] = []

    def next_worker() -> Worker:
        made.append(worker(FAKE))
        if len(made) == 2:
            raise ConnectionLostError("no slot came free in time", next_step="repeat the command")
        return made[-1]

    async with gpu(tmp_path, next_worker) as device:
        os.kill(device.slot.pid, signal.SIGKILL)
        with pytest.raises(ConnectionLostError):
            await run(device, tmp_path, RIGHT)
        assert isinstance(await run(device, tmp_path, RIGHT), GpuReport)
        assert len(made) == 3


async def test_a_gpu_on_which_the_canary_fails_again_and_again_is_quarantined(tmp_path: Path) -> None:
    workers = [FAKE]

    def next_worker() -> Worker:
        return worker(workers.pop() if workers else SICK)

    async with gpu(tmp_path, next_worker) as device:
        assert isinstance(await run(device, tmp_path, "illegal_address"), Crashed)
        for _ in range(2):
            found = await run(device, tmp_path, RIGHT)
            assert isinstance(found, Unsupported)
            assert "quarantined" in found.message
        assert device.slot.n_replaced == 3


async def test_a_canary_that_recovers_ends_the_suspicion(tmp_path: Path) -> None:
    workers = [FAKE, SICK, FAKE]

    async with gpu(tmp_path, lambda: worker(workers.pop() if workers else FAKE)) as device:
        assert isinstance(await run(device, tmp_path, "illegal_address"), Crashed)
        assert isinstance(await run(device, tmp_path, RIGHT), GpuReport)


async def test_a_cancelled_evaluation_leaves_the_device_usable(tmp_path: Path) -> None:
    async with gpu(tmp_path) as device:
        running = asyncio.create_task(run(device, tmp_path, "endless_loop"))
        await asyncio.sleep(1.0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert isinstance(await run(device, tmp_path, RIGHT), GpuReport)


async def test_candidates_that_come_at_once_take_turns(tmp_path: Path) -> None:
    async with gpu(tmp_path) as device:
        found = await asyncio.gather(*(run(device, tmp_path, f"affine_{number}", [SMALL]) for number in range(8)))
    assert all(isinstance(outcome, GpuReport) for outcome in found)


async def test_those_who_go_on_come_before_those_who_begin() -> None:
    """One that stops waiting takes no turn."""
    turns, order = Turns(), list[str]()

    async def one(name: str, *, goes_on: bool) -> None:
        async with turns.taken(goes_on=goes_on):
            order.append(name)
            await asyncio.sleep(0)

    names = {"first": False, "begins": False, "goes on": True, "leaves": True, "begins too": False}
    tasks = {name: asyncio.create_task(one(name, goes_on=goes_on)) for name, goes_on in names.items()}
    await asyncio.sleep(0)
    tasks["leaves"].cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert order == ["first", "goes on", "begins", "begins too"]


async def test_a_cancelled_holder_to_be_passes_its_turn_on() -> None:
    turns, order = Turns(), list[str]()

    async def one(name: str) -> None:
        async with turns.taken():
            order.append(name)

    async with turns.taken():
        second, third = asyncio.create_task(one("second")), asyncio.create_task(one("third"))
        await asyncio.sleep(0)
    second.cancel()  # the lock was handed to it, and it has not run since
    await asyncio.gather(second, third, return_exceptions=True)
    assert order == ["third"]


async def test_who_holds_the_gpu_is_named_when_waiting_takes_too_long(tmp_path: Path) -> None:
    first, second = (GpuLock("GPU-1/2", directory=tmp_path, deadline_s=0.1) for _ in range(2))
    async with first.held():
        with pytest.raises(EnvironmentProblem, match=f"process {os.getpid()} .* has had it since"):
            async with second.held():
                pass
    async with second.held():
        assert [path.name for path in tmp_path.glob("*.lock")] == ["gpu-GPU-1-2.lock"]


async def test_a_dead_holder_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "gpu-x.lock").write_text('{"pid": 1, "command": "gone", "since": "long ago"}')
    async with GpuLock("x", directory=tmp_path, deadline_s=0.1).held():
        pass


async def test_a_process_that_waits_is_before_one_that_takes_the_gpu_again(tmp_path: Path) -> None:
    often, once = (GpuLock("x", directory=tmp_path, deadline_s=30.0) for _ in range(2))
    order: list[str] = []

    async def take_often() -> None:
        for _ in range(20):
            async with often.held():
                order.append("often")
                await asyncio.sleep(0.05)

    async def take_once() -> None:
        await asyncio.sleep(0.02)
        async with once.held():
            order.append("once")

    await asyncio.gather(take_often(), take_once())
    assert order.index("once") <= 2


def test_a_process_without_an_answer_says_what_it_did() -> None:
    assert lost_by(Overran(5.0, ""), "check", 5.0).message == "its process did not finish running the kernel within 5 s"
