"""Replace files so that no other process reads half of one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TEMPORARY_PREFIX = ".writing-"
"""Start of the name of a file that is not in its place yet. A killed process leaves it."""
N_RANDOM_BYTES = 8
"""Random bytes of a temporary name: processes of two containers that share a cache may have one id."""


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file, whole or not at all, with its folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f"{TEMPORARY_PREFIX}{os.urandom(N_RANDOM_BYTES).hex()}"
    try:
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
