"""What one command needs to evaluate: a worker under the user's interpreter, a compiler, a GPU to estimate for, and a
private scratch folder. Everything ends with the session."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

from kernel_lsp.config import Settings
from kernel_lsp.core.target import TargetSource
from kernel_lsp.core.task import Task
from kernel_lsp.errors import EnvironmentProblem, SettingError
from kernel_lsp.evaluate.pipeline import CpuEvaluator
from kernel_lsp.gpu.specs import GpuSpec, find_gpu
from kernel_lsp.process.worker_client import Worker, find_python
from kernel_lsp.toolchain.cache import BuildCache
from kernel_lsp.toolchain.compile import Compiler
from kernel_lsp.toolchain.discovery import find_toolchain

MIN_FREE_BYTES = 256 << 20
"""Of the scratch folder, before a run starts: one case at full size is inputs, outputs and three references."""


class Session:
    """Use as ``async with``. Raises EnvironmentProblem or SettingError on entry when something is missing."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._stack = AsyncExitStack()
        self.gpu: GpuSpec
        self.worker: Worker
        self._compiler: Compiler
        self._scratch: Path

    async def __aenter__(self) -> Session:
        async with AsyncExitStack() as stack:
            self.gpu = find_gpu(self.settings.target_gpu)
            python = await find_python(self.settings.python)
            toolchain = find_toolchain(self.settings.cuda_directory, user_site_packages=site_packages(python))
            self._scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kernel-lsp-")))
            _check_free_space(self._scratch)
            cache = BuildCache(self.settings.cache_directory)
            self._compiler = await stack.enter_async_context(
                Compiler(toolchain, cache=cache, deadline_s=self.settings.compile_deadline_s)
            )
            self.worker = await stack.enter_async_context(
                Worker(python, capture_deadline_s=self.settings.capture_deadline_s)
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def device(self) -> Literal["cpu", "cuda"]:
        """The device that the settings ask for. Raises SettingError when it is not there."""
        if self.settings.device == "cpu":
            return "cpu"
        has_cuda = (await self.worker.describe()).has_cuda
        if self.settings.device == "auto":
            return "cuda" if has_cuda else "cpu"
        if not has_cuda:
            raise SettingError(
                f"device '{self.settings.device}' was asked for, and torch in {self.worker.python} sees no GPU",
                next_step="use --device cpu, or name an interpreter whose torch has CUDA with --python",
            )
        return "cuda"

    async def capture(self, source: TargetSource, *, with_backward: bool) -> Task:
        """The target as a task. Raises TargetError, EnvironmentProblem."""
        return await self.worker.capture(source, with_backward=with_backward)

    async def evaluator(self, task: Task) -> CpuEvaluator:
        """An evaluator of this task's candidates; it ends with the session."""
        evaluator = CpuEvaluator(
            task, self.worker, self._compiler, self.gpu, self._scratch / "evaluate", seed=self.settings.seed
        )
        return await self._stack.enter_async_context(evaluator)


def site_packages(python: Path) -> tuple[Path, ...]:
    """Where the packages of an interpreter are, torch's own compiler among them. Nothing is run to find out."""
    return tuple(sorted(python.parent.parent.glob("lib*/python3*/site-packages")))


def _check_free_space(folder: Path) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < MIN_FREE_BYTES:
        raise EnvironmentProblem(
            f"only {free_bytes >> 20} MiB are free in the scratch folder",
            file=str(folder.parent),
            next_step=f"free {MIN_FREE_BYTES >> 20} MiB, or set TMPDIR to a folder with space",
        )
