"""Lower the priority of background work below an editor and its server.

A nice value alone is not enough. Linux autogroups (on by default) schedule by session: the nice value counts only
within a session, and all sessions get equal shares. A job with eight children, each in its own session, would take
eight ninths of a processor from an editor. A lowered process therefore keeps its children in its own session, and the
nice value is set for the whole session (sched(7), "The autogroup feature").
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import Timer

AUTOGROUP = Path("/proc/self/autogroup")
N_TRIES, RETRY_S = 20, 0.15
"""Retries and their interval in seconds: for non-administrators, the machine allows one change per tenth of a
second."""

_has_stepped_back = False


def step_back(niceness: int) -> None:
    """Lower the priority of this process and of all children that the supervisor starts. Never raises: on a system
    without support the work runs at normal priority."""
    global _has_stepped_back
    _has_stepped_back = True
    os.nice(niceness)
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
