"""Slots of a Ray cluster: none of its faults loses an evaluation, and what bars the way is said in one line."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import sys
import time
from pathlib import Path

import pytest

from kernel_lsp.errors import EnvironmentProblem, SettingError
from kernel_lsp.process import ray_cluster as ray_cluster_module
from kernel_lsp.process.ray_cluster import MIN_SLOT_S, START_S, RayAddress, RayCluster, _problem
from kernel_lsp.process.remote import FORK_SERVER, RemoteWorker
from kernel_lsp.process.supervisor import Answered, Conversation
from kernel_lsp.process.tree import descendants
from kernel_lsp.process.worker_client import WORKER_PROGRAM
from kernel_lsp.verify.devices.device_names import parse_device
from kernel_lsp.verify.gpu.checks import MeasuringGpu, on_one_of
from kernel_lsp.verify.gpu.gpu_kernel import GpuFailure, GpuReport
from tests.verify.gpu.harness import SMALL, NoClock, run

from .ray_slots import ACTOR, kill_an_actor, light_python, slots
from .sshd import script

N_EVALUATIONS = 8
MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.9.0
    Python: 3.11.9
This process on Ray Client was started with:
    Ray: 2.60.0
    Python: 3.11.7
"""


async def test_the_loss_of_a_slot_loses_no_evaluation_and_repeats_none(ray_cluster: RayCluster, tmp_path: Path) -> None:
    done: list[int] = []
    async with slots(ray_cluster, tmp_path, 2, light_python(tmp_path, 0.05)) as devices:
        gpus = [MeasuringGpu(device, NoClock()) for device in devices]

        async def one(number: int) -> GpuReport | GpuFailure:
            found = await on_one_of(gpus, lambda gpu: run(gpu.device, tmp_path, f"affine_{number}", [SMALL]))
            done.append(number)
            if len(done) == 2:
                assert kill_an_actor(ray_cluster)
            return found

        found = await asyncio.gather(*map(one, range(N_EVALUATIONS)))
        n_replaced = sum(device.slot.n_replaced for device in devices)
    assert sorted(done) == list(range(N_EVALUATIONS))
    assert all(isinstance(outcome, GpuReport) for outcome in found), found
    assert n_replaced >= 1


async def test_every_candidate_has_a_process_of_its_own() -> None:
    async with Conversation([sys.executable, WORKER_PROGRAM, *FORK_SERVER]) as worker:
        assert await worker.ask({"command": "describe"}, deadline_s=60.0)
        first = descendants(worker.pid)
        for _ in range(2):  # two, as the next process was there at the first
            assert isinstance(await worker.ask({"command": "renew", "device": 0}, deadline_s=60.0), Answered)
        assert first
        assert not set(first) & set(descendants(worker.pid))


