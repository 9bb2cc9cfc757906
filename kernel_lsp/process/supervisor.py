"""Run other programs so that none outlives us, exceeds its deadline or fills our memory.

A child leads its own process group, is killed with the whole group, and dies with us (Linux's parent-death signal),
even on `kill -9`. Its output is read continuously and kept up to a bound. A `Confinement` restricts its rights.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp.process import tree
from kernel_lsp.process.confinement import Confinement, How, SandboxLevel, confined_command
from kernel_lsp.process.task_limit import TaskGroup, holder, new_group, tries_to_remove, watch
from kernel_lsp.process.tree import exists, is_running, kill_tree

MAX_OUTPUT_BYTES = 16 << 20
MAX_MESSAGE_BYTES = 256 << 20
STDERR_TAIL_BYTES = 64 << 10
READ_BYTES = 1 << 16
REAP_S = 2.0
"""Maximum time to reap a killed process, in seconds. It takes milliseconds, even with gigabytes of memory; a process
alive after that is stuck."""
REAP_POLL_S = 0.005
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
ENVIRONMENT_ALLOWED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "PYTHONPATH",
    "OMP_NUM_THREADS",
)
"""Environment variables passed to children. API keys are not listed, and must never be."""

_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(frozen=True)
class ProcessResult:
    """A finished program. `returncode` is negative for a signal, as in `subprocess`. `truncated` means that output
    beyond the bound was dropped."""

    returncode: int
    stdout: bytes
    stderr: bytes
    timed_out: bool
    truncated: bool
    elapsed_s: float


def scrubbed_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a child's environment: the allowed variables, and `extra`."""
    kept = {name: os.environ[name] for name in ENVIRONMENT_ALLOWED if name in os.environ}
    return {**kept, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "0", **(extra or {})}


async def run(
    argv: Sequence[str | Path],
    *,
    deadline_s: float,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
    confinement: Confinement | None = None,
    how: How = "exec",
) -> ProcessResult:
    """Run a program until its end or deadline. Raises OSError when it cannot be started."""
    started = time.monotonic()
    process = await _start(argv, environment, directory, confinement, how)
    out, err = _BoundedOutput(max_output_bytes), _BoundedOutput(max_output_bytes)
    timed_out = False
    try:
        async with asyncio.timeout(deadline_s):
            await asyncio.gather(_feed(process, stdin), out.drain(process.stdout), err.drain(process.stderr))
            await process.wait()
    except TimeoutError:
        timed_out = True
    finally:
        await kill_group(process)
    return ProcessResult(
        returncode=process.returncode if process.returncode is not None else -signal.SIGKILL,
        stdout=out.text(),
        stderr=err.text(),
        timed_out=timed_out,
        truncated=out.truncated or err.truncated,
        elapsed_s=time.monotonic() - started,
    )


@dataclass(frozen=True)
class Answered:
    """The program's answer to one request."""

    reply: dict[str, Any]


@dataclass(frozen=True)
class Died:
    """The program ended without answering. `stderr` is the end of its stderr."""

    returncode: int
    stderr: str


@dataclass(frozen=True)
class Overran:
    """No answer before the deadline; the program was killed."""

    deadline_s: float
    stderr: str


class Conversation:
    """A long-lived child that answers JSON lines on stdin with JSON lines on stdout, one at a time.

    After `Died` or `Overran` the conversation is over: start a new one. Use as ``async with``.
    """

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        confinement: Confinement | None = None,
        how: How = "exec",
    ) -> None:
        self._argv, self._environment, self._directory = argv, environment, directory
        self._confinement, self._how = confinement, how
        self._process: asyncio.subprocess.Process | None = None
        self._stderr = _TailOutput()
        self._drain: asyncio.Task[None] | None = None
        self._turn, self._starting = asyncio.Lock(), asyncio.Lock()

    async def __aenter__(self) -> Conversation:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def pid(self) -> int:
        """Process id of the program. Raises RuntimeError before `start`."""
        if self._process is None:
            raise RuntimeError("the conversation was not started")
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the program, unless it runs. Raises OSError when it cannot be started."""
        async with self._starting:  # concurrent callers share one process
            if not self.is_alive:
                await self._start()

    async def _start(self) -> None:
        self._process = await _start(self._argv, self._environment, self._directory, self._confinement, self._how)
        self._drain = asyncio.create_task(self._stderr.drain(self._process.stderr))

    async def ask(self, request: Mapping[str, Any], *, deadline_s: float) -> Answered | Died | Overran:
        """Send one request and wait for its answer. A cancelled wait kills the program, whose state would be
        unknown."""
        async with self._turn:
            process = self._process
            if process is None or process.stdin is None or process.stdout is None:
                raise RuntimeError("the conversation was not started")
            try:
                async with asyncio.timeout(deadline_s):
                    process.stdin.write(json.dumps(request).encode() + b"\n")
                    await process.stdin.drain()
                    line = await process.stdout.readline()
                    if line.endswith(b"\n"):
                        return Answered(json.loads(line))
                    await process.wait()
            except TimeoutError:
                await self.close()
                return Overran(deadline_s, self._stderr.text())
            except (BrokenPipeError, ConnectionResetError):
                await self.close()
            except (asyncio.CancelledError, ValueError):
                await self.close()
                raise
            if self._drain is not None:
                await asyncio.wait([self._drain], timeout=1.0)
            return Died(process.returncode if process.returncode is not None else -1, self._stderr.text())

    def signal(self, number: int) -> None:
        """Send a signal to the program and everything it started; harmless when it is gone."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Start killing the program and everything it started; `close` waits for the end."""
        if self._process is not None:
            _kill(self._process)

    async def close(self) -> None:
        """Kill the program and everything it started."""
        if self._process is not None:
            await kill_group(self._process)
        if self._drain is not None:
            await asyncio.wait([self._drain], timeout=1.0)
            self._drain.cancel()


