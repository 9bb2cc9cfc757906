"""The PTX executor as a device: executors that each run one candidate at a time, and the folders that they may use.

Executors see the inputs of the current case in one folder, and their outputs in another. Expected values lie in
neither.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.process.confinement import SandboxLevel
from kernel_lsp.process.worker_client import CaseFiles, Worker
from kernel_lsp.ptx.executor import Loaded, PtxExecutor
from kernel_lsp.verify.cpu.executor_pool import ExecutorPool, Module
from kernel_lsp.verify.cpu.prepared import CpuKernel, Limits
from kernel_lsp.verify.cpu.run_files import RunFiles
from kernel_lsp.verify.devices.device import KernelBuild, LoadFailure

GIVEN, RUNS = "given", "runs"
"""Folder names of inputs and of outputs."""
CASE_LIMITS = Limits(complete_instructions=400_000_000, max_instructions=20_000_000_000, deadline_s=90.0)


class CpuDevice:
    """Runs cases on a pool of executors. It holds no state of a candidate, so all evaluations of a task share it."""

    name = "PTX executor (CPU)"

    def __init__(
        self,
        worker: Worker,
        directory: Path,
        n_slots: int,
        *,
        sandbox: SandboxLevel | None = None,
        limits: Limits = CASE_LIMITS,
    ) -> None:
        """`worker` runs library steps; `directory` is all that executors may access. `sandbox` is their confinement;
        None takes the strongest level that this machine offers. `limits` hold for cases without limits of their own."""
        self.worker, self.directory, self.limits, self._sandbox = worker, directory, limits, sandbox
        self._given, self._runs = directory / GIVEN, directory / RUNS
        self._numbers = itertools.count(1)
        self.executors = ExecutorPool(self._new_executor, n_slots)

    @asynccontextmanager
    async def prepare(self, build: KernelBuild) -> AsyncIterator[CpuKernel | LoadFailure]:
        """Yield the kernel on an executor that has loaded it, or the reason why none does."""
        module = Module(build.built.ptx, build.file_name)
        async with self.executors.executor(module) as executor:
            loaded = await self.executors.load(executor, module)
            yield CpuKernel(self, executor, build.built, loaded.kernels) if isinstance(loaded, Loaded) else loaded

    async def close(self) -> None:
        """End the idle executors; those in use end with their use."""
        await self.executors.close()

    def new_run(self, bound: BoundOperation, files: CaseFiles | None) -> RunFiles:
        """Return new files of a run, with zeros as inputs where there are no `files`."""
        folder = f"run-{next(self._numbers)}"
        directory, given = self._runs / folder, self._given / folder
        directory.mkdir(parents=True)
        given.mkdir(parents=True)
        return RunFiles(directory, given, bound, files)

    def _new_executor(self) -> PtxExecutor:
        self._given.mkdir(parents=True, exist_ok=True)
        return PtxExecutor(self._runs, self._given, sandbox=self._sandbox)
