"""Connect UNIX sockets to slots of a Ray cluster; a program of its own, and the only one that imports Ray.

    PYTHON ray_bridge.py OPTIONS      OPTIONS is JSON: see `Options`

A slot is an actor that reserves a GPU. Behind each connection a relay (`worker/relay.py`) runs there, so slots need Ray
and torch, and nothing of ours. The first line of a connection is ``{"slot": number, "loader": text}``, all else is the
relay's. Where this machine belongs to the cluster, relays connect back by TCP: an actor's call costs 4 ms of processor
time. The first line on stdout says that the cluster was reached, or why not. The end of stdin ends all.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import secrets
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

PIECE_BYTES = 4 << 20
"""Bytes of one call at most."""
OBJECT_STORE_BYTES = 80 << 20
"""Memory of an embedded Ray for objects, near the least that it accepts: our calls carry few."""
END_S = 5.0
"""Seconds for slots to end their relays."""
ENTER_S = 10.0
"""Seconds for a relay to connect and to send its password."""
AVOID_S = 20.0
"""Seconds for which new actors avoid a machine that was lost. Ray takes it for alive for 15 s, and its GPUs for free:
actors that it sends there start nowhere until then, although another machine may have replaced it."""
AVOIDS_FROM = (2, 49)
"""First version of Ray in which an actor names machines to avoid (`label_selector`)."""
NODE_LABEL = "ray.io/node-id"
N_CALLS = 64
"""Calls that a slot serves at a time: each of its connections waits in one."""


@dataclass(frozen=True)
class Options:
    """`address` is empty for an embedded Ray, whose files lie in `folder`. `socket` is where connections are taken.
    `resources` are those of one slot, in `ray.remote`'s names; `n_gpus` is the number of GPUs that an embedded Ray is
    told of, None to count them."""

    address: str
    socket: str
    folder: str
    resources: dict[str, Any]
    n_gpus: int | None = None


class Slot:
    """An actor beside one GPU: it runs relays. A relay's bytes go through a connection of its own to the bridge where
    that can be reached, else through calls of this actor. It travels by value: it may use nothing of this module."""

    def __init__(self) -> None:
        self.relays: dict[str, Any] = {}
        self.leashes: dict[str, int] = {}

    async def here(self) -> str:
        """Return the machine's id in the cluster, once the actor has started."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    async def open(self, name: str, loader: str, door: tuple[str, int, str] | None) -> bool:
        """Start a relay. `door` is the bridge's host, port and password for it. Return whether it was reached."""
        import asyncio
        import os
        import socket
        import subprocess
        import sys

        def reached() -> socket.socket | None:
            if door is None:
                return None
            try:
                connection = socket.create_connection(door[:2], timeout=2.0)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(door[2].encode() + b"\n")
                connection.settimeout(None)
            except OSError:
                return None
            return connection

        connection = await asyncio.to_thread(reached)
        ends_with_us, self.leashes[name] = os.pipe()
        try:
            self.relays[name] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", loader, "relay", "exec"),
                stdin=subprocess.PIPE if connection is None else connection.fileno(),
                stdout=subprocess.PIPE if connection is None else connection.fileno(),
                env={**os.environ, "KERNEL_LSP_LEASH": str(ends_with_us)},
                pass_fds=[ends_with_us],
                limit=1 << 24,
                start_new_session=True,
            )
        finally:
            os.close(ends_with_us)
            if connection is not None:
                connection.close()
        return connection is not None

    async def wait(self, name: str) -> None:
        """Wait for a relay's end."""
        if (relay := self.relays.get(name)) is not None:
            await relay.wait()

    async def write(self, name: str, content: bytes) -> None:
        """Pass bytes to a relay, and wait until it has taken most of them. One that has ended takes none."""
        import contextlib

        with contextlib.suppress(ConnectionError, KeyError):
            self.relays[name].stdin.write(content)
            await self.relays[name].stdin.drain()

    async def read(self, name: str, n_bytes: int) -> bytes:
        """Wait for a relay's bytes. None when it has ended."""
        return await self.relays[name].stdout.read(n_bytes)

    async def close(self, name: str) -> None:
        """End a relay, which removes its files."""
        import os

        if (relay := self.relays.get(name)) is not None:
            if (leash := self.leashes.pop(name, None)) is not None:
                os.close(leash)
            if relay.stdin is not None:
                relay.stdin.close()
            await relay.wait()  # known until then: `close_all` waits, too
            self.relays.pop(name, None)

    async def close_all(self) -> None:
        """End all relays: Ray would kill them before they have removed their files."""
        import asyncio

        await asyncio.gather(*map(self.close, list(self.relays)))


