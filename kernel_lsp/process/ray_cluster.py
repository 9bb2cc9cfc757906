"""A Ray cluster as places for workers: each slot is a GPU that Ray reserves, reached through one bridge process.

Ray lives in the bridge (`ray_bridge.py`) alone: our own process keeps its signals and its output, no API key reaches
Ray's processes, and a cluster that does not answer is given up by ending the bridge.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernel_lsp.errors import ConnectionLostError, EnvironmentProblem
from kernel_lsp.process.channel import Stream
from kernel_lsp.process.ray_bridge import Options
from kernel_lsp.process.remote import LOADER, Link, Place
from kernel_lsp.process.supervisor import MAX_MESSAGE_BYTES, _start, kill_group, scrubbed_environment

BRIDGE = Path(__file__).with_name("ray_bridge.py")
REACH_S = 5.0
"""Seconds for the address to take a connection and to answer. Ray itself would try for half a minute, or for ever."""
START_S = 16.0
"""Seconds to reach and join a cluster and to start its first slots: with the command's own start, less than 20 s."""
MIN_SLOT_S = 8.0
"""Seconds that a first slot has at least, however long joining took."""
SETTINGS = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])
"""First bytes of a gRPC client: HTTP/2's preface and an empty frame of settings (RFC 9113). A server's first frame is
of that type, too: 3 bytes of length, 1 of type."""
EMBEDDED_START_S = 60.0
"""Seconds to start Ray here: 5 to 13 s on two cores."""
CLOSE_S = 12.0
"""Seconds for relays and Ray to end."""
MAX_FOLDER_CHARACTERS = 30
"""Longest temporary folder that leaves room for the names of Ray's sockets, which have 107 characters at most."""
TOKEN_FILE = Path(".ray", "auth_token")
"""File in the home folder where Ray's programs look for a cluster's token."""
UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
CHECK_NETWORK = "check that it is on and that the network lets you through"
INSTALL = "python -m pip install 'kernel-lsp[ray]'"
LOCAL_NAME = "Ray"


@dataclass(frozen=True)
class RayAddress:
    """A cluster: ``ray://host:port`` of its client server, ``host:port`` of its head, or empty for a Ray of our own.

    `n_slots` is the number of slots to ask for, 0 for as many as there are GPUs. `wait_s` is the time that the first
    slots may take, e.g. until an autoscaler has added a machine.
    """

    address: str = ""
    n_slots: int = 0
    wait_s: float = START_S
    python: str = ""
    resources: Mapping[str, Any] = field(default_factory=lambda: {"num_gpus": 1})

    @property
    def name(self) -> str:
        """Return the name that messages show."""
        return self.address or LOCAL_NAME


