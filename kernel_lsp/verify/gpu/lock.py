"""Serialise one user's processes on a GPU: a lock file per UUID, which the kernel releases when its holder dies."""

from __future__ import annotations

import asyncio
import datetime
import fcntl
import json
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from kernel_lsp.errors import EnvironmentProblem

LOCK_DEADLINE_S = 300.0
"""Seconds to wait, longer than any turn that ends by its own deadlines."""
TRY_EVERY_S = 0.02
"""Seconds between tries: flock has no timeout, and a thread that blocks in it cannot be cancelled."""
FOLDER_NAME = "kernel-lsp"


class GpuLock:
    """The lock of one GPU. `directory` holds the lock files; by default the user's runtime folder."""

    def __init__(self, uuid: str, *, directory: Path | None = None, deadline_s: float = LOCK_DEADLINE_S) -> None:
        self._name = f"gpu-{re.sub(r'[^0-9A-Za-z-]', '-', uuid)}.lock"
        self._directory, self._deadline_s = directory, deadline_s

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the lock. Raises EnvironmentProblem, naming the holder, when it does not come free in time."""
        path = (self._directory or runtime_directory()) / self._name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await self._take(descriptor, path)
            _write_holder(descriptor)
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


# --- below: the file


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
