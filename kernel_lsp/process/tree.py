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
    for name in os.listdir(_PROC) if _PROC.is_dir() else ():
        with suppress(OSError, ValueError, IndexError):  # no process, or it ended while we looked
            parents.setdefault(_parent((_PROC / name / "stat").read_bytes()), []).append(int(name))
    found, below = [], [pid]
    while below:
        below = [child for parent in below for child in parents.get(parent, ())]
        found += below
    return tuple(found)


def kill_tree(pid: int) -> tuple[int, ...]:
    """Kill the process and all below it; returns them. They are found before the first dies: an orphan has another
    parent. The kernel ends them a moment later: `is_running` says when."""
    killed = (pid, *descendants(pid))
    for each in killed:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGKILL)
    return killed


def is_running(pid: int) -> bool:
    """A process that has ended and that nobody has asked about yet does not run; without /proc none is seen to."""
    try:
        return _state((_PROC / str(pid) / "stat").read_bytes()) not in (b"Z", b"X")
    except OSError:
        return False


def _state(stat: bytes) -> bytes:
    """The third field of /proc/PID/stat."""
    return stat[stat.rindex(b")") + 2 :].split()[0]


def _parent(stat: bytes) -> int:
    """The fourth field of /proc/PID/stat; the second, a name in parentheses, may hold anything."""
    return int(stat[stat.rindex(b")") + 2 :].split()[1])