class Door:
    """A TCP port for relays, each of which sends a password that its slot was given. Without an address it is
    closed."""

    def __init__(self) -> None:
        self._address: tuple[str, int] | None = None
        self._expected: dict[str, asyncio.Future[tuple[StreamReader, StreamWriter]]] = {}

    async def open(self, host: str) -> None:
        """Listen at an address of this machine that the cluster reaches."""
        server = await asyncio.start_server(self._enter, host, 0, limit=PIECE_BYTES)
        self._address = server.sockets[0].getsockname()[:2]

    def expect(self) -> tuple[str, int, str] | None:
        """Return the host, the port and a new password; None without an address."""
        if self._address is None:
            return None
        password = secrets.token_hex(32)
        self._expected[password] = asyncio.get_running_loop().create_future()
        return *self._address, password

    async def entered(self, password: str) -> tuple[StreamReader, StreamWriter]:
        """Return the connection that came with the password."""
        try:
            async with asyncio.timeout(ENTER_S):
                return await self._expected[password]
        finally:
            self.forget(password)

    def forget(self, password: str) -> None:
        """Refuse a password from now on."""
        self._expected.pop(password, None)

    async def _enter(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            async with asyncio.timeout(ENTER_S):
                password = (await reader.readline()).decode(errors="replace").strip()
        except (TimeoutError, ValueError, ConnectionError):
            password = ""
        waiting = self._expected.get(password)
        if waiting is None or waiting.done():
            writer.close()
        else:
            waiting.set_result((reader, writer))


class NobodyWaits(Exception):
    """A connection ended before its slot was there."""


class Slots:
    """The actors of this program, each made when it is first needed, and anew after its loss."""

    def __init__(self, ray: Any, resources: dict[str, Any], door: Door) -> None:
        options = {"num_cpus": 0, "max_concurrency": N_CALLS, "max_restarts": 0, **resources}
        self._class = ray.remote(**options)(Slot)
        self._can_avoid = tuple(map(int, ray.__version__.split(".")[:2])) >= AVOIDS_FROM
        self._unreachable = ray.exceptions.ActorUnavailableError
        self._avoided: dict[str, float] = {}
        """Times of the loop up to which lost machines are avoided, by their ids."""
        self._lost = (ray.exceptions.RayError, ConnectionError, TimeoutError)
        self._door = door
        self._actors: dict[int, Any] = {}
        self._here: dict[int, asyncio.Future[str]] = {}
        """Starts of the actors. A relay is asked for after it: those of connections that ended meanwhile would all
        start with the actor, each a process of 0.1 s."""
        self._started: set[int] = set()
        """Slots that were there once. Their actors go on starting when nobody waits: the slot is tried again soon."""
        self._names = itertools.count()

    async def connect(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one connection until either end closes it, or the slot is lost."""
        header = json.loads(await reader.readline())
        number, name, actor = header["slot"], f"{os.getpid()}-{next(self._names)}", None
        door = self._door.expect()
        try:
            actor, is_direct, first = await self._opened(number, name, header["loader"], door, reader)
            if door is not None and is_direct:
                pumps = await self._direct_pumps(actor, name, door[2], reader, first, writer)
            else:
                pumps = [_send(reader, actor, name, first), _fetch(actor, name, writer)]
            await _first_end(pumps)
            await actor.close.remote(name)
        except (*self._lost, NobodyWaits) as error:
            _log(f"slot {number} is lost: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
            self._lose(number, actor, error)
        finally:
            if door is not None:
                self._door.forget(door[2])
            with contextlib.suppress(ConnectionError):
                writer.close()

    async def _direct_pumps(
        self, actor: Any, name: str, password: str, reader: StreamReader, first: bytes, writer: StreamWriter
    ) -> list[Coroutine[Any, Any, None]]:
        """Return what passes bytes through the relay's own connection, and what notices the loss of its machine."""
        from_relay, to_relay = await self._door.entered(password)
        to_relay.write(first)
        return [_pump(reader, to_relay), _pump(from_relay, writer), _finish(actor.wait.remote(name))]

    async def _opened(
        self, number: int, name: str, loader: str, door: tuple[str, int, str] | None, reader: StreamReader
    ) -> tuple[Any, bool, bytes]:
        """Return the slot's actor with a relay started, whether that has its own connection, and what was received
        meanwhile. An actor that was lost since its last connection is replaced, once for all connections that wait."""
        received, opening = bytearray(), (name, loader, door)
        if (actor := self._actors.get(number)) is not None:
            try:
                return actor, await self._open(number, actor, opening, reader, received), bytes(received)
            except self._lost as error:
                self._lose(number, actor, error)
        actor = self._actors.get(number) or self._new(number)
        return actor, await self._open(number, actor, opening, reader, received), bytes(received)

    def _new(self, number: int) -> Any:
        """Return a new actor, which may wait for a GPU. One that still waits when nothing is avoided any more is
        replaced by the next connection: the machine may be back."""
        loop = asyncio.get_running_loop()
        avoided = [node for node, until in self._avoided.items() if until > loop.time()] if self._can_avoid else []
        options = {"label_selector": {NODE_LABEL: f"!in({','.join(avoided)})"}} if avoided else {}
        actor = self._actors[number] = self._class.options(**options).remote()
        here = self._here[number] = asyncio.ensure_future(actor.here.remote())
        here.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits
        if avoided:
            loop.call_later(AVOID_S, self._forget_waiting, number, actor, here)
        return actor

    async def _open(
        self, number: int, actor: Any, opening: tuple[Any, ...], reader: StreamReader, received: bytearray
    ) -> bool:
        """Start a relay once the actor is there, and receive meanwhile; return whether it has its own connection. When
        the connection ends before, the actor of a slot that has never started is dropped, and with it the request for a
        GPU."""
        here = self._here[number]
        while not here.done() and not reader.at_eof():
            reading = asyncio.create_task(reader.read(PIECE_BYTES))
            either: list[asyncio.Future[Any]] = [here, reading]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
                await asyncio.wait([reading])
            if not reading.cancelled():
                received += reading.result()
        if not here.done():
            if number not in self._started:
                self._forget(number, actor)
            raise NobodyWaits("no slot came free in time")
        await here
        is_direct = bool(await actor.open.remote(*opening))
        self._started.add(number)
        return is_direct

    def _forget_waiting(self, number: int, actor: Any, here: asyncio.Future[str]) -> None:
        if not here.done():
            self._forget(number, actor)

    def _lose(self, number: int, actor: Any, error: BaseException) -> None:
        """Drop a lost actor. Of one that is unreachable the whole machine is avoided: a process that ends alone is
        reported by its machine."""
        here = self._here.get(number) if self._actors.get(number) is actor else None
        if isinstance(error, self._unreachable) and here is not None and here.done() and here.exception() is None:
            self._avoided[here.result()] = asyncio.get_running_loop().time() + AVOID_S
        self._forget(number, actor)

    def _forget(self, number: int, actor: Any) -> None:
        """Drop an actor, unless another connection has replaced it."""
        if actor is not None and self._actors.get(number) is actor:
            del self._actors[number], self._here[number]

    async def close(self) -> None:
        """End all relays, as far as their slots answer in time."""
        calls = [asyncio.ensure_future(actor.close_all.remote()) for actor in self._actors.values()]
        if calls:
            await asyncio.wait(calls, timeout=END_S)


async def _finish(call: Any) -> Any:
    """Return the result of a call, which continues when the waiting task is cancelled: a cancelled call ends Ray's
    client."""
    return await asyncio.shield(asyncio.ensure_future(call))


async def _send(reader: StreamReader, actor: Any, name: str, content: bytes) -> None:
    while content:
        await _finish(actor.write.remote(name, content))
        content = await reader.read(PIECE_BYTES)


async def _fetch(actor: Any, name: str, writer: StreamWriter) -> None:
    while content := await _finish(actor.read.remote(name, PIECE_BYTES)):
        try:
            writer.write(content)
            await writer.drain()
        except (BrokenPipeError, ConnectionResetError):
            return  # nobody reads any more


async def _first_end(pumps: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run the pumps until one ends, and end the others. Raises its error."""
    tasks = [asyncio.ensure_future(pump) for pump in pumps]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def _pump(reader: StreamReader, writer: StreamWriter) -> None:
    """Pass bytes on until either end is closed."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while content := await reader.read(PIECE_BYTES):
            writer.write(content)
            await writer.drain()
    writer.close()


async def _serve(ray: Any, options: Options) -> None:
    door = Door()
    if "://" not in options.address:  # this machine belongs to the cluster
        with contextlib.suppress(OSError):
            await door.open(ray.util.get_node_ip_address())
    slots = Slots(ray, options.resources, door)
    await asyncio.start_unix_server(slots.connect, options.socket, limit=PIECE_BYTES)
    _say({"is": "ready", "gpus": int(ray.cluster_resources().get("GPU", 0)), "version": ray.__version__})
    await asyncio.to_thread(sys.stdin.buffer.read)
    await slots.close()


def main() -> None:
    """Reach the cluster, and serve until stdin ends."""
    options = Options(**json.loads(sys.argv[1]))
    try:
        import ray
    except ImportError as error:
        _say({"is": "failed", "why": "missing", "message": str(error)})
        return
    logging.disable(logging.WARNING)
    try:
        ray.init(**_arguments(options))
    except Exception as error:  # of many types, none of which is documented: the command words it
        _say({"is": "failed", "why": "unreachable", "message": f"{type(error).__name__}: {error}"})
        return
    try:
        asyncio.run(_serve(ray, options))
    finally:
        ray.shutdown()


def _arguments(options: Options) -> dict[str, Any]:
    shared = {"log_to_driver": False, "configure_logging": False, "namespace": "kernel-lsp"}
    if options.address:
        return {"address": options.address, **({} if "://" in options.address else shared)}
    return {
        **shared,
        "address": "local",
        "num_cpus": 0,
        **({} if options.n_gpus is None else {"num_gpus": options.n_gpus}),
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_temp_dir": options.folder,
    }


def _say(message: dict[str, Any]) -> None:
    """Write a line to the stdout of the start; Ray's prints go to stderr."""
    os.write(_STDOUT, json.dumps(message).encode() + b"\n")


def _log(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    _STDOUT = os.dup(1)
    os.dup2(2, 1)
    main()
