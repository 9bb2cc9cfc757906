"""Serve each candidate in a process of its own: forked from one that has imported torch and never opened a GPU.

The request `renew` ends the process, and the next request is answered by another. Any other end is passed on.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal

from .failure import Failure
from .protocol import need_torch, serve

RENEWED = 75
"""Exit status after `renew`."""


def main(arguments: list[str]) -> int:
    """Fork and wait, until a process ends for another reason."""
    with contextlib.suppress(Failure):  # reported by the answer to the first request
        need_torch()
        importlib.import_module(".gpu.commands", __package__)
    while True:
        pid = os.fork()
        if not pid:
            os._exit(RENEWED if serve() else 0)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            _end_by(os.WTERMSIG(status))
        if os.WEXITSTATUS(status) != RENEWED:
            return os.WEXITSTATUS(status)


def _end_by(number: int) -> None:
    """End as the child did. Its cause was written to stderr."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
