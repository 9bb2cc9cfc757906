"""Check the warm-up: it does what every first case does, in a turn, leaves nothing, and costs nothing when it fails."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from kernel_lsp.verify.gpu.gpu_kernel import GpuReport
from kernel_lsp.verify.gpu.slot import GpuSlot

from .harness import gpu, run


async def test_it_works_and_leaves_no_file(tmp_path: Path) -> None:
    async with gpu(tmp_path) as device:
        path = tmp_path / "gpu" / "warm.bin"
        assert await device.slot.ask("warm_up", {"path": str(path)}, deadline_s=20) == {"status": "warm"}
        assert isinstance(await run(device, tmp_path, "affine"), GpuReport)
        assert not list((tmp_path / "gpu").rglob("*.bin"))
        assert device.slot.n_replaced == 0


async def test_no_candidate_runs_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_warm = False

    async def warm_up(_: GpuSlot) -> None:
        nonlocal is_warm
        await asyncio.sleep(0.2)
        is_warm = True

    monkeypatch.setattr(GpuSlot, "warm_up", warm_up)
    async with gpu(tmp_path) as device:
        await asyncio.sleep(0)
        async with device.turn():
            assert is_warm


async def test_a_worker_that_ends_meanwhile_costs_the_first_candidate_nothing(tmp_path: Path) -> None:
    async with gpu(tmp_path) as device:
        await asyncio.sleep(0)
        os.kill(device.slot.pid, signal.SIGKILL)
        assert isinstance(await run(device, tmp_path, "affine"), GpuReport)
        assert device.slot.n_replaced == 1


async def test_a_device_that_closes_at_once_waits_for_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never_ends(_: GpuSlot) -> None:
        await asyncio.sleep(600)

    monkeypatch.setattr(GpuSlot, "warm_up", never_ends)
    async with asyncio.timeout(30):
        async with gpu(tmp_path):
            await asyncio.sleep(0)
