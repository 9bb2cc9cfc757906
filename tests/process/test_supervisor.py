"""Children come to an end: at once, whatever they started, and whoever gives up waiting for them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from kernel_lsp.process import supervisor
from kernel_lsp.process.supervisor import Answered, Conversation
from kernel_lsp.process.tree import descendants, is_running

PYTHON = [sys.executable, "-I", "-S"]
ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)\n"
SLEEP_S = 60
LEAVES_GROUP = f"""import os, sys, time
if os.fork() == 0:
    os.setsid()
    time.sleep({SLEEP_S})
time.sleep(0.2)
{ECHO}"""
LEAVES_AN_ORPHAN = f"""import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep({SLEEP_S})
    os._exit(0)
os.wait()
time.sleep(0.2)
{ECHO}"""
"""A grandchild of nobody's that holds the output open."""


def conversation(folder: Path, program: str) -> Conversation:
    file = folder / "program.py"
    file.write_text(program)
    return Conversation([*PYTHON, file, folder / "orphan"])


@pytest.fixture
def no_orphan(tmp_path: Path) -> Iterator[None]:
    yield
    with suppress(OSError, ValueError):
        os.kill(int((tmp_path / "orphan").read_text()), signal.SIGKILL)


async def test_what_left_the_group_ends_with_the_program(tmp_path: Path) -> None:
    child = conversation(tmp_path, LEAVES_GROUP)
    await child.start()
    assert await child.ask({"a": 1}, deadline_s=20) == Answered({"a": 1})
    below = descendants(child.pid)
    await child.close()
    assert len(below) == 1
    assert not any(is_running(pid) for pid in below)


@pytest.mark.usefixtures("no_orphan")
async def test_an_orphan_that_holds_the_output_open_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "REAP_S", 0.3)
    child = conversation(tmp_path, LEAVES_AN_ORPHAN)
    await child.start()
    assert await child.ask({}, deadline_s=20) == Answered({})
    started = time.monotonic()
    await child.close()
    assert time.monotonic() - started < SLEEP_S / 4
    assert not child.is_alive


async def test_two_who_start_it_at_once_get_one_process(tmp_path: Path) -> None:
    child, before = conversation(tmp_path, ECHO), len(descendants(os.getpid()))
    await asyncio.gather(child.start(), child.start())
    assert len(descendants(os.getpid())) == before + 1
    await child.close()


@pytest.mark.parametrize("after_ms", [0, 1, 3, 10, 30, 60])
async def test_a_wait_that_is_given_up_at_any_moment_leaves_no_process(tmp_path: Path, after_ms: int) -> None:
    child, before = conversation(tmp_path, ECHO), set(descendants(os.getpid()))

    async def use() -> None:
        async with child:
            await child.ask({}, deadline_s=20)
            await asyncio.sleep(20)

    using = asyncio.create_task(use())
    await asyncio.sleep(after_ms / 1000)
    using.cancel()
    done, _ = await asyncio.wait([using], timeout=10)
    assert done
    assert set(descendants(os.getpid())) <= before


class _Reaped:
    """A process that ended, whose number another one has got since."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, 0


async def test_the_end_of_a_reaped_process_spares_the_one_that_has_its_number() -> None:
    """With 32768 numbers, a busy machine gives each again within minutes."""
    stranger = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    try:
        supervisor._kill(cast(asyncio.subprocess.Process, _Reaped(stranger.pid)))
        await asyncio.sleep(0.2)
        assert is_running(stranger.pid)
    finally:
        stranger.kill()
        await stranger.wait()
