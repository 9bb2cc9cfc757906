"""Connect UNIX sockets to slots of a Ray cluster; a program of its own, and the only one that imports Ray.

    PYTHON ray_bridge.py OPTIONS      OPTIONS is JSON: see `Options`

A slot is an actor that reserves a GPU. Behind each connection a relay (`worker/relay.py`) runs there, so slots need Ray
and torch, and nothing of ours. The first line of a connection is ``{"slot": number, "loader": text}``, all else is the
relay's. Where this machine belongs to the cluster, slots and relays connect back by TCP: an actor's call costs 4 ms of
processor time. The first line on stdout says that the cluster was reached, or why not. The end of stdin ends all.
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
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

Streams = tuple[StreamReader, StreamWriter]
Serve = Callable[[StreamReader, bytes, StreamWriter], Awaitable[None]]
"""Serve a connection of the command by a relay, given what was received of it before."""

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
    """An actor beside one GPU that starts a relay, with a connection of its own to the bridge, for each line that the
    bridge sends, all within one call: Ray wakes an actor that waits for calls a hundred times a second, which takes 6
    ms of processor time. It travels by value: it may use nothing of this module."""

    def __init__(self) -> None:
        import os

        self.ends_with_us, self.leash = os.pipe()

    def run(self, host: str, port: int, password: str) -> bool:
        """Start relays until the bridge closes its connection, and end them. Return whether it was reached."""
        import json
        import os
        import socket
        import subprocess
        import threading

        import ray

        def connected(password: str) -> socket.socket:
            connection = socket.create_connection((host, port), timeout=2.0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(password.encode() + b"\n")
            connection.settimeout(None)
            return connection

        try:
            bridge = connected(password)
            bridge.sendall(str(ray.get_runtime_context().get_node_id()).encode() + b"\n")
        except OSError:
            return False
        relays: list[subprocess.Popen[bytes]] = []
        try:
            for line in bridge.makefile("rb"):
                asked = json.loads(line)
                with connected(asked["password"]) as connection:
                    relay = self.start(asked["loader"], connection)
                threading.Thread(target=relay.wait, daemon=True).start()  # no zombie until the next one starts
                relays = [each for each in [*relays, relay] if each.poll() is None]
        except OSError:
            pass  # the bridge has ended
        os.close(self.leash)
        for relay in relays:  # Ray would kill them before they have removed their files
            relay.wait()
        return True

    def start(self, loader: str, connection: Any) -> Any:
        """Start a relay on a socket. It ends with that, and with this process."""
        import os
        import subprocess
        import sys

        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", loader, "relay", "exec"],
            stdin=connection.fileno(),
            stdout=connection.fileno(),
            env={**os.environ, "KERNEL_LSP_LEASH": str(self.ends_with_us)},
            pass_fds=[self.ends_with_us],
            start_new_session=True,
        )


class SlotByCalls(Slot):
    """An actor whose relays' bytes go through its calls: it cannot reach the bridge."""

    def __init__(self) -> None:
        super().__init__()
        self.relays: dict[str, Any] = {}

    async def here(self) -> str:
        """Return the machine's id in the cluster, once the actor has started."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    async def open(self, name: str, loader: str) -> None:
        """Start a relay."""
        import asyncio
        import socket

        ours, theirs = socket.socketpair()
        with theirs:
            relay = self.start(loader, theirs)
        self.relays[name] = relay, *await asyncio.open_connection(sock=ours, limit=1 << 24)

    async def write(self, name: str, content: bytes) -> None:
        """Pass bytes to a relay, and wait until it has taken most of them. One that has ended takes none."""
        import contextlib

        with contextlib.suppress(ConnectionError, KeyError):
            _, _, writer = self.relays[name]
            writer.write(content)
            await writer.drain()

    async def read(self, name: str, n_bytes: int) -> bytes:
        """Wait for a relay's bytes. None when it has ended."""
        _, reader, _ = self.relays[name]
        try:
            return bytes(await reader.read(n_bytes))
        except ConnectionError:
            return b""

    async def close(self, name: str) -> None:
        """End a relay, which removes its files."""
        import asyncio

        if name in self.relays:
            relay, _, writer = self.relays[name]
            relay.terminate()
            writer.close()
            await asyncio.to_thread(relay.wait)  # known until then: `close_all` waits, too
            self.relays.pop(name, None)

    async def close_all(self) -> None:
        """End all relays: Ray would kill them before they have removed their files."""
        import asyncio

        await asyncio.gather(*map(self.close, list(self.relays)))


class NotReached(ConnectionError):
    """A slot cannot reach the bridge."""


