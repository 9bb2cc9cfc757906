"""Start a session: the user's interpreter, the scratch folder, and the worker that captures.

The worker takes seconds to import torch. So this module imports little itself, and a command may start it before it
imports the rest of what it needs.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from kernel_lsp.config import Settings
from kernel_lsp.errors import EnvironmentProblem, InternalError, KernelLspError
from kernel_lsp.gpu.specs import has_gpu
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.process.confinement import SandboxLevel, sandbox_level
from kernel_lsp.process.interpreter import find_python, named_python
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.verify.devices.device_names import parse_device

MEMORY_FOLDER = Path("/dev/shm")
MIN_FREE_IN_MEMORY_BYTES = 16 << 30
"""Minimum free bytes of the memory folder to use it: one case at full size may take 2 GB, and other programs use it,
too."""
MIN_FREE_BYTES = 256 << 20
"""Minimum free bytes before a run starts: one case at full size has inputs, outputs and a reference."""
MANY_PROCESSORS = 12
"""Processors from which further processes import PyTorch beside a capture without delaying it."""
IMPORT_DEADLINE_S = 120.0
PREFIX = "kernel-lsp-"


class SessionStart:
    """The start of a session. Use as ``async with``. Environment errors are deferred to `check()`, so that errors in
    the user's input are reported first."""

    sandbox: SandboxLevel
    scratch: Path
    worker: Worker

    def __init__(self, settings: Settings, *, n_compiled_modes: int = 0) -> None:
        """So many processes for modes of `torch.compile` start with it, where a GPU of this machine may be used."""
        self.settings, self._n_compiled_modes = settings, n_compiled_modes
        self.compilers = deque[Worker]()
        """Workers that import `torch.compile` and were not handed over yet."""
        self._stack = AsyncExitStack()
        self._workers: list[Worker] = []
        self._preparing: list[asyncio.Task[None]] = []
        self._problem: KernelLspError | None = None
        self._removing: asyncio.Future[None] | None = None

    async def __aenter__(self) -> SessionStart:
        async with AsyncExitStack() as stack:
            try:
                await self._start(stack)
            except KernelLspError as problem:
                self._problem = problem
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()
        try:
            await end_tasks(*self._preparing)
            if self._removing is not None:
                await self._removing
        finally:  # workers are closed also where this is cancelled
            await self._stack.aclose()

    def check(self) -> None:
        """Raises EnvironmentProblem or SettingError when something is missing."""
        if self._problem is not None:
            raise self._problem

    def new_worker(self, python: Path) -> Worker:
        """Return an unstarted worker with the deadline, folders and confinement of this session. Raises InternalError
        once the session is ending."""
        if self._removing is not None:
            raise InternalError("a worker was wanted by a session that is ending")
        worker = Worker(
            python,
            capture_deadline_s=self.settings.capture_deadline_s,
            scratch=self.scratch,
            cache=self.settings.cache_directory,
            sandbox=self.sandbox,
        )
        self._workers.append(worker)
        return worker

    def kill(self) -> None:
        """Begin to end all workers at once, and to remove their files: freeing memory of a GPU, and of files, takes a
        moment. No new one starts."""
        for worker in self._workers:
            worker.kill()
        if self._removing is None and self._workers:
            remove = partial(shutil.rmtree, self.scratch, ignore_errors=True)
            self._removing = asyncio.get_running_loop().run_in_executor(None, remove)

    async def _start(self, stack: AsyncExitStack) -> None:
        self.sandbox = sandbox_level(self.settings.sandbox)
        self.scratch = stack.enter_context(scratch_folder())
        named = named_python(self.settings.python)
        if named is None:
            await self._start_worker(stack, await find_python(None))
            return
        # Examine the interpreter while the worker imports torch. Its errors are the most precise, so they are raised
        # first.
        finding, starting = find_python(self.settings.python), self._start_worker(stack, named)
        for found in await asyncio.gather(finding, starting, return_exceptions=True):
            if isinstance(found, BaseException):
                raise found

    async def _start_worker(self, stack: AsyncExitStack, python: Path) -> None:
        self.worker = self.new_worker(python)
        self._preparing.append(asyncio.create_task(self.worker.compile_ahead()))
        await stack.enter_async_context(self.worker)
        if may_use_gpu(self.settings):
            self._preparing.append(asyncio.create_task(self.worker.open_context(gpu_number(self.settings))))
            if (os.cpu_count() or 1) >= MANY_PROCESSORS:
                self._start_compilers(stack, python)
        self._preparing.append(asyncio.create_task(self.worker.prepare_capture()))
        await asyncio.sleep(0)  # let the request be sent before this loop is blocked

    def _start_compilers(self, stack: AsyncExitStack, python: Path) -> None:
        for _ in range(self._n_compiled_modes):
            worker = self.new_worker(python)
            stack.push_async_exit(worker)
            self._preparing.append(asyncio.create_task(_import_compiler(worker)))
            self.compilers.append(worker)


async def _import_compiler(worker: Worker) -> None:
    """Import what `torch.compile` needs. No GPU is touched: something may be timed there."""
    with suppress(KernelLspError):  # errors recur where it compiles
        await worker.__aenter__()
        await worker.converse("prepare_compiler", {"device": "cpu"}, deadline_s=IMPORT_DEADLINE_S)


def may_use_gpu(settings: Settings) -> bool:
    """Check that the settings allow a GPU of this machine, and that there is one to try."""
    return parse_device(settings.device).is_local_gpu and has_gpu()


def gpu_number(settings: Settings) -> int:
    """Return the number of the GPU that references are made on: the first of several."""
    return parse_device(settings.device).index or 0


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder that only this user can read, removed at the end. Leftovers of killed processes are removed
    first.

    ``$TMPDIR`` is used where it is set. Raises EnvironmentProblem when there is hardly any space.
    """
    parent = _parent()
    _sweep(parent)
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", dir=parent, ignore_cleanup_errors=True) as name:
        _check_free_space(Path(name))
        yield Path(name)


def _parent() -> Path:
    if "TMPDIR" not in os.environ and os.access(MEMORY_FOLDER, os.W_OK):
        with suppress(OSError):
            if shutil.disk_usage(MEMORY_FOLDER).free >= MIN_FREE_IN_MEMORY_BYTES:
                return MEMORY_FOLDER
    return Path(tempfile.gettempdir())


def _sweep(parent: Path) -> None:
    """Remove folders whose process is gone: their memory would be lost until the machine restarts."""
    for folder in parent.glob(f"{PREFIX}*"):
        named = re.fullmatch(rf"{PREFIX}(\d+)-\w+", folder.name)
        if named and not Path(f"/proc/{named[1]}").exists() and Path("/proc/self").exists():
            with suppress(OSError):
                if folder.lstat().st_uid == os.getuid():
                    shutil.rmtree(folder, ignore_errors=True)


def _check_free_space(folder: Path) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < MIN_FREE_BYTES:
        raise EnvironmentProblem(
            f"only {free_bytes >> 20} MiB are free in the scratch folder",
            file=str(folder.parent),
            next_step=f"free {MIN_FREE_BYTES >> 20} MiB, or set TMPDIR to a folder with space",
        )