class RayCluster:
    """One cluster and the bridge to it. Use as ``async with``: from then on `n_gpus` is known."""

    def __init__(
        self, address: RayAddress, *, n_local_gpus: int | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        """`n_local_gpus` is what a Ray of our own is told, None to count them. `environment` is added to its own."""
        self.address, self._n_local_gpus, self._environment = address, n_local_gpus, environment or {}
        self._process: asyncio.subprocess.Process | None = None
        self._log: asyncio.Task[None] | None = None
        self._folder, self._is_ready = Path(), False
        self.n_gpus, self._entered_s, self._joined_s = 0, 0.0, 0.0

    async def __aenter__(self) -> RayCluster:
        """Raises EnvironmentProblem."""
        self._entered_s = _now_s()
        if self.address.address:
            await _reach(self.address.address)
        self._folder = Path(tempfile.mkdtemp(prefix=f"kernel-lsp-{os.getpid()}-", dir=_parent()))
        try:
            await self._open()
            self._joined_s = _now_s() - self._entered_s if self.address.address else 0.0
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def socket(self) -> Path:
        """Return where the bridge takes connections."""
        return self._folder / "bridge"

    @property
    def pid(self) -> int:
        """Return the bridge's process id. Raises RuntimeError when it was not started."""
        if self._process is None:
            raise RuntimeError("the bridge was not started")
        return self._process.pid

    @property
    def slot_deadline_s(self) -> float:
        """Return the seconds left for the first slots. Joining a cluster counts, starting a Ray of our own does not."""
        return max(MIN_SLOT_S, self.address.wait_s - self._joined_s)

    def slot(self, number: int) -> RaySlot:
        """Return one slot."""
        return RaySlot(self, number)

    async def close(self) -> None:
        """End the bridge, with every actor and a Ray of our own, and remove its files."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            if self._is_ready:  # else it may be trying for ever
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), CLOSE_S)
            await kill_group(self._process)
        if self._log is not None:
            self._log.cancel()
        if self._folder != Path():
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _open(self) -> None:
        options = Options(
            address=self.address.address,
            socket=str(self.socket),
            folder=str(self._folder / "r"),
            resources=dict(self.address.resources),
            n_gpus=self._n_local_gpus,
        )
        command = [sys.executable, str(BRIDGE), json.dumps(asdict(options))]
        self._process = await _start(command, self._bridge_environment(), None)
        self._log = asyncio.create_task(_discard(self._process.stderr))
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout_at(self._entered_s + self._start_s()):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise _silent(self.address.name) from None
        said: dict[str, Any] = (
            json.loads(line) if line else {"is": "failed", "why": "ended", "message": "its process ended"}
        )
        if said["is"] == "failed":
            raise _problem(self.address.name, said["why"], said["message"])
        self.n_gpus, self._is_ready = said["gpus"], True
        if not self.n_gpus and not self.address.n_slots:
            raise EnvironmentProblem(f"{self.address.name} has no GPU", next_step=_more_gpus(self.address))

    def _bridge_environment(self) -> dict[str, str]:
        """Return the few variables of every child, and Ray's own. A Ray of our own gets a token of its own, and
        slots with this command's priority: at Ray's nice value, 15, none started within 16 s at a load of 20. A cluster
        asks for the user's by default (Ray 2.60). Its client server takes one also where none is asked for; actors of a
        program that joins with one do not start there."""
        ray = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
        has_token = (
            not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}.isdisjoint(ray) or (Path.home() / TOKEN_FILE).is_file()
        )
        if has_token and "://" in self.address.address:
            ray.setdefault("RAY_AUTH_MODE", "token")
        if not self.address.address:
            ray = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_worker_niceness": "0"}
        return scrubbed_environment({**ray, "RAY_USAGE_STATS_ENABLED": "0", **self._environment})

    def _start_s(self) -> float:
        """Return the seconds to reach and join: those that the user gives the first slot, too."""
        return max(START_S, self.address.wait_s) if self.address.address else EMBEDDED_START_S


class RaySlot(Place):
    """One slot of a cluster. Its machine may change when it is lost."""

    is_confined = True
    reconnect_s = 8.0
    """Seconds for a lost slot to come back: others take its candidates meanwhile."""

    def __init__(self, cluster: RayCluster, number: int) -> None:
        super().__init__(f"slot {number} of {cluster.address.name}")
        self._cluster, self._number = cluster, number
        self.python = cluster.address.python

    @property
    def greeting_deadline_s(self) -> float:  # type: ignore[override]  # an attribute there
        """Return the seconds until a worker can be started: Ray may wait for a GPU."""
        return self.reconnect_s if self.was_reached else self._cluster.slot_deadline_s

    async def open(self, _: Link) -> Stream:
        """Connect to the bridge."""
        try:
            path = str(self._cluster.socket)
            reader, writer = await asyncio.open_unix_connection(path, limit=MAX_MESSAGE_BYTES)
        except OSError:
            raise ConnectionLostError(
                f"the connection to {self._cluster.address.name} was lost",
                next_step="repeat the command: it goes on where it stopped",
            ) from None
        stream = Stream(reader, writer)
        await stream.write(json.dumps({"slot": self._number, "loader": LOADER}).encode() + b"\n")
        return stream

    def problem(self, returncode: int, stderr: str) -> EnvironmentProblem:
        """Return the error of a slot that ended at once."""
        return EnvironmentProblem(
            f"{self.name} was lost at its start",
            next_step="look into Ray's logs (`ray logs`), and see `ray status` for its machines",
        )

    def silence(self) -> EnvironmentProblem:
        """Return the error of a slot that Ray does not start."""
        return EnvironmentProblem(
            f"{self.name} did not start in time: no GPU came free",
            next_step=_more_gpus(self._cluster.address),
        )


def _parent() -> str:
    """Return a folder with a short name."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= MAX_FOLDER_CHARACTERS else "/tmp"


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def _reach(address: str) -> None:
    """Connect once, and see whether gRPC answers. Raises EnvironmentProblem."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    ends_s = _now_s() + REACH_S
    try:
        async with asyncio.timeout_at(ends_s):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except TimeoutError:
        raise EnvironmentProblem(f"{address} does not answer", next_step=CHECK_NETWORK) from None
    except OSError as error:
        raise _unreached(address, error.errno or -1) from None
    try:
        if not await _speaks_grpc(reader, writer, ends_s):
            raise _silent(address)
    finally:
        writer.close()


def _unreached(address: str, number: int) -> EnvironmentProblem:
    """Return the error of an address by the number of the connection's, negative for one of the name's resolution."""
    if number in UNREACHABLE:
        return EnvironmentProblem(f"{address}: it cannot be reached", next_step=CHECK_NETWORK)
    what = "its name is not known" if number < 0 else "it refuses connections"
    return EnvironmentProblem(
        f"{address}: {what}", next_step="start it with `ray start --head`, or correct the address"
    )


async def _speaks_grpc(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ends_s: float) -> bool:
    """Check whether a server answers HTTP/2, as Ray's do. With TLS, that shows when Ray joins."""
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return True
    writer.write(PREFACE)
    try:
        async with asyncio.timeout_at(ends_s):
            return (await reader.readexactly(4))[3] == SETTINGS
    except (TimeoutError, OSError, asyncio.IncompleteReadError):
        return False


def _silent(name: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{name} takes connections and does not answer as Ray does",
        next_step="use the port of Ray's client server (10001) or, on a machine of the cluster, of its head (6379); "
        "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN where the cluster has a token; give a busy one time: ?wait=60",
    )


def _problem(name: str, why: str, message: str) -> EnvironmentProblem:
    if why == "missing":
        return EnvironmentProblem(f"Ray is not installed here: {message}", next_step=INSTALL)
    lines = [" ".join(line.split()) for line in message.splitlines() if line.strip()]
    if "Version mismatch" in message:
        versions = [line for line in lines if line.startswith(("Ray:", "Python:"))]
        there, here = ", ".join(versions[:2]), ", ".join(versions[2:4])
        return EnvironmentProblem(
            f"{name} has another version: {there} there, {here} here",
            next_step="install the cluster's versions of Ray and Python here",
        )
    if "grpc" in message:
        return EnvironmentProblem(f"Ray's client is not installed here: {lines[0][:200]}", next_step=INSTALL)
    return EnvironmentProblem(f"{name} cannot be joined: {lines[0][:200]}", next_step="see `ray status` on its head")


def _more_gpus(address: RayAddress) -> str:
    if not address.address:
        return "use --device cpu, or name a cluster: --device ray://HOST:10001"
    device = address.address if "://" in address.address else "ray"
    return f"see `ray status`; where an autoscaler adds machines, let it: --device '{device}?slots=4&wait=600'"


async def _discard(stream: asyncio.StreamReader | None) -> None:
    while stream is not None and await stream.read(1 << 16):
        pass