class Door:
    """A TCP port for slots and relays, each of which sends a password that it was given. Without an address it is
    closed."""

    def __init__(self) -> None:
        self.address: tuple[str, int] | None = None
        self._expected: dict[str, asyncio.Future[Streams]] = {}

    async def open(self, host: str) -> None:
        """Listen at an address of this machine that the cluster reaches."""
        server = await asyncio.start_server(self._enter, host, 0, limit=PIECE_BYTES)
        self.address = server.sockets[0].getsockname()[:2]

    def expect(self) -> tuple[str, asyncio.Future[Streams]]:
        """Return a new password and the connection that comes with it; it is refused once that is done or cancelled."""
        password, entered = secrets.token_hex(32), asyncio.get_running_loop().create_future()
        self._expected[password] = entered
        entered.add_done_callback(lambda _: self._expected.pop(password))
        return password, entered

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


class DirectSlot:
    """The bridge's side of a `Slot`. `here` is the machine's id in the cluster, once the actor has started."""

    def __init__(self, actor: Any, door: Door) -> None:
        assert door.address is not None
        self._actor, self._door = actor, door  # without the actor Ray drops its request for a GPU
        password, self._entered = door.expect()
        self._running = asyncio.ensure_future(actor.run.remote(*door.address, password))
        self._running.add_done_callback(partial(_fail, self._entered))
        self.here = asyncio.ensure_future(_first_line(self._entered))

    async def open(self, loader: str) -> Serve:
        """Start a relay; return what serves a connection by it."""
        password, entered = self._door.expect()
        self._entered.result()[1].write(json.dumps({"password": password, "loader": loader}).encode() + b"\n")
        try:
            await asyncio.wait([entered, self._running], timeout=ENTER_S, return_when=asyncio.FIRST_COMPLETED)
            if self._running.done():
                self._running.result()
            if not entered.done():
                raise ConnectionError("no relay has connected")
        finally:
            entered.cancel()
        return partial(self._serve, *entered.result())

    def forget(self) -> None:
        """End its relays and its call, without waiting."""
        if self.here.done() and self._entered.exception() is None:
            self._entered.result()[1].close()

    async def close(self) -> None:
        """End its relays."""
        self.forget()
        if self.here.done():
            await asyncio.wait([self._running])

    async def _serve(
        self, from_relay: StreamReader, to_relay: StreamWriter, reader: StreamReader, first: bytes, writer: StreamWriter
    ) -> None:
        to_relay.write(first)
        lost = _finish(self._running)  # by Ray, when no packet of its machine comes any more
        await _first_end([_pump(reader, to_relay), _pump(from_relay, writer), lost])


class CalledSlot:
    """The bridge's side of a `SlotByCalls`, as `DirectSlot`."""

    def __init__(self, actor: Any) -> None:
        self._actor, self._names = actor, itertools.count()
        self.here: asyncio.Future[str] = asyncio.ensure_future(actor.here.remote())

    async def open(self, loader: str) -> Serve:
        """Start a relay; return what serves a connection by it."""
        name = str(next(self._names))
        await self._actor.open.remote(name, loader)
        return partial(self._serve, name)

    def forget(self) -> None:
        """Do nothing: Ray ends an actor that nobody refers to."""

    async def close(self) -> None:
        """End its relays."""
        await self._actor.close_all.remote()

    async def _serve(self, name: str, reader: StreamReader, first: bytes, writer: StreamWriter) -> None:
        await _first_end([_send(reader, self._actor, name, first), _fetch(self._actor, name, writer)])
        await self._actor.close.remote(name)


class NobodyWaits(Exception):
    """A connection ended before its slot was there."""