async def kill_group(process: asyncio.subprocess.Process) -> None:
    """Kill and reap the process, its group, and what it started outside the group. Harmless when it is gone already.
    Always terminates."""
    killed = _kill(process)
    # A cancelled caller still has to reap; nothing else will.
    reaping = asyncio.ensure_future(_reap(process, killed))
    try:
        await asyncio.shield(reaping)
    except asyncio.CancelledError:
        await asyncio.wait([reaping], timeout=2 * REAP_S)
        raise


def _kill(process: asyncio.subprocess.Process) -> tuple[int, ...]:
    killed = kill_tree(process.pid) if process.returncode is None else ()
    if process.returncode is None or not exists(process.pid):  # once it is reaped, another process may have its number
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    if process in _GROUPS:
        _GROUPS[process].kill()
    return killed


async def _reap(process: asyncio.subprocess.Process, killed: Sequence[int]) -> None:
    """Reap the process. asyncio considers it ended only once its pipes are closed, but an orphan may hold them open for
    ever, and a process stuck in a driver does not die. Therefore close our ends and stop waiting."""
    if not await _has_ended(process):
        process._transport.close()  # type: ignore[attr-defined]  # Process has no way of its own to let go of pipes
        await _has_ended(process)
    ending = time.monotonic() + REAP_S
    while any(map(is_running, killed)) and time.monotonic() < ending:
        await asyncio.sleep(REAP_POLL_S)
    group = _GROUPS.pop(process, None)
    for pause_s in () if group is None else tries_to_remove(group):
        await asyncio.sleep(pause_s)


async def _has_ended(process: asyncio.subprocess.Process) -> bool:
    waiting = asyncio.ensure_future(process.wait())
    done, _ = await asyncio.wait([waiting], timeout=REAP_S)
    if not done:
        waiting.cancel()
    return bool(done)


async def _start(
    argv: Sequence[str | Path],
    environment: Mapping[str, str] | None,
    directory: Path | None,
    confinement: Confinement | None = None,
    how: How = "exec",
) -> asyncio.subprocess.Process:
    is_confined = confinement is not None and confinement.level is not SandboxLevel.NONE
    given = dict(environment) if environment is not None else scrubbed_environment()
    own_session = not tree.stays_in_session()
    group = _group_for(confinement)
    process = await asyncio.create_subprocess_exec(
        *confined_command(argv, how, confinement, group),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**given, **dict(confinement.environment)} if confinement is not None else given,
        cwd=str(directory) if directory else None,
        start_new_session=own_session,
        process_group=None if own_session else 0,
        # The launcher of a confined child sets the signal itself; without a preexec function the fork is cheap.
        preexec_fn=None if is_confined else _die_with_parent,
        limit=MAX_MESSAGE_BYTES,
    )
    if group is not None:
        _GROUPS[process] = group
    elif confinement is not None and is_confined and holder() == "watch":
        watch(process, confinement.max_tasks)
    return process


_GROUPS: weakref.WeakKeyDictionary[asyncio.subprocess.Process, TaskGroup] = weakref.WeakKeyDictionary()
"""Task groups of the children that have one."""


def _group_for(confinement: Confinement | None) -> TaskGroup | None:
    """Return a new task group; none for bwrap, whose namespaces contain all processes and hide the group's files."""
    if confinement is None or confinement.level in (SandboxLevel.NONE, SandboxLevel.BWRAP):
        return None
    return new_group(confinement.max_tasks)


def _die_with_parent() -> None:
    """Ask the kernel to kill the child when the parent dies; runs in the child between fork and exec."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    if process.stdin is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


class _BoundedOutput:
    """Keeps the first `bound` bytes and discards the rest, so that the child never blocks on a full pipe."""

    def __init__(self, bound: int) -> None:
        self._bound, self._kept, self.truncated = bound, bytearray(), False

    async def drain(self, stream: asyncio.StreamReader | None) -> None:
        while stream is not None and (data := await stream.read(READ_BYTES)):
            room = self._bound - len(self._kept)
            self._kept += data[:room]
            self.truncated |= len(data) > room

    def text(self) -> bytes:
        return bytes(self._kept)


class _TailOutput:
    """Keeps the last bytes of a stderr."""

    def __init__(self) -> None:
        self._kept = bytearray()

    async def drain(self, stream: asyncio.StreamReader | None) -> None:
        while stream is not None and (data := await stream.read(READ_BYTES)):
            self._kept += data
            del self._kept[:-STDERR_TAIL_BYTES]

    def text(self) -> str:
        return self._kept.decode(errors="replace")
