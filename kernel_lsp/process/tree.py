"""Processes below a process, wherever they moved: a child in a session of its own is still a child (Linux)."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def running_now() -> tuple[int, ...]:
    """Every process there is; none where there is no /proc. Any of them may have ended a moment later."""
    return tuple(int(name) for name in os.listdir(_PROC) if name.isdigit()) if _PROC.is_dir() else ()


def descendants(pid: int) -> tuple[int, ...]:
    """Children, grandchildren and so on, nearest first; none where there is no /proc."""
    parents: dict[int, list[int]] = {}
    for each in running_now():
        with suppress(OSError, ValueError, IndexError):  # it ended while we looked
            parents.setdefault(_parent((_PROC / str(each) / "stat").read_bytes()), []).append(each)
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
