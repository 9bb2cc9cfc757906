"""Reuse the files of judged outputs for the next outputs. New pages of a file in memory cost more than writing them (64
million floats took 0.20 s into a new file and 0.08 s over an old one, two cores)."""

from __future__ import annotations

import itertools
import os
import threading
from contextlib import suppress
from pathlib import Path

LEAST_BYTES = 4 << 20
"""Minimum bytes of a file that is worth keeping."""
MAX_BYTES = 1 << 30
"""Maximum bytes of all spare files together."""


class SpareFiles:
    """Spare files in one folder that the writers have access to. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sizes: dict[Path, int] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def place(self, path: Path, n_bytes: int) -> None:
        """Move the spare file of the nearest size to this path, if `n_bytes` are enough to be worth it."""
        with self._lock:
            if n_bytes < LEAST_BYTES or not self._sizes:
                return
            spare = min(self._sizes, key=lambda each: abs(self._sizes[each] - n_bytes))
            del self._sizes[spare]
        with suppress(OSError):  # otherwise a new file is written there
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(spare, path)

    def keep(self, folder: Path) -> None:
        """Take the large files of a folder, as far as there is room for them. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            n_bytes, spare = path.stat().st_size, self._directory / f"{next(self._numbers)}.bin"
            with self._lock:
                if LEAST_BYTES <= n_bytes <= MAX_BYTES - sum(self._sizes.values()):
                    os.replace(path, spare)
                    self._sizes[spare] = n_bytes
