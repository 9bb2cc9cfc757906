"""A GPU behind a real sshd: problems of the connection are said in one line, and a lost one costs nothing."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kernel_lsp.errors import EnvironmentProblem, SettingError
from kernel_lsp.process.remote import RemoteWorker
from kernel_lsp.process.ssh import Machine
from kernel_lsp.verify.devices.device_names import DeviceName, Remote, parse_device
from kernel_lsp.verify.gpu.gpu_device import GpuDevice
from kernel_lsp.verify.gpu.gpu_kernel import GpuFailure, GpuReport
from kernel_lsp.verify.gpu.slot import OPEN_DEADLINE_S
from tests.verify.gpu.harness import SMALL, gpu, run

from .sshd import Sshd, script

N_CUTS = 10
FULL = '#!/bin/sh\nulimit -f 8\nexec {python} "$@"\n'
"""No file may be larger than 4 KiB."""


def known_as_another(sshd: Sshd) -> Path:
    """Return known hosts in which the machine has another key."""
    path = sshd.folder / "known-as-another"
    path.write_text(f"[127.0.0.1]:{sshd.port} {(sshd.folder / 'other.pub').read_text()}")
    return path


WRONG: dict[str, tuple[Callable[[Sshd], Machine], str]] = {
    "no such port": (lambda sshd: sshd.machine(port=1), "refuses connections"),
    "no such name": (lambda sshd: Machine("nowhere.invalid"), "name is not known"),
    "unknown host key": (
        lambda sshd: sshd.machine(ssh=sshd.ssh_with("stranger", UserKnownHostsFile="/dev/null")),
        "host key is not known",
    ),
    "changed host key": (
        lambda sshd: sshd.machine(ssh=sshd.ssh_with("changed", UserKnownHostsFile=str(known_as_another(sshd)))),
        "host key has changed",
    ),
    "wrong key": (
        lambda sshd: sshd.machine(ssh=sshd.ssh_with("other-key", IdentityFile=str(sshd.folder / "other"))),
        "accepts none of your keys",
    ),
    "no such Python": (lambda sshd: sshd.machine("/nowhere/python3"), "has no program /nowhere/python3"),
    "no Python": (lambda sshd: sshd.machine("/bin/true"), r"/bin/true ended at once \(status 0\)"),
    "disk full": (
        lambda sshd: sshd.machine(
            script(sshd.folder / "full", f'#!/bin/sh\n{FULL.format(python=sys.executable)} "$@"\n')
        ),
        "cannot store the worker's files",
    ),
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_way_that_is_barred_is_named_within_twenty_seconds(sshd: Sshd, what: str) -> None:
    make, words = WRONG[what]
    started = time.monotonic()
    with pytest.raises(EnvironmentProblem, match=words) as raised:
        await RemoteWorker(make(sshd)).__aenter__()
    assert raised.value.next_step
    assert "\n" not in raised.value.message
    assert time.monotonic() - started < 20
    assert sshd.is_clean()


async def test_the_next_step_names_the_port(sshd: Sshd) -> None:
    machine = sshd.machine(ssh=sshd.ssh_with("no-key", IdentityFile=str(sshd.folder / "other")))
    with pytest.raises(EnvironmentProblem) as raised:
        await RemoteWorker(machine).__aenter__()
    assert f"`ssh -p {sshd.port} 127.0.0.1`" in raised.value.next_step


async def test_a_python_without_torch_is_named(sshd: Sshd, tmp_path: Path) -> None:
    """The worker that was copied there says it."""
    plain = sshd.python(f'exec {sys.executable} -S -I "$@"', "without-torch")
    machine = sshd.machine(plain)
    with pytest.raises(EnvironmentProblem, match="cannot import torch"):
        async with gpu(tmp_path, lambda: RemoteWorker(machine)):
            pass
    assert sshd.is_clean()


async def test_a_worker_that_ends_at_once_is_no_lost_connection(sshd: Sshd, tmp_path: Path) -> None:
    machine = sshd.machine(sshd.python("echo no such library >&2; exit 3", "broken"))
    with pytest.raises(EnvironmentProblem, match=r"exit status 3.*no such library"):
        async with gpu(tmp_path, lambda: RemoteWorker(machine)):
            pass


async def test_the_worker_that_was_copied_there_answers(sshd: Sshd) -> None:
    async with RemoteWorker(sshd.machine(sys.executable)) as worker:
        seen = await worker.ask("describe", {}, deadline_s=OPEN_DEADLINE_S)
    assert seen["torch_version"]
    assert sshd.is_clean()


async def test_ten_cuts_of_the_connection_change_no_outcome_and_leave_nothing(sshd: Sshd, tmp_path: Path) -> None:
    names = [f"affine_{n}" for n in range(6)] + ["wrong_value", "overrun"]

    async def outcomes(folder: Path, n_cuts: int) -> dict[str, type[GpuReport | GpuFailure]]:
        machine, found = sshd.machine(), dict[str, type[GpuReport | GpuFailure]]()
        async with gpu(folder, lambda: RemoteWorker(machine)) as device:
            cutting = asyncio.create_task(cut(device, n_cuts))
            while not cutting.done() or len(found) < len(names):
                for name in names:
                    found[name] = type(await run(device, folder, name, [SMALL, 1 << 16]))
            await cutting
        return found

    folders = [tmp_path / "cut", tmp_path / "whole"]
    for folder in folders:
        folder.mkdir()
    assert await outcomes(folders[0], N_CUTS) == await outcomes(folders[1], 0)
    assert sshd.is_clean()


async def cut(device: GpuDevice, n_times: int) -> None:
    """Kill ssh while a candidate runs, again and again."""
    draw = random.Random(7)
    for _ in range(n_times):
        await asyncio.sleep(draw.uniform(0.2, 1.0))
        with suppress(RuntimeError, ProcessLookupError):
            os.kill(device.slot.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cpu", DeviceName("cpu")),
        ("cuda", DeviceName("cuda", 0)),
        ("cuda:1", DeviceName("cuda", 1)),
        ("cuda:all", DeviceName("cuda", None)),
        ("ssh://me@host:2222", DeviceName("ssh", 0, Remote("host", "me", "2222"))),
        ("ssh://host/opt/venv/bin/python", DeviceName("ssh", 0, Remote("host", python="/opt/venv/bin/python"))),
    ],
)
def test_a_name_is_parsed(name: str, expected: DeviceName) -> None:
    assert parse_device(name) == expected


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "ssh://", "ssh://-oProxyCommand=x", "ssh://host:99999"])
def test_a_name_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(SettingError):
        parse_device(name)
