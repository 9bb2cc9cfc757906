"""The sshd and the Ray of the tests here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kernel_lsp.process.ray_cluster import RayCluster

from .ray_slots import HAS_RAY, cluster
from .sshd import SSHD, Sshd, running

N_SLOTS = 2


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    if not SSHD:
        pytest.skip("there is no sshd: apt-get install openssh-server")
    with running(tmp_path_factory.mktemp("sshd") / "s") as found:
        yield found


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """Start Ray once, which takes seconds, in a loop of its own."""
    if not HAS_RAY:
        pytest.skip("there is no Ray: pip install 'ray[client]' (100 MB, so `make install` leaves it out)")
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def wait_for(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(timeout=120.0)

    running = cluster(tmp_path_factory.mktemp("ray"), N_SLOTS)
    yield wait_for(running.__aenter__())
    wait_for(running.__aexit__(None, None, None))
    loop.call_soon_threadsafe(loop.stop)
