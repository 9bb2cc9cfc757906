"""A GPU as a device of verdicts: a built candidate runs on every case, is judged from copies, and is timed.

The worker that runs the candidate never sees expected values. Losing the worker is the outcome of the candidate that
caused it.
"""

from __future__ import annotations

import asyncio
import datetime
import fcntl
import itertools
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from kernel_lsp.core.verdict import Crashed, TimedOut, Unsupported
from kernel_lsp.errors import EnvironmentProblem, KernelLspError
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.verify.devices.device import KernelBuild
from kernel_lsp.verify.gpu.candidate_run import Attempt
from kernel_lsp.verify.gpu.gpu_kernel import GpuFailure, GpuJob, GpuKernel, GpuReport, SpareFiles
from kernel_lsp.verify.gpu.slot import MAX_DISCONNECTED, REPEAT, GpuFacts, GpuSlot, OutOfService
from kernel_lsp.verify.model.cases import StageTimes

N_TRIES = 2
"""Runs of a candidate whose worker is killed from outside."""
WAITS_FOR_MEMORY_S = (5.0, 15.0)
"""Seconds after each try for which other processes left too little memory, without the GPU's lock: they may wait for
it."""
LOCK_DEADLINE_S = 300.0
"""Seconds to wait, longer than any turn that ends by its own deadlines."""
TRY_EVERY_S = 0.02
"""Seconds between tries: flock has no timeout, and a thread that blocks in it cannot be cancelled."""
FOLDER_NAME = "kernel-lsp"


class GpuDevice:
    """One GPU for candidates, one at a time. Use as ``async with``; from then on `facts` are known.

    Candidates take turns; `turn` gives the GPU to other work of ours in between, e.g. references.
    """

    def __init__(
        self,
        slot: GpuSlot,
        *,
        lock_directory: Path | None = None,
    ) -> None:
        """`slot` has the worker that candidates run in, also for timing inside a turn."""
        self.slot = slot
        self.lost_until = 0.0
        """Time of the monotonic clock up to which others take its candidates: its machine was lost."""
        self.load = Load()
        """Counts the candidates that run here or wait for that."""
        self._lock_directory = lock_directory
        self._serial = itertools.count()
        self._spare_files = SpareFiles(slot.directory / "spare")
        self.current_candidate = ""
        """The id of the candidate whose turn it is; empty between turns."""
        self._turns = Turns()
        self._begun: set[str] = set()
        """Ids of candidates that had a turn."""
        self._warming: asyncio.Task[None] | None = None

    async def __aenter__(self) -> GpuDevice:
        """Raises EnvironmentProblem when torch does not see the GPU."""
        await self.slot.__aenter__()
        self._lock = GpuLock(self.slot.facts.uuid, directory=self._lock_directory)
        self._warming = asyncio.create_task(self._warm_up())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def facts(self) -> GpuFacts:
        return self.slot.facts

    @property
    def name(self) -> str:
        """Return the GPU's name and place."""
        return f"{self.slot.facts.name} {self.slot.place}".rstrip()

    @property
    def is_local(self) -> bool:
        """Check whether it is a GPU of this machine."""
        return self.slot.is_local

    @property
    def index(self) -> int:
        """Return its index among the GPUs that torch sees."""
        return self.slot.index

    @asynccontextmanager
    async def turn(self, *, goes_on: bool = False, may_leave: bool = False) -> AsyncIterator[None]:
        """Hold the GPU exclusively, against this process's other candidates and the user's other processes. `goes_on`
        and `may_leave` are as `Turns.taken`'s. Raises TurnElsewhere."""
        async with self._turns.taken(goes_on=goes_on, may_leave=may_leave), self._lock.held():
            yield

    def send_one_away(self) -> bool:
        """Have one of the waiting candidates run on another GPU. Return False where none can."""
        return self._turns.send_one_away()

    @asynccontextmanager
    async def prepare(
        self, build: KernelBuild, stages: StageTimes | None = None
    ) -> AsyncIterator[GpuKernel | Crashed | TimedOut | Unsupported]:
        """Wait for a turn, make sure of a worker that can be trusted, and load the candidate into it."""
        stages, directory = stages or StageTimes(), self.slot.directory / f"gpu-{next(self._serial)}"
        async with self._turns_with(directory, stages, build.candidate_id), self._running(build.candidate_id):
            with stages.stage("gpu worker"):
                ready = await self.slot.ready()
            if isinstance(ready, OutOfService):
                yield Unsupported(message=ready.reason)
                return
            kernel = GpuKernel(self.slot, build, directory, stages, self._spare_files)
            with stages.stage("gpu load"):
                failure = await kernel.load()
            yield failure or kernel
            if not self.slot.renews:
                await kernel.unload()

    async def evaluate(self, job: GpuJob, stages: StageTimes) -> GpuReport | GpuFailure:
        """Run, judge and time one candidate. What it does to the worker is its outcome. A worker that was killed from
        outside is replaced, and the candidate tried once more; after the loss of a connection, several times, and so
        where other processes occupy the memory. Raises TurnElsewhere before its first turn."""
        waits_s = iter(WAITS_FOR_MEMORY_S)
        for number in itertools.count(1):
            async with self.prepare(job.build, stages) as kernel:
                found = await Attempt(kernel, job, stages).run() if isinstance(kernel, GpuKernel) else kernel
            lacked_memory = isinstance(kernel, GpuKernel) and kernel.lacked_memory and isinstance(found, Unsupported)
            if lacked_memory and (wait_s := next(waits_s, None)) is not None:
                with stages.stage("gpu memory of others"):
                    await asyncio.sleep(wait_s)
                continue
            loss = self.slot.loss
            if loss is None or not loss.was_killed or (number >= N_TRIES and not loss.is_disconnected):
                break
            if number >= MAX_DISCONNECTED:
                raise EnvironmentProblem(f"{loss.message}, {number} times during one candidate", next_step=REPEAT)
        return found

    async def close(self) -> None:
        """End its worker, and what warms it up."""
        await end_tasks(self._warming)  # no longer needed
        await self.slot.__aexit__(None, None, None)

    async def _warm_up(self) -> None:
        """Warm up before the first candidate, in a turn: another session may be timing one."""
        with suppress(KernelLspError):  # the next user of the GPU gets the error
            async with self.turn():
                await self.slot.warm_up()

    @asynccontextmanager
    async def _running(self, candidate_id: str) -> AsyncIterator[None]:
        self.current_candidate = candidate_id
        try:
            yield
        finally:
            self.current_candidate = ""

    @asynccontextmanager
    async def _turns_with(self, directory: Path, stages: StageTimes, candidate_id: str) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            with stages.stage("gpu wait"):
                has_begun = candidate_id in self._begun
                await stack.enter_async_context(self.turn(goes_on=has_begun, may_leave=not has_begun))
            self._begun.add(candidate_id)
            directory.mkdir(parents=True, exist_ok=True)
            try:
                yield
            finally:
                shutil.rmtree(directory, ignore_errors=True)


