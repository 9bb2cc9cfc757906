"""Counts the tasks of children that nothing else holds to a number, once a second for all of them together."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from kernel_lsp.process.tree import descendants, kill_tree

WATCH_EVERY_S = 1.0
_PROC = Path("/proc")
_WATCHED: dict[asyncio.AbstractEventLoop, dict[Process, int]] = {}
_GROUP, _N_THREADS = 2, 17
"""Places in /proc/PID/stat behind the name: fields 5 and 20 of proc(5)."""


def watch(process: Process, max_tasks: int) -> None:
    """Kill the child with all that it started when they are more than so many. Ends with the child."""
    loop = asyncio.get_running_loop()
    is_first = loop not in _WATCHED
    _WATCHED.setdefault(loop, {})[process] = max_tasks
    if is_first:
        _TASKS.add(task := loop.create_task(_watch_all(loop)))
        task.add_done_callback(_TASKS.discard)


_TASKS: set[asyncio.Task[None]] = set()


async def _watch_all(loop: asyncio.AbstractEventLoop) -> None:
    try:
        while watched := {p: n for p, n in _WATCHED[loop].items() if p.returncode is None}:
            _WATCHED[loop] = watched
            end_those_over(watched)
            await asyncio.sleep(WATCH_EVERY_S)
    finally:
        del _WATCHED[loop]


def end_those_over(watched: Mapping[Process, int]) -> None:
    """Look once."""
    groups = _tasks_by_group()
    for process, max_tasks in watched.items():
        if groups.get(process.pid, 0) > max_tasks or len(descendants(process.pid)) > max_tasks:
            kill_tree(process.pid)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


def _tasks_by_group() -> dict[int, int]:
    found: dict[int, int] = {}
    for entry in _PROC.glob("[0-9]*/stat") if _PROC.is_dir() else ():
        with suppress(OSError, ValueError, IndexError):  # it ended while we looked
            stat = entry.read_bytes()
            fields = stat[stat.rindex(b")") + 2 :].split()
            group = int(fields[_GROUP])
            found[group] = found.get(group, 0) + int(fields[_N_THREADS])
    return found
