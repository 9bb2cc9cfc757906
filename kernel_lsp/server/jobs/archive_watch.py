"""Watch the archives of the open workspaces: other programs, such as the command line, write runs, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from kernel_lsp.config import FOLDER_NAME

POLL_S = 2.0
"""Interval between two looks at the dates of an archive's files, in seconds. Not every client watches files."""
FILES = ("archive.sqlite3", "archive.sqlite3-wal")

ABSENT = (0, 0)

Signature = tuple[tuple[int, int], ...]


class ArchiveWatch:
    """Call `on_change` with each workspace whose archive has changed since it was last looked at. `is_busy` names the
    workspaces that are left alone for now, since their changes are our own."""

    def __init__(self, on_change: Callable[[Path], None], is_busy: Callable[[Path], bool]) -> None:
        self._on_change, self._is_busy = on_change, is_busy
        self._seen: dict[Path, Signature] = {}

    def add(self, workspace: Path) -> bool:
        """Watch a workspace from now on; return False if it was watched already."""
        is_new = workspace not in self._seen
        self._seen.setdefault(workspace, _signature(workspace))
        return is_new

    async def run(self) -> None:
        """Look at all archives, again and again."""
        while True:
            await asyncio.sleep(POLL_S)
            self.look()

    def look(self) -> None:
        """Report the archives that have changed."""
        for workspace, seen in tuple(self._seen.items()):
            now = _signature(workspace)
            if now != seen and not self._is_busy(workspace):
                self._seen[workspace] = now
                self._on_change(workspace)


def _signature(workspace: Path) -> Signature:
    return tuple(_stat(workspace / FOLDER_NAME / name) for name in FILES)


def _stat(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return ABSENT
    # A reader makes an empty log for as long as it reads.
    return (found.st_mtime_ns, found.st_size) if found.st_size else ABSENT
