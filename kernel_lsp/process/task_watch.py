"""Count the tasks of children without another limit, once a second for all of them together."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.process.tree import kill_tree, running_now

WATCH_EVERY_S = 1.0
_PROC = Path("/proc")
_WATCHED: dict[asyncio.AbstractEventLoop, dict[Process, int]] = {}
_PLACES = (1, 2, 17)
"""Indices of parent, group and thread count in /proc/PID/stat after the name: fields 4, 5 and 20 of proc(5)."""


def watch(process: Process, max_tasks: int) -> None:
    """Kill the child and its descendants when they exceed the limit. Ends with the child."""
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
    """Check all children in one pass."""
    tasks = _tasks()
    for process, max_tasks in watched.items():
        if _n_tasks(process.pid, tasks) > max_tasks:
            kill_tree(process.pid)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True)
class _Running:
    """One process of the machine."""

    parent: int
    group: int
    n_threads: int


def _n_tasks(pid: int, tasks: Mapping[int, _Running]) -> int:
    """Count the tasks of the group led by the process, and of all descendants, including those that left it."""
    children: dict[int, list[int]] = {}
    for child, running in tasks.items():
        children.setdefault(running.parent, []).append(child)
    found = {child for child, running in tasks.items() if running.group == pid}
    below = [pid]
    while below:
        found.update(below)
        below = [child for parent in below for child in children.get(parent, ()) if child not in found]
    return sum(tasks[each].n_threads for each in found if each in tasks)


def _tasks() -> dict[int, _Running]:
    found = {}
    for each in running_now():
        with suppress(OSError, ValueError, IndexError):  # it ended during the scan
            stat = (_PROC / str(each) / "stat").read_bytes()
            fields = stat[stat.rindex(b")") + 2 :].split()
            found[each] = _Running(*(int(fields[place]) for place in _PLACES))
    return found
