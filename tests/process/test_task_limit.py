"""Root, too, is held to a number of tasks, and nothing of a bomb outlives its deadline."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
import time
from pathlib import Path

import pytest

from kernel_lsp.process import supervisor, task_limit
from kernel_lsp.process.confinement import Confinement, SandboxLevel, support
from kernel_lsp.process.profiles import worker_confinement
from kernel_lsp.process.supervisor import ProcessResult, run
from kernel_lsp.process.task_limit import holder, new_group

MAX_TASKS = 24
N_TRIED = 200
BOMB = f"""import os, sys, time
made = 0
for _ in range({N_TRIED}):
    try:
        if os.fork() == 0:
            os.closerange(0, 3)
            os.setsid()
            time.sleep(120)
            os._exit(0)
        made += 1
    except OSError:
        time.sleep(0.001)
print(made, flush=True)
time.sleep(120)
"""
"""Each child tries to leave its session. Harmless where nothing holds it: they sleep."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="RLIMIT_NPROC holds everybody else")
with_cgroups = pytest.mark.skipif(holder() != "cgroup", reason="no pids cgroup can be made here")
full = pytest.mark.skipif(support().level is not SandboxLevel.LANDLOCK_SECCOMP, reason="no Landlock or seccomp here")


def confinement(folder: Path, level: SandboxLevel) -> Confinement:
    worker = worker_confinement(level, Path(sys.executable), scratch=folder, cache=folder / "cache")
    return dataclasses.replace(worker, max_tasks=MAX_TASKS)


async def bomb(folder: Path, level: SandboxLevel, deadline_s: float = 4.0) -> ProcessResult:
    file = folder / "bomb.py"
    file.write_text(BOMB)
    return await run(
        [sys.executable, "-I", "-S", file],
        deadline_s=deadline_s,
        confinement=confinement(folder, level),
        how="run",
    )


def survivors(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes()
        except OSError:
            continue
        if str(folder / "bomb.py").encode() in command:
            found.append(entry.parent.name)
    return found


async def none_left(folder: Path) -> bool:
    """Wait for a killed process, which takes a moment to be gone."""
    for _ in range(40):
        if not survivors(folder):
            return True
        await asyncio.sleep(0.05)
    return False


@as_root
@with_cgroups
@pytest.mark.parametrize("level", [SandboxLevel.LIMITS, SandboxLevel.LANDLOCK_SECCOMP])
async def test_a_bomb_gets_no_further_than_its_cgroup_and_ends_with_its_deadline(
    tmp_path: Path, level: SandboxLevel
) -> None:
    before = set(our_groups())  # of workers that other tests in this process keep
    result = await bomb(tmp_path, level)
    assert result.timed_out
    assert int(result.stdout) < MAX_TASKS
    assert await none_left(tmp_path)
    assert not [path for path in our_groups() if path not in before]


@as_root
@full
async def test_where_no_cgroup_can_be_made_a_watch_ends_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "new_group", lambda max_tasks: None)
    monkeypatch.setattr(supervisor, "holder", lambda: "watch")
    monkeypatch.setattr(task_limit, "WATCH_EVERY_S", 0.2)
    started = time.monotonic()
    result = await bomb(tmp_path, SandboxLevel.LANDLOCK_SECCOMP, deadline_s=60)
    assert not result.timed_out
    assert result.returncode == -9
    assert time.monotonic() - started < 30
    assert await none_left(tmp_path)


@as_root
@with_cgroups
async def test_an_ordinary_program_with_threads_is_not_hindered(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        "import threading\nt = [threading.Thread(target=print, args=(i,)) for i in range(8)]\n"
        "[x.start() for x in t]; [x.join() for x in t]\n"
    )
    result = await run(
        [sys.executable, "-I", "-S", file],
        deadline_s=30,
        confinement=confinement(tmp_path, SandboxLevel.LIMITS),
        how="run",
    )
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split()) == 8


@as_root
@with_cgroups
def test_groups_of_a_killed_maker_are_swept() -> None:
    parent = task_limit._parent()
    assert parent is not None
    stale = parent / f"{task_limit.PREFIX}999999999-0"
    stale.mkdir()
    task_limit._sweep(parent)
    assert not stale.exists()


@as_root
@with_cgroups
def test_a_group_is_removed_with_what_was_in_it() -> None:
    group = new_group(4)
    assert group is not None
    pid = os.posix_spawn("/bin/sleep", ["sleep", "100"], {})
    group.procs.write_text(str(pid))
    group.kill()
    os.waitpid(pid, 0)
    assert [None for _ in task_limit.tries_to_remove(group) if time.sleep(0.01)] == []
    assert not group.folder.exists()


def test_nobody_but_root_needs_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert holder() == "rlimit"
    assert new_group(8) is None


def our_groups() -> list[Path]:
    parent = task_limit._parent()
    return [] if parent is None else list(parent.glob(f"{task_limit.PREFIX}{os.getpid()}-*"))


def test_the_watch_counts_threads_of_the_group_and_all_below_wherever_they_moved() -> None:
    running = task_limit._Running
    tasks = {
        10: running(parent=1, group=10, n_threads=3),
        11: running(parent=10, group=11, n_threads=2),  # in a group of its own
        12: running(parent=1, group=10, n_threads=5),  # an orphan of the group
        13: running(parent=11, group=13, n_threads=7),
        14: running(parent=1, group=14, n_threads=100),
    }
    assert task_limit._n_tasks(10, tasks) == 3 + 2 + 5 + 7
