"""Find the descendants of a process: a child in its own session is still a child (Linux)."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def running_now() -> tuple[int, ...]:
    """Return every process; none without /proc. Any of them may end at any time."""
    return tuple(int(name) for name in os.listdir(_PROC) if name.isdigit()) if _PROC.is_dir() else ()


def descendants(pid: int) -> tuple[int, ...]:
    """Return children, grandchildren and so on, nearest first; none without /proc."""
    parents: dict[int, list[int]] = {}
    for each in running_now():
        with suppress(OSError, ValueError, IndexError):  # it ended during the scan
            parents.setdefault(_parent((_PROC / str(each) / "stat").read_bytes()), []).append(each)
    found, below = [], [pid]
    while below:
        below = [child for parent in below for child in parents.get(parent, ())]
        found += below
    return tuple(found)


def kill_tree(pid: int) -> tuple[int, ...]:
    """Kill the process and its descendants; return them. They are found first, because orphans get another parent. The
    kernel ends them asynchronously: poll `is_running`."""
    killed = (pid, *descendants(pid))
    for each in killed:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGKILL)
    return killed


def is_running(pid: int) -> bool:
    """Return True for a running process: not for a zombie, and never without /proc."""
    try:
        return _state((_PROC / str(pid) / "stat").read_bytes()) not in (b"Z", b"X")
    except OSError:
        return False


def _state(stat: bytes) -> bytes:
    """Return the third field of /proc/PID/stat."""
    return stat[stat.rindex(b")") + 2 :].split()[0]


def _parent(stat: bytes) -> int:
    """Return the fourth field of /proc/PID/stat; the second, a name in parentheses, may contain anything."""
    return int(stat[stat.rindex(b")") + 2 :].split()[1])
