"""Replace files so that no other process reads half of one."""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from pathlib import Path

TEMPORARY_PREFIX = ".writing-"
"""Start of the name of a file that is not in its place yet. A killed process leaves it."""
_serial = itertools.count()


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file, whole or not at all, with its folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f"{TEMPORARY_PREFIX}{os.getpid()}-{next(_serial)}"
    try:
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