class Slots:
    """The actors of this program, each made when it is first needed, and anew after its loss."""

    def __init__(self, ray: Any, resources: dict[str, Any], door: Door) -> None:
        options = {"num_cpus": 0, "max_restarts": 0, **resources}
        self._direct = ray.remote(**options)(Slot)
        self._called = ray.remote(max_concurrency=N_CALLS, **options)(SlotByCalls)
        self._can_avoid = tuple(map(int, ray.__version__.split(".")[:2])) >= AVOIDS_FROM
        self._unreachable = ray.exceptions.ActorUnavailableError
        self._avoided: dict[str, float] = {}
        """Times of the loop up to which lost machines are avoided, by their ids."""
        self._lost = (ray.exceptions.RayError, ConnectionError, TimeoutError)
        self._door = door
        self._slots: dict[int, DirectSlot | CalledSlot] = {}
        self._started: set[int] = set()
        """Slots that were there once. Their actors go on starting when nobody waits: the slot is tried again soon."""

    async def connect(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one connection until either end closes it, or the slot is lost."""
        header = json.loads(await reader.readline())
        number, slot = header["slot"], None
        try:
            slot, serve, first = await self._opened(number, header["loader"], reader)
            await serve(reader, first, writer)
        except (*self._lost, NobodyWaits) as error:
            _log(f"slot {number} is lost: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
            self._lose(number, slot, error)
        finally:
            if slot is not None and self._slots.get(number) is not slot:
                slot.forget()  # it was replaced
            with contextlib.suppress(ConnectionError):
                writer.close()

    async def _opened(
        self, number: int, loader: str, reader: StreamReader
    ) -> tuple[DirectSlot | CalledSlot, Serve, bytes]:
        """Return the slot, what serves a connection by a new relay, and what was received meanwhile. An actor that was
        lost since its last connection is replaced, once for all connections that wait, and one that cannot reach the
        bridge by one whose calls pass bytes."""
        received, known = bytearray(), self._slots.get(number)
        slot = known or self._new(number)
        try:
            return slot, await self._open(number, slot, loader, reader, received), bytes(received)
        except NotReached:
            self._door.address = None
            self._forget(number, slot)
        except self._lost as error:
            if known is None:
                raise
            self._lose(number, slot, error)
        slot = self._slots.get(number) or self._new(number)
        return slot, await self._open(number, slot, loader, reader, received), bytes(received)

    def _new(self, number: int) -> DirectSlot | CalledSlot:
        """Return a new slot, which may wait for a GPU. One that still waits when nothing is avoided any more is
        replaced by the next connection: the machine may be back."""
        loop = asyncio.get_running_loop()
        avoided = [node for node, until in self._avoided.items() if until > loop.time()] if self._can_avoid else []
        options = {"label_selector": {NODE_LABEL: f"!in({','.join(avoided)})"}} if avoided else {}
        is_direct = self._door.address is not None
        actor = (self._direct if is_direct else self._called).options(**options).remote()
        slot = self._slots[number] = DirectSlot(actor, self._door) if is_direct else CalledSlot(actor)
        slot.here.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits
        if avoided:
            loop.call_later(AVOID_S, self._forget_waiting, number, slot)
        return slot

    async def _open(
        self, number: int, slot: DirectSlot | CalledSlot, loader: str, reader: StreamReader, received: bytearray
    ) -> Serve:
        """Start a relay once the actor is there, and receive meanwhile: relays of connections that ended meanwhile
        would all start with the actor, each a process of 0.1 s. When the connection ends before, the actor of a slot
        that has never started is dropped, and with it the request for a GPU."""
        while not slot.here.done() and not reader.at_eof():
            reading = asyncio.create_task(reader.read(PIECE_BYTES))
            either: list[asyncio.Future[Any]] = [slot.here, reading]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
                await asyncio.wait([reading])
            if not reading.cancelled():
                received += reading.result()
        if not slot.here.done():
            if number not in self._started:
                self._forget(number, slot)
            raise NobodyWaits("no slot came free in time")
        await slot.here
        serve = await slot.open(loader)
        self._started.add(number)
        return serve

    def _forget_waiting(self, number: int, slot: DirectSlot | CalledSlot) -> None:
        if not slot.here.done():
            self._forget(number, slot)

    def _lose(self, number: int, slot: DirectSlot | CalledSlot | None, error: BaseException) -> None:
        """Drop a lost slot. Of one that is unreachable the whole machine is avoided: a process that ends alone is
        reported by its machine."""
        if slot is None or self._slots.get(number) is not slot:
            return
        if isinstance(error, self._unreachable) and slot.here.done() and slot.here.exception() is None:
            self._avoided[slot.here.result()] = asyncio.get_running_loop().time() + AVOID_S
        self._forget(number, slot)

    def _forget(self, number: int, slot: DirectSlot | CalledSlot) -> None:
        """Drop a slot, unless another connection has replaced it."""
        if self._slots.get(number) is slot:
            del self._slots[number]
            slot.forget()

    async def close(self) -> None:
        """End all relays, as far as their slots answer in time."""
        ends = [asyncio.ensure_future(slot.close()) for slot in self._slots.values()]
        if ends:
            await asyncio.wait(ends, timeout=END_S)


async def _first_line(entered: asyncio.Future[Streams]) -> str:
    reader, _ = await entered
    return (await reader.readline()).decode().strip()


def _fail(entered: asyncio.Future[Streams], running: asyncio.Future[bool]) -> None:
    """End the wait for a slot whose call has ended before it connected."""
    if not running.cancelled():
        error = running.exception()
        if not entered.done():
            entered.set_exception(error or NotReached("the slot does not reach the bridge"))


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
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while content := await reader.read(PIECE_BYTES):
                writer.write(content)
                await writer.drain()
    finally:
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
