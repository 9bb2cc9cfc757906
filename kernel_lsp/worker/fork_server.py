"""Serve each candidate in a process of its own: forked from one that has imported torch and never opened a GPU.

The request `renew` ends the process, and another one answers it as `open_device`. That one was forked beforehand. Any
other end is passed on.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
from dataclasses import dataclass
from typing import Any

from .failure import Failure
from .protocol import need_torch, serve

MAX_RENEWAL_BYTES = 1 << 12


@dataclass(frozen=True)
class _Process:
    """A forked process. It begins when a request, or ``null``, is written to `starts`, and ends when that is closed;
    `renewals` has its `renew`."""

    pid: int
    starts: int
    renewals: int


def main(arguments: list[str]) -> int:
    """Fork, start and wait, until a process ends for another reason."""
    with contextlib.suppress(Failure):  # reported by the answer to the first request
        need_torch()
        importlib.import_module(".gpu.check_commands", __package__)
    first: dict[str, Any] | None = None
    following = _fork()
    while True:
        current = following
        os.write(current.starts, json.dumps(first).encode())
        os.close(current.starts)
        following = _fork()
        _, status = os.waitpid(current.pid, 0)
        os.set_blocking(current.renewals, False)  # a process that the candidate left may hold the other end
        with os.fdopen(current.renewals, "rb", buffering=0) as file:
            renewal = file.read(MAX_RENEWAL_BYTES)
        if os.WIFSIGNALED(status):
            _end_by(os.WTERMSIG(status))
        if not renewal:
            return os.WEXITSTATUS(status)
        first = {**json.loads(renewal), "command": "open_device"}


def _fork() -> _Process:
    starting, starts = os.pipe()
    renewals, renewing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(starts)
        os.close(renewals)
        _serve(starting, renewing)
    os.close(starting)
    os.close(renewing)
    return _Process(pid, starts, renewals)


def _serve(starting: int, renewing: int) -> None:
    """Wait for the start, serve, and pass `renew` on."""
    with os.fdopen(starting, "rb") as file:
        start = file.read()
    if start and (renewal := serve(json.loads(start))):
        os.write(renewing, json.dumps(renewal).encode())
    os._exit(0)


def _end_by(number: int) -> None:
    """End as the process did. Its cause was written to stderr."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
