"""A Ray of the tests' own, whose GPUs are made of Python."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from kernel_lsp.process.ray_cluster import RayAddress, RayCluster
from kernel_lsp.process.remote import FORK_SERVER, RemoteWorker
from kernel_lsp.process.tree import descendants
from kernel_lsp.verify.gpu.gpu_device import GpuDevice
from kernel_lsp.verify.gpu.slot import GpuSlot
from tests.verify.gpu.harness import FAKE, LIGHT, StubCompiler

from .sshd import script

HAS_RAY = find_spec("ray") is not None and find_spec("grpc") is not None
ACTOR = "ray::Slot"


@asynccontextmanager
async def cluster(folder: Path, n_slots: int) -> AsyncIterator[RayCluster]:
    """Run Ray until the block ends. Nothing may be left of it."""
    fake = (
        f'#!/bin/sh\ncase "$1" in */__main__.py) exec {sys.executable} {FAKE} "$@";; esac\nexec {sys.executable} "$@"\n'
    )
    left = Path(tempfile.mkdtemp(prefix="left-"))
    address = RayAddress(n_slots=n_slots, python=str(script(folder / "python", fake)))
    async with RayCluster(address, n_local_gpus=n_slots, environment={"TMPDIR": str(left)}) as found:
        yield found
    async with asyncio.timeout(15.0):  # until relays have seen the ends of their connections
        while any(left.iterdir()):
            await asyncio.sleep(0.05)
    assert not found.socket.parent.exists()
    shutil.rmtree(left)


@asynccontextmanager
async def slots(
    cluster: RayCluster, folder: Path, n_slots: int, python: Path | None = None
) -> AsyncIterator[list[GpuDevice]]:
    """Return the devices of a cluster's first slots, each with a process for every candidate."""

    async def start(number: int) -> GpuDevice:
        slot, own = cluster.slot(number), folder / f"slot-{number}"
        slot.python = str(python or slot.python)
        own.mkdir()
        worker_slot = GpuSlot(lambda: RemoteWorker(slot, FORK_SERVER), 0, own, StubCompiler(), renews=True)
        return await GpuDevice(worker_slot, lock_directory=own).__aenter__()

    devices = await asyncio.gather(*map(start, range(n_slots)))
    try:
        yield devices
    finally:
        for device in devices:
            await device.close()


def light_python(folder: Path, case_s: float) -> Path:
    """Return an interpreter whose worker needs no torch, and whose GPU takes so many seconds for a case."""
    return script(folder / "light", f'#!/bin/sh\nexec {sys.executable} {LIGHT} {case_s} "$@"\n')


def kill_an_actor(cluster: RayCluster) -> bool:
    """Kill the process of one slot as a lost machine would. Return False when there is none."""
    for pid in descendants(cluster.pid):
        with suppress(OSError):
            if ACTOR in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
                return True
    return False
