"""The devices of the conformance suite: one row each."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from kernel_lsp.process.ray_cluster import RayCluster
from kernel_lsp.process.remote import RemoteWorker
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.verify.cpu.cpu_device import CpuDevice, Limits
from kernel_lsp.verify.devices.device import Device
from tests.verify.gpu.harness import gpu

from .ray_slots import slots
from .sshd import Sshd

Opened = Callable[[Path], AbstractAsyncContextManager[Device]]
SHORT = Limits(complete_instructions=400_000_000, max_instructions=400_000_000, cpu_s=10.0)


@asynccontextmanager
async def cpu(folder: Path) -> AsyncIterator[Device]:
    """The PTX executor."""
    async with Worker(Path(sys.executable), scratch=folder) as worker:
        device = CpuDevice(worker, folder / "cpu", 1, limits=SHORT)
        yield device
        await device.close()


@asynccontextmanager
async def cuda(folder: Path) -> AsyncIterator[Device]:
    """A GPU of this machine: the real worker and its protocol, over a driver that is made of Python."""
    async with gpu(folder) as device:
        yield device


@asynccontextmanager
async def ssh(sshd: Sshd, folder: Path) -> AsyncIterator[Device]:
    """The same GPU behind a real sshd, which keeps nothing."""
    machine = sshd.machine()
    async with gpu(folder, lambda: RemoteWorker(machine)) as device:
        yield device
    assert sshd.is_clean()


@asynccontextmanager
async def ray(cluster: RayCluster, folder: Path) -> AsyncIterator[Device]:
    """The same GPU as a slot of a Ray cluster, confined, with a process for every candidate."""
    async with slots(cluster, folder, 1) as (device,):
        yield device


ROWS: dict[str, Callable[..., AbstractAsyncContextManager[Device]]] = {"cpu": cpu, "cuda": cuda, "ssh": ssh, "ray": ray}
FIXTURES = {"ssh": "sshd", "ray": "ray_cluster"}
"""Fixture that starts what a row runs on, by its name."""
