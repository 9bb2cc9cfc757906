"""The GPU of a session. Workers take seconds to import torch and to open a device, so they start with the session,
during the capture of the target."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from kernel_lsp.errors import KernelLspError
from kernel_lsp.toolchain.nvrtc.compile import Compiler
from kernel_lsp.verify.gpu.device import GpuDevice
from kernel_lsp.verify.gpu.slot import SlotWorker
from kernel_lsp.verify.timing.baselines import TimingWorker

WARM_DEADLINE_S = 120.0


class GpuWorker(SlotWorker, TimingWorker, Protocol):
    """A worker for candidates and for PyTorch's times: a `Worker`, or a `RemoteWorker`."""


class SessionGpu:
    """One GPU, the worker that candidates run in, and a spare worker for PyTorch's own times."""

    def __init__(
        self,
        index: int,
        make_worker: Callable[[], GpuWorker],
        compiler: Compiler,
        directory: Path,
        *,
        place: str = "",
        is_local: bool = True,
        make_candidate_worker: Callable[[], SlotWorker] | None = None,
    ) -> None:
        """`make_worker` returns workers that are not started; `place` is as `GpuDevice`'s. Workers of
        `make_candidate_worker` answer `renew`; candidates get those where it is given. Call from within a running event
        loop."""
        self.index = index
        self._make_worker = make_worker
        self._device = GpuDevice(
            make_candidate_worker or make_worker,
            index,
            directory,
            compiler,
            place=place,
            is_local=is_local,
            renews=make_candidate_worker is not None,
        )
        self._opening = asyncio.create_task(self._open())
        self._spare: GpuWorker | None = make_worker()
        self._warming = asyncio.create_task(self._warm(self._spare))

    async def device(self) -> GpuDevice:
        """Return the GPU, once it is open. Raises EnvironmentProblem when torch does not see it."""
        return await asyncio.shield(self._opening)

    def has(self, device: GpuDevice) -> bool:
        """Check whether this is the device's GPU."""
        return self._device is device

    def timing_worker(self) -> GpuWorker:
        """Return a worker that never held a candidate, the spare one first."""
        spare, self._spare = self._spare, None
        return spare or self._make_worker()

    async def close(self) -> None:
        """Close the unused workers."""
        for task in (self._opening, self._warming):
            task.cancel()
        # Their errors were reported to the callers that asked for the GPU.
        await asyncio.gather(self._opening, self._warming, return_exceptions=True)
        await self._device.__aexit__(None, None, None)
        if self._spare is not None:
            await self._spare.__aexit__(None, None, None)

    async def _open(self) -> GpuDevice:
        device = await self._device.__aenter__()
        with suppress(KernelLspError):  # it is built again when needed, and reports its error then
            await device.slot.prepare_canary()
        return device

    async def _warm(self, worker: GpuWorker) -> None:
        with suppress(KernelLspError):  # without it the worker starts as slowly as a new one
            await worker.__aenter__()
            await worker.converse("open_device", {"device": self.index}, deadline_s=WARM_DEADLINE_S)
