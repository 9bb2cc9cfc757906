"""Find the descendants of a process: a child in its own session is still a child (Linux); and lower the priority of
background work below an editor and its server.

A nice value alone is not enough. Linux autogroups (on by default) schedule by session: the nice value counts only
within a session, and all sessions get equal shares. A job with eight children, each in its own session, would take
eight ninths of a processor from an editor. A lowered process therefore keeps its children in its own session, and the
nice value is set for the whole session (sched(7), "The autogroup feature").
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from threading import Timer

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


def exists(pid: int) -> bool:
    """Return True for a process of that number, a zombie included; always False without /proc."""
    return (_PROC / str(pid)).exists()


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


AUTOGROUP = Path("/proc/self/autogroup")
N_TRIES, RETRY_S = 20, 0.15
"""Retries and their interval in seconds: for non-administrators, the machine allows one change per tenth of a
second."""

_has_stepped_back = False


def step_back(niceness: int) -> None:
    """Lower the priority of this process, of its children, and of all that the supervisor starts. With 0 the priority
    stays, and children stay in this process's session, for a later call. Never raises: on a system without support the
    work runs at normal priority."""
    global _has_stepped_back
    _has_stepped_back = True
    lowered = os.nice(niceness)
    for child in descendants(os.getpid()) if niceness else ():
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, child, lowered)
    with suppress(AttributeError, OSError):  # Linux only; a sandbox may forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    if os.getsid(0) == os.getpid():  # a session shared with other processes, such as a terminal's, is left alone
        _put_session_back(os.getpriority(os.PRIO_PROCESS, 0), N_TRIES)


def stays_in_session() -> bool:
    """Return True when children belong in this process's session instead of one each."""
    return _has_stepped_back and os.getsid(0) == os.getpid()


def _put_session_back(niceness: int, n_tries: int) -> None:
    try:
        AUTOGROUP.write_text(str(niceness))
    except BlockingIOError:
        if n_tries > 1:
            timer = Timer(RETRY_S, _put_session_back, (niceness, n_tries - 1))
            timer.daemon = True
            timer.start()
    except OSError:
        pass  # no autogroups here, or other control groups, among which the plain value counts
