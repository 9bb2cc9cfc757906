"""Temporary folders of jobs, removed with the job, or by the next engine if this one was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "kernel-lsp-engine-"
LOCK_NAME = "lock"


@contextmanager
def scratch_root() -> Iterator[Path]:
    """Create a locked folder for this process, removed at its end. Folders of dead engines are removed first."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    root = Path(tempfile.mkdtemp(prefix=PREFIX))
    with (root / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield root
        finally:
            shutil.rmtree(root, ignore_errors=True)


# --- below


def _remove_abandoned(folder: Path) -> None:
    for root in folder.glob(f"{PREFIX}*"):
        if _is_ours(root) and not _is_held(root / LOCK_NAME):
            shutil.rmtree(root, ignore_errors=True)


def _is_ours(root: Path) -> bool:
    """Return True for a folder owned by this user that is not a symbolic link."""
    with suppress(OSError):
        return root.is_dir() and not root.is_symlink() and root.stat().st_uid == os.getuid()
    return False


def _is_held(lock: Path) -> bool:
    """Return True for a locked folder, or an undecidable one: a folder being created has no lock yet."""
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
