"""Check what every device promises, whatever a kernel does to it: a device is one row of `rows.ROWS`."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from kernel_lsp.core.verdict import Crashed, Mismatch, Rejected, TimedOut
from kernel_lsp.process.tree import descendants
from kernel_lsp.verify.cpu.cpu_device import CpuDevice
from kernel_lsp.verify.devices.device import CaseOutcome, CaseRun, Device, LoadFailure
from kernel_lsp.verify.gpu import gpu_kernel
from kernel_lsp.verify.gpu.gpu_kernel import GpuKernel
from kernel_lsp.verify.timing.result import NotTimed, TimedOperation
from tests.verify.gpu.harness import LARGE, SMALL, NoClock

from .kernels import build, given
from .rows import FIXTURES, ROWS, Opened

FAULTS = {"wrong_value": (Mismatch,), "overrun": (Crashed,), "endless_loop": (TimedOut, Rejected, Crashed)}


@pytest.fixture(params=ROWS)
def opened(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Opened:
    monkeypatch.setattr(gpu_kernel, "CASE_DEADLINE_S", 3.0)
    row = ROWS[request.param]
    return partial(row, request.getfixturevalue(fixture)) if (fixture := FIXTURES.get(request.param)) else row


async def ran(device: Device, folder: Path, name: str, n: int = LARGE) -> CaseOutcome | LoadFailure:
    async with device.prepare(await build(name)) as kernel:
        return await kernel.run(given(folder, name, n)) if hasattr(kernel, "run") else kernel


async def test_each_kernel_gets_its_outcome_and_the_next_one_is_unharmed(opened: Opened, tmp_path: Path) -> None:
    async with opened(tmp_path) as device:
        for name, expected in FAULTS.items():
            assert isinstance(found := await ran(device, tmp_path, name), expected), (name, found)
            assert isinstance(found := await ran(device, tmp_path, "affine", SMALL), CaseRun), (name, found)
        found = await ran(device, tmp_path, "affine")
        assert isinstance(found, CaseRun)
        assert found.result.shapes["x"] == (LARGE,)


async def test_a_gpu_times_each_launch(opened: Opened, tmp_path: Path) -> None:
    """For profiles without a profiler; the executor estimates instead."""
    async with opened(tmp_path) as device:
        if isinstance(device, CpuDevice):
            pytest.skip("it measures nothing")
        for name, expected in (("affine", list), ("endless_loop", TimedOut)):
            async with device.prepare(await build(name)) as kernel:
                assert isinstance(kernel, GpuKernel)
                found = await kernel.time_launches(given(tmp_path, name, LARGE))
                assert isinstance(found, expected), (name, found)
                assert not isinstance(found, list) or (len(found) == 1 and found[0] > 0)


async def test_a_device_whose_processes_die_goes_on_with_others(opened: Opened, tmp_path: Path) -> None:
    before = set(descendants(os.getpid()))
    async with opened(tmp_path) as device:
        assert isinstance(await ran(device, tmp_path, "affine", SMALL), CaseRun)
        behind_sshd = {pid for server in before for pid in descendants(server)}
        for pid in set(descendants(os.getpid())) - before - behind_sshd:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.5)  # until their ends are reported
        assert isinstance(found := await ran(device, tmp_path, "affine", SMALL), CaseRun), found


async def test_a_cancelled_run_leaves_the_device_usable(opened: Opened, tmp_path: Path) -> None:
    async with opened(tmp_path) as device:
        running = asyncio.create_task(ran(device, tmp_path, "endless_loop"))
        await asyncio.sleep(1.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert isinstance(found := await ran(device, tmp_path, "affine", SMALL), CaseRun), found


async def test_kernels_that_come_at_once_take_turns_and_closing_leaves_no_process(
    opened: Opened, tmp_path: Path
) -> None:
    before, inside, most = set(descendants(os.getpid())), 0, 0

    async def one(device: Device) -> CaseOutcome:
        nonlocal inside, most
        async with device.prepare(await build("affine")) as kernel:
            inside, most = inside + 1, max(most, inside + 1)
            assert hasattr(kernel, "run"), kernel
            outcome = await kernel.run(given(tmp_path, "affine", SMALL))
            inside -= 1
            return outcome

    async with opened(tmp_path) as device:
        found = await asyncio.gather(*(one(device) for _ in range(3)))
    assert all(isinstance(outcome, CaseRun) for outcome in found), found
    assert most == 1
    async with asyncio.timeout(15.0):  # until sshd has seen the ends of its connections
        while set(descendants(os.getpid())) - before:
            await asyncio.sleep(0.05)


async def test_a_time_is_measured_or_the_reason_is_said(opened: Opened, tmp_path: Path) -> None:
    case = given(tmp_path, "affine", SMALL)
    async with opened(tmp_path) as device, device.prepare(await build("affine")) as kernel:
        assert hasattr(kernel, "time"), kernel
        timed = await kernel.time(NoClock(), TimedOperation("affine", case.bound, "forward", case.files))
    assert isinstance(timed, NotTimed)
    assert timed.reason