class Load:
    """The number of candidates that were assigned to a GPU, and not to another one."""

    def __init__(self) -> None:
        self.n = 0

    @contextmanager
    def assigned(self) -> Iterator[None]:
        """Count one more candidate."""
        self.n += 1
        try:
            yield
        finally:
            self.n -= 1


class TurnElsewhere(Exception):
    """Another GPU came free: the candidate that waits for a turn here is to run there."""


class Turns:
    """A lock that passes to those who go on before those who begin, else in the order of asking."""

    def __init__(self) -> None:
        self._is_taken = False
        self._going_on, self._beginning = deque[asyncio.Future[None]](), deque[asyncio.Future[None]]()
        self._may_leave = set[asyncio.Future[None]]()

    @asynccontextmanager
    async def taken(self, *, goes_on: bool = False, may_leave: bool = False) -> AsyncIterator[None]:
        """Hold the lock. `goes_on`: the candidate had a turn, and a short one is left. Behind all that begin,
        candidates that came together ended together: none of eight within 6 s, then all of them within one.
        `may_leave`: `send_one_away` may end the wait. Raises TurnElsewhere."""
        if self._is_taken:
            turn = asyncio.get_running_loop().create_future()
            (self._going_on if goes_on else self._beginning).append(turn)
            if may_leave:
                self._may_leave.add(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled() and turn.exception() is None:
                    self._pass_on()
                raise
            finally:
                self._may_leave.discard(turn)
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    def send_one_away(self) -> bool:
        """End the wait of the first that may leave, by TurnElsewhere. Return False where none waits."""
        for turn in self._beginning:
            if turn in self._may_leave and not turn.done():
                turn.set_exception(TurnElsewhere())
                return True
        return False

    def _pass_on(self) -> None:
        """Wake the next one; nobody else can take the lock in between."""
        for waiting in (self._going_on, self._beginning):
            while waiting:
                if not (turn := waiting.popleft()).done():
                    turn.set_result(None)
                    return
        self._is_taken = False


class GpuLock:
    """The lock of one GPU. `directory` holds the lock files; by default the user's runtime folder."""

    def __init__(self, uuid: str, *, directory: Path | None, deadline_s: float = LOCK_DEADLINE_S) -> None:
        self._name = f"gpu-{re.sub(r'[^0-9A-Za-z-]', '-', uuid)}.lock"
        self._directory, self._deadline_s = directory, deadline_s

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the lock. Raises EnvironmentProblem, naming the holder, when it does not come free in time."""
        path = (self._directory or runtime_directory()) / self._name
        descriptor = _opened(path)
        try:
            async with self._first_in_line(path):
                await self._take(descriptor, path)
            _write_holder(descriptor)
            yield
        finally:
            os.close(descriptor)

    @asynccontextmanager
    async def _first_in_line(self, path: Path) -> AsyncIterator[None]:
        """Be the only one who tries to take the lock: a process that takes it again and again, as for references, would
        be before all others each time, who try every 20 ms."""
        descriptor = _opened(path.with_suffix(".next"))
        try:
            await self._take(descriptor, path)
            yield
        finally:
            os.close(descriptor)

    async def _take(self, descriptor: int, path: Path) -> None:
        end = time.monotonic() + self._deadline_s
        while not _try_lock(descriptor):
            if time.monotonic() > end:
                raise EnvironmentProblem(
                    f"the GPU did not come free within {self._deadline_s:g} s: {_holder(path)}",
                    file=str(path),
                    next_step="wait for that process or end it, or use another GPU with --device cuda:N",
                )
            await asyncio.sleep(TRY_EVERY_S)


def runtime_directory() -> Path:
    """Return a folder that only this user can write: in ``$XDG_RUNTIME_DIR``, else in the temporary folder.

    Raises EnvironmentProblem when another user's folder is in its place.
    """
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(given) and os.access(given, os.W_OK):
        folder = Path(given) / FOLDER_NAME
    else:
        folder = Path(tempfile.gettempdir()) / f"{FOLDER_NAME}-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
        raise EnvironmentProblem(
            "the folder for lock files is not ours", file=str(folder), next_step="remove it, or set XDG_RUNTIME_DIR"
        )
    return folder


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_holder(descriptor: int) -> None:
    """Record the holder, for those who wait. A full disk does not prevent the lock."""
    holder = {
        "pid": os.getpid(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200],
        "since": datetime.datetime.now().isoformat(timespec="seconds"),
    }
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_bytes())
        return f"process {holder['pid']} ({holder['command']}) has had it since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process has it"
