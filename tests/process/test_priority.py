"""Background work steps back as a whole: a session of its own, with its children in it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.process.supervisor import run
from kernel_lsp.process.tree import AUTOGROUP

NICENESS = 3
SELF = """
import json, os
me = {"pid": os.getpid(), "session": os.getsid(0), "group": os.getpgrp(), "nice": os.getpriority(os.PRIO_PROCESS, 0),
      "policy": os.sched_getscheduler(0)}
"""
CHILD = f"{SELF}\nprint(json.dumps(me))"
FAMILY = f"""
import asyncio, sys, time
from kernel_lsp.process.tree import step_back
from kernel_lsp.process.supervisor import run
{SELF}
if sys.argv[1] == "back":
    step_back({NICENESS})
result = asyncio.run(run([sys.executable, "-c", {CHILD!r}], deadline_s=30))
share, tries = "", 50
while sys.argv[1] == "back" and tries and os.path.exists("/proc/self/autogroup") and "nice {NICENESS}" not in share:
    share, tries = open("/proc/self/autogroup").read(), tries - 1
    time.sleep(0.1 if "nice {NICENESS}" not in share else 0)
print(json.dumps({{"me": me, "child": json.loads(result.stdout), "share": share}}))
"""


def family(how: str) -> dict[str, Any]:
    """Return what a process that the supervisor started says of itself, and of a child that it started in turn. Its
    session may have to wait for its value, while others on the machine set theirs."""
    result = asyncio.run(run([sys.executable, "-c", FAMILY, how], deadline_s=60, directory=Path.cwd()))
    assert result.returncode == 0, result.stderr.decode()
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def behind() -> dict[str, Any]:
    return family("back")


def test_children_of_background_work_stay_in_its_session(behind: dict[str, Any]) -> None:
    assert behind["child"]["session"] == behind["me"]["session"] == behind["me"]["pid"]


def test_children_of_background_work_have_groups_of_their_own_to_be_killed_by(behind: dict[str, Any]) -> None:
    assert behind["child"]["group"] == behind["child"]["pid"] != behind["me"]["group"]


def test_children_of_background_work_are_as_nice_as_it_is(behind: dict[str, Any]) -> None:
    assert behind["child"]["nice"] == behind["me"]["nice"] + NICENESS


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has batch scheduling")
def test_background_work_does_not_preempt_others(behind: dict[str, Any]) -> None:
    assert behind["child"]["policy"] == os.SCHED_BATCH


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel has no groups of sessions")
def test_the_session_of_background_work_is_put_back_as_a_whole(behind: dict[str, Any]) -> None:
    assert behind["share"].split()[-2:] == ["nice", str(behind["child"]["nice"])]


def test_children_of_other_work_have_sessions_of_their_own() -> None:
    found = family("front")
    assert found["child"]["session"] == found["child"]["pid"]
