"""Limit the processes and threads of a confined child and its descendants.

RLIMIT_NPROC enforces it for every user but root. For root each child gets a pids cgroup where one can be created, which
also finds orphans; elsewhere `task_watch` counts once a second.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import re
import shlex
import signal
import subprocess
from asyncio.subprocess import Process
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernel_lsp.process.tree import kill_tree, running_now

Holder = Literal["rlimit", "cgroup", "watch"]
CGROUPS = Path("/sys/fs/cgroup")
PREFIX = "kernel-lsp-"
N_REMOVALS, REMOVE_EVERY_S = 20, 0.01
TRIAL_S = 5.0
"""Timeout in seconds for the removal of a trial group, which is busy until its last process is reaped."""
_NUMBERS = itertools.count()
WATCH_EVERY_S = 1.0
_WATCHED: dict[asyncio.AbstractEventLoop, dict[Process, int]] = {}
_PLACES = (1, 2, 17)
"""Indices of parent, group and thread count in /proc/PID/stat after the name: fields 4, 5 and 20 of proc(5)."""


@dataclass(frozen=True)
class TaskGroup:
    """A pids cgroup of one child. The child joins it through `procs`, before it drops its rights."""

    folder: Path

    @property
    def procs(self) -> Path:
        """File that moves a process into the group when its id is written."""
        return self.folder / "cgroup.procs"

    def kill(self) -> None:
        """Kill every process of the group, regardless of its session and parent."""
        with suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")  # version 2, Linux 5.14
            return
        killed: set[int] = set()
        while new := self._pids() - killed:  # repeat for concurrent forks; dead processes stay listed for a while
            for pid in new:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            killed |= new

    def remove(self) -> bool:
        """Remove the group if it is empty; return True on success."""
        with suppress(FileNotFoundError):
            try:
                self.folder.rmdir()
            except OSError:
                return False
        return True

    def _pids(self) -> set[int]:
        with suppress(OSError):
            return {int(pid) for pid in self.procs.read_text().split()}
        return set()


def holder() -> Holder:
    """Return the mechanism that limits a confined child's tasks here."""
    if os.geteuid() != 0:
        return "rlimit"
    return "watch" if _parent() is None else "cgroup"


def new_group(max_tasks: int) -> TaskGroup | None:
    """Create a group for a new child; None where this user may not, or needs none."""
    parent = _parent() if os.geteuid() == 0 else None
    if parent is None:
        return None
    group = TaskGroup(parent / f"{PREFIX}{os.getpid()}-{next(_NUMBERS)}")
    try:
        group.folder.mkdir()
        (group.folder / "pids.max").write_text(str(max_tasks))
    except OSError:
        group.remove()
        return None
    return group


def tries_to_remove(group: TaskGroup) -> Iterator[float]:
    """Yield the waits in seconds before each retry, until the group is removed or retries are exhausted."""
    for _ in range(N_REMOVALS):
        if group.remove():
            return
        yield REMOVE_EVERY_S


@functools.cache
def _parent() -> Path | None:
    """Return the parent for new groups; one is created, joined and removed as a trial, once."""
    parent = _own_group()
    if parent is None:
        return None
    trial = TaskGroup(parent / f"{PREFIX}{os.getpid()}-trial")
    try:
        _sweep(parent)
        trial.folder.mkdir(exist_ok=True)
        (trial.folder / "pids.max").write_text("8")
        joined = subprocess.run(
            ["/bin/sh", "-c", f"echo $$ > {shlex.quote(str(trial.procs))}"], capture_output=True, timeout=TRIAL_S
        )
    except (OSError, subprocess.SubprocessError):
        joined = None
    is_gone = trial.remove()
    return parent if joined is not None and joined.returncode == 0 and is_gone else None


def _own_group() -> Path | None:
    """Return our own group in the hierarchy that counts tasks, version 1 or 2; None where there is none."""
    try:
        lines = [line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.count(":") >= 2]
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "pids" in controllers.split(","):
            return _existing(CGROUPS / "pids" / path.lstrip("/"))
    unified = next((line.split(":", 2)[2] for line in lines if line.startswith("0::")), None)
    return None if unified is None else _delegating(CGROUPS / unified.lstrip("/"))


def _existing(folder: Path) -> Path | None:
    return folder if (folder / "cgroup.procs").is_file() else None


def _delegating(folder: Path) -> Path | None:
    """Return a version 2 group with task counting enabled for its children; possible at the root of its tree."""
    control = folder / "cgroup.subtree_control"
    try:
        if "pids" not in control.read_text().split():
            control.write_text("+pids")
    except OSError:
        return None
    return folder


def _sweep(parent: Path) -> None:
    """Remove groups whose creator was killed."""
    for folder in parent.glob(f"{PREFIX}*-*"):
        named = re.fullmatch(rf"{PREFIX}(\d+)-\d+", folder.name)
        if named and not Path(f"/proc/{named[1]}").exists():
            left = TaskGroup(folder)
            left.kill()
            left.remove()


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
            with open(f"/proc/{each}/stat", "rb", buffering=0) as file:  # plain paths: hundreds of files in each pass
                stat = file.read()
            fields = stat[stat.rindex(b")") + 2 :].split()
            found[each] = _Running(*(int(fields[place]) for place in _PLACES))
    return found