async def test_a_python_without_torch_is_named(ray_cluster: RayCluster, tmp_path: Path) -> None:
    slot = ray_cluster.slot(0)
    slot.python = str(script(tmp_path / "python", f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n'))
    async with RemoteWorker(slot, FORK_SERVER) as worker:
        with pytest.raises(EnvironmentProblem, match="cannot import torch"):
            await worker.ask("open_device", {"device": 0}, deadline_s=60.0)


async def test_slots_of_our_own_ray_have_the_priority_of_the_command(ray_cluster: RayCluster) -> None:
    async with RemoteWorker(ray_cluster.slot(0)):
        actors = [pid for pid in descendants(ray_cluster.pid) if ACTOR in Path(f"/proc/{pid}/cmdline").read_text()]
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in actors} == {os.getpriority(os.PRIO_PROCESS, 0)}


async def test_a_slot_that_no_gpu_is_free_for_is_named(ray_cluster: RayCluster) -> None:
    number = 2
    slot = RayCluster.slot(ray_cluster, number)
    slot.__class__ = type("Impatient", (type(slot),), {"greeting_deadline_s": 1.0})
    async with RemoteWorker(ray_cluster.slot(0)), RemoteWorker(ray_cluster.slot(1)):
        with pytest.raises(EnvironmentProblem, match="no GPU came free"):
            await RemoteWorker(slot).__aenter__()


def test_the_first_slot_has_what_joining_the_cluster_left_of_the_wait() -> None:
    cluster = RayCluster(RayAddress("ray://head:10001"))
    for joined_s, left_s in ((0.0, START_S), (5.0, START_S - 5.0), (START_S, MIN_SLOT_S)):
        cluster._joined_s = joined_s
        assert cluster.slot(0).greeting_deadline_s == pytest.approx(left_s, abs=0.5)


@pytest.mark.parametrize(("address", "device"), [("ray://head:10001", "ray://head:10001"), ("head:6379", "ray")])
def test_a_cluster_without_a_free_gpu_is_told_with_a_device_that_can_be_given(address: str, device: str) -> None:
    step = RayCluster(RayAddress(address)).slot(0).silence().next_step
    given = re.findall(r"--device '(.*)'", step)
    assert [name.partition("?")[0] for name in given] == [device]
    assert parse_device(*given)


async def check_unreachable(address: str, words: str) -> None:
    started = time.monotonic()
    with pytest.raises(EnvironmentProblem, match=words) as raised:
        await RayCluster(RayAddress(address, wait_s=1.0)).__aenter__()
    assert raised.value.next_step
    assert "\n" not in raised.value.message
    assert time.monotonic() - started < 20


async def test_an_address_where_nothing_listens_is_named() -> None:
    await check_unreachable("ray://127.0.0.1:1", "refuses connections")


async def test_a_name_that_is_not_known_is_named() -> None:
    await check_unreachable("ray://nowhere.invalid:10001", "name is not known")


async def test_a_machine_that_no_route_leads_to_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))

    monkeypatch.setattr(asyncio, "open_connection", fail)
    await check_unreachable("ray://10.1.1.1:10001", "cannot be reached")


async def test_a_server_that_says_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster_module, "REACH_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        await check_unreachable(f"ray://127.0.0.1:{silent.getsockname()[1]}", "does not answer as Ray")


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b""])
async def test_a_server_of_another_protocol_is_named_at_once(said: bytes) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        started = time.monotonic()
        await check_unreachable(f"ray://127.0.0.1:{server.sockets[0].getsockname()[1]}", "does not answer as Ray")
        assert time.monotonic() - started < ray_cluster_module.REACH_S


@pytest.mark.parametrize(
    ("given", "has_file", "mode"),
    [
        ({}, False, None),
        ({}, True, "token"),
        ({"RAY_AUTH_TOKEN": "a"}, False, "token"),
        ({"RAY_AUTH_MODE": "disabled"}, True, "disabled"),
    ],
)
def test_a_cluster_gets_the_token_that_the_user_has(
    given: dict[str, str], has_file: bool, mode: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    if has_file:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("a")
    assert RayCluster(RayAddress("ray://head:10001"))._bridge_environment().get("RAY_AUTH_MODE") == mode
    joined = RayCluster(RayAddress("head:6379"))._bridge_environment()
    assert joined.get("RAY_AUTH_MODE") == given.get("RAY_AUTH_MODE")


def test_another_version_is_named_in_one_line() -> None:
    message = _problem("ray://h:1", "unreachable", MISMATCH).message
    assert message.endswith("Ray: 2.9.0, Python: 3.11.9 there, Ray: 2.60.0, Python: 3.11.7 here")


def test_a_missing_ray_is_said_with_the_command_that_installs_it() -> None:
    assert "kernel-lsp[ray]" in _problem("Ray", "missing", "No module named 'ray'").next_step


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ray", RayAddress()),
        ("ray://head:10001", RayAddress("ray://head:10001")),
        ("ray://head:10001?slots=8&wait=600", RayAddress("ray://head:10001", n_slots=8, wait_s=600.0)),
        ("ray?type=H100", RayAddress(resources={"num_gpus": 1, "accelerator_type": "H100"})),
    ],
)
def test_a_name_is_parsed(name: str, expected: RayAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert parse_device(name).ray == expected


@pytest.mark.parametrize("name", ["ray://", "ray://head", "ray?slots=many", "ray?color=red"])
def test_a_name_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(SettingError):
        parse_device(name)
