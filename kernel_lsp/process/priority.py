"""Work in the background steps back behind an editor and the server that answers it.

A nice value alone does not do it. Where Linux groups processes by their session for the scheduler (autogroups, on by
default), it counts only within a session, and every session gets as much as any other: a job with eight children, each
in a session of its own, takes eight ninths of a processor from an editor. So a process that has stepped back keeps its
children in its own session, and that session as a whole has the nice value (sched(7), "The autogroup feature").
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import Timer

AUTOGROUP = Path("/proc/self/autogroup")
N_TRIES, RETRY_S = 20, 0.15
"""Only one session of the machine may change its value each tenth of a second, if it is not the administrator's."""

_has_stepped_back = False


def step_back(niceness: int) -> None:
    """Let everything else go first from now on, with all children that the supervisor starts. Never raises: where a
    system has none of this, the work is done all the same."""
    global _has_stepped_back
    _has_stepped_back = True
    os.nice(niceness)
    with suppress(AttributeError, OSError):  # only Linux has it; a sandbox may forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    if os.getsid(0) == os.getpid():  # a session that holds others than us, a terminal's, is not ours to put back
        _put_session_back(os.getpriority(os.PRIO_PROCESS, 0), N_TRIES)


def stays_in_session() -> bool:
    """Whether children belong into this process's session, rather than each into one of its own."""
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
        pass  # no autogroups here, or groups of another kind, among which the plain value counts
