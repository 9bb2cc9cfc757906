"""The private folder of a session's test data: in memory where there is plenty, else in the temporary folder."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kernel_lsp.errors import EnvironmentProblem

MEMORY_FOLDER = Path("/dev/shm")
MIN_FREE_IN_MEMORY_BYTES = 16 << 30
"""Minimum free bytes of the memory folder to use it: one case at full size may take 2 GB, and other programs use it,
too."""
MIN_FREE_BYTES = 256 << 20
"""Minimum free bytes before a run starts: one case at full size has inputs, outputs and a reference."""
PREFIX = "kernel-lsp-"


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


# --- below


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
