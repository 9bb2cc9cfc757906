"""Processes below a process, wherever they moved: a child in a session of its own is still a child (Linux)."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def descendants(pid: int) -> tuple[int, ...]:
    """Children, grandchildren and so on, nearest first; none where there is no /proc."""
    parents: dict[int, list[int]] = {}
    for entry in _PROC.glob("[0-9]*/stat") if _PROC.is_dir() else ():
        with suppress(OSError, ValueError, IndexError):  # it ended while we looked
            parents.setdefault(_parent(entry.read_bytes()), []).append(int(entry.parent.name))
    found, below = [], [pid]
    while below:
        below = [child for parent in below for child in parents.get(parent, ())]
        found += below
    return tuple(found)


def kill_tree(pid: int) -> None:
    """Kill the process and all below it. They are found before the first dies: an orphan has another parent."""
    for each in [pid, *descendants(pid)]:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGKILL)


def _parent(stat: bytes) -> int:
    """The fourth field of /proc/PID/stat; the second, a name in parentheses, may hold anything."""
    return int(stat[stat.rindex(b")") + 2 :].split()[1])
