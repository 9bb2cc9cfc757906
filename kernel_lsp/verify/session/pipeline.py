"""What the evaluations of one task's candidates share: the choice of cases, their files, the devices."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kernel_lsp.core.task import Task
from kernel_lsp.verify.cpu.device import CpuDevice
from kernel_lsp.verify.gpu.checks import GpuChecks, MeasuringGpu
from kernel_lsp.verify.gpu.device import GpuDevice
from kernel_lsp.verify.model.cases import SCREEN_FAMILIES
from kernel_lsp.verify.oracle.case_store import CaseStore
from kernel_lsp.verify.probes.table import CaseChoice
from kernel_lsp.verify.session.platform import Platform
from kernel_lsp.verify.session.ready_runs import RunBuilder

MIN_SLOTS, MAX_SLOTS = 2, 8
N_SLOTS = max(MIN_SLOTS, min(MAX_SLOTS, (os.cpu_count() or 1) // 2))
"""Concurrent candidates: a compiler and an executor take one core each, and the GPU takes one candidate at a time."""
DEVICE_NAME = CpuDevice.name


class Evaluator:
    """The resources by which candidates of one captured task are evaluated. Private to this room."""

    def __init__(
        self,
        task: Task,
        platform: Platform,
        measured_on: Sequence[MeasuringGpu] = (),
        *,
        screen_families: Sequence[str] = SCREEN_FAMILIES,
        name: str = "",
    ) -> None:
        """Each candidate also runs and is timed on one of the GPUs of `measured_on`; without any on the executor alone.
        `screen_families` are the input families of the forward in a screen. `name` is its folder, unique among the
        evaluators of a platform."""
        self.task, self.platform = task, platform
        self.gpu_device = measured_on[0].device if measured_on else None
        self._n_gpus = len(measured_on)
        self.choice = CaseChoice(task, platform.seed, bool(measured_on), tuple(screen_families))
        self._baseline_wait_s = max((gpu.full_wait_s for gpu in measured_on), default=0.0)
        self.store = CaseStore(task, platform.worker, platform.directory / name, self._local_gpu, may_sample=True)
        self.gpu_checks = GpuChecks(self.store, measured_on, platform.seed) if measured_on else None
        self.runs = RunBuilder(task, platform, self.gpu_device, self.choice, self.store)

    @property
    def device_name(self) -> str:
        """Return the name of the device that verdicts are reached on."""
        if self.gpu_device is None:
            return DEVICE_NAME
        several = f"{self._n_gpus} x {self.gpu_device.facts.name}"
        return screened_on(several if self._n_gpus > 1 else self.gpu_device.name)

    @property
    def _local_gpu(self) -> GpuDevice | None:
        """Return the GPU that references may be made on: the worker that makes them runs here."""
        return self.gpu_device if self.gpu_device is not None and self.gpu_device.is_local else None

    @property
    def n_directions(self) -> int:
        """Return the number of operations: forward, and backward where it was captured."""
        return 1 if self.task.backward is None else 2

    @property
    def baseline_wait_s(self) -> float:
        """Return the longest time that a full verdict waits for PyTorch's compiled modes; 0 where nothing is timed."""
        return self._baseline_wait_s * self.n_directions

    async def close(self) -> None:
        """Stop making cases."""
        await self.store.close()

    async def worker_is_free(self) -> None:
        """Wait until captures delay no case. With a GPU all cases are made at once, and the GPU waits for them. The
        executor needs longer for a case than the worker."""
        if self.gpu_device is not None:
            await self.store.idle()


def screened_on(gpu: str) -> str:
    """Return the name of a GPU whose candidates the executor screens."""
    return f"{gpu}, screened on the {DEVICE_NAME}"
