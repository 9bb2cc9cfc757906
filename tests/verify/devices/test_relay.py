"""The relay as a program, with a worker that sleeps, and a connection that breaks before it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.process.channel import Stream
from kernel_lsp.process.ray_cluster import RayAddress, RayCluster, RaySlot
from kernel_lsp.process.remote import RELAY, Link
from kernel_lsp.worker import relay as relay_module
from kernel_lsp.worker.relay import LEASH, PREFIX

PROGRAM = b"import time; time.sleep(60)"


def _packed() -> bytes:
    packed, entry = io.BytesIO(), tarfile.TarInfo("worker.py")
    entry.size = len(PROGRAM)
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(entry, io.BytesIO(PROGRAM))
    return packed.getvalue()


def test_a_worker_that_ends_with_its_relay_is_not_reported(tmp_path: Path) -> None:
    """Else the loss of a machine would count as the candidate's crash."""
    packed, (leash, holder) = _packed(), os.pipe()
    frame = {"do": "start", "n": len(packed), "program": ["worker.py"], "arguments": [], "launcher": []}
    environment = {**os.environ, LEASH: str(leash), "TMPDIR": str(tmp_path)}
    relay = subprocess.Popen(
        [sys.executable, str(RELAY)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        pass_fds=[leash],
    )
    assert relay.stdin is not None
    assert relay.stdout is not None
    relay.stdin.write(json.dumps({**frame, "python": "", "caches": {}}).encode() + b"\n" + packed)
    relay.stdin.flush()
    assert [json.loads(relay.stdout.readline())["is"] for _ in range(2)] == ["greeting", "started"]
    os.close(leash)
    os.close(holder)
    said = relay.stdout.read()
    relay.stdin.close()
    assert relay.wait(10) == 0
    assert said == b""
    assert list(tmp_path.iterdir()) == []


def test_relays_that_start_together_sweep_the_same_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them finds a folder of a killed relay that another one has removed since."""
    gone, left = f"{PREFIX}{1 << 30}-gone", f"{PREFIX}{1 << 30}-left"
    (tmp_path / left).mkdir()
    monkeypatch.setattr(relay_module.os, "listdir", lambda _: [gone, left])
    relay_module._sweep(str(tmp_path))
    assert not (tmp_path / left).exists()


def test_a_connection_that_ends_within_a_file_ends_the_relay(tmp_path: Path) -> None:
    """Else it reads nothing for ever, with a worker and files that nobody removes."""
    packed = _packed()
    frame = {"do": "start", "n": len(packed), "program": ["worker.py"], "arguments": [], "launcher": []}
    relay = subprocess.Popen(
        [sys.executable, str(RELAY)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert relay.stdin is not None
    assert relay.stdout is not None
    relay.stdin.write(json.dumps({**frame, "python": "", "caches": {}}).encode() + b"\n" + packed)
    relay.stdin.write(json.dumps({"do": "put", "name": "/x.bin", "n": 1 << 20}).encode() + b"\n" + b"few bytes")
    relay.stdin.close()
    try:
        assert relay.wait(20) == 0
        assert list(tmp_path.iterdir()) == []
    finally:
        relay.kill()
        relay.stdout.close()


class BrokenSlot(RaySlot):
    """A slot whose machine is lost while its worker starts: the write fails, and with it the reader."""

    async def open(self, _: Link) -> Stream:
        here, there = socket.socketpair()
        there.close()
        reader, writer = await asyncio.open_unix_connection(sock=here)
        reader.set_exception(BrokenPipeError())
        return Stream(reader, writer)


async def test_a_connection_that_breaks_during_the_start_is_the_places_problem() -> None:
    with pytest.raises(EnvironmentProblem, match="slot 0 of Ray was lost at its start"):
        await BrokenSlot(RayCluster(RayAddress()), 0).connect()
