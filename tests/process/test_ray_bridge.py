"""The bridge's slots, with actors that are made here."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kernel_lsp.process.ray_bridge import NODE_LABEL, Door, Slot, SlotByCalls, Slots


class Lost(Exception):
    """Stand for Ray's errors."""


class Unreachable(Lost):
    """Stand for Ray's ActorUnavailableError."""


class Actor:
    """An actor whose relay ends at once. Until `is_there` is set it waits for a GPU."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.is_there, self.n_relays = asyncio.Event(), 0
        self.loss: Lost | None = None
        for name in ("here", "open", "close", "read", "write"):
            setattr(self, name, SimpleNamespace(remote=getattr(self, f"_{name}")))

    async def _here(self) -> str:
        await self.is_there.wait()
        return "a-node"

    async def _open(self, *_: object) -> None:
        await self.is_there.wait()
        if self.loss is not None:
            raise self.loss
        self.n_relays += 1

    async def _close(self, name: str) -> None: ...

    async def _read(self, name: str, n_bytes: int) -> bytes:
        return b""

    async def _write(self, name: str, content: bytes) -> None: ...


class Writer:
    """The other end of a connection that nobody reads."""

    def close(self) -> None: ...


class DirectActor:
    """An actor whose call runs in a thread."""

    def __init__(self) -> None:
        self.has_ended = threading.Event()
        self.run = SimpleNamespace(remote=self._run)

    async def _run(self, *door: Any) -> bool:
        try:
            return await asyncio.to_thread(Slot().run, *door)
        finally:
            self.has_ended.set()


def slots_of(make: Callable[[type, Mapping[str, Any]], Any], door: Door) -> Slots:
    """Return slots whose actors, of that class and with those options, are made here."""

    def remote_class(slot: type) -> Any:
        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=lambda: make(slot, options)))

    ray: Any = SimpleNamespace(
        __version__="2.60.0",
        exceptions=SimpleNamespace(RayError=Lost, ActorUnavailableError=Unreachable),
        remote=lambda **_: remote_class,
    )
    return Slots(ray, {}, door)


@pytest.mark.parametrize(
    ("loss", "options"), [(Lost(), {}), (Unreachable(), {"label_selector": {NODE_LABEL: "!in(a-node)"}})]
)
async def test_a_slot_that_comes_back_too_late_is_used_by_the_next_connection(
    loss: Lost, options: dict[str, Any]
) -> None:
    """Keep the new actor away from a machine that Ray cannot reach."""
    made: list[Actor] = []

    def make(_: type, options: Mapping[str, Any]) -> Actor:
        made.append(Actor(options))
        return made[-1]

    slots, writer = slots_of(make, Door()), Writer()

    def connect() -> tuple[asyncio.StreamReader, asyncio.Task[None]]:
        reader = asyncio.StreamReader()
        reader.feed_data(json.dumps({"slot": 0, "loader": ""}).encode() + b"\n")
        return reader, asyncio.create_task(slots.connect(reader, writer))  # type: ignore[arg-type]

    async def until_made(n: int) -> None:
        async with asyncio.timeout(5.0):
            while len(made) < n:
                await asyncio.sleep(0)

    _, first = connect()
    await until_made(1)
    made[0].is_there.set()
    await first
    made[0].loss = loss
    reader, second = connect()
    await until_made(2)
    reader.feed_eof()  # the command has given it up
    await asyncio.sleep(0.05)
    _, third = connect()
    await asyncio.sleep(0.05)
    made[1].is_there.set()
    async with asyncio.timeout(5.0):
        await asyncio.gather(second, third)
    assert len(made) == 2
    assert [each.options for each in made] == [{}, options]
    assert made[1].n_relays == 1, "the connection that was given up has none"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `ray` name this machine."""
    ray, context = ModuleType("ray"), SimpleNamespace(get_node_id=lambda: "a-node")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context, raising=False)
    monkeypatch.setitem(sys.modules, "ray", ray)


async def _answered(slots: Slots, sent: bytes) -> bytes:
    """Return the answer of a relay that repeats a line."""
    loader = "import sys; b = sys.stdin.buffer; print(b.readline().decode(), end='', flush=True); b.read()"
    server = await asyncio.start_server(slots.connect, "127.0.0.1", 0)
    async with server, asyncio.timeout(20.0):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(json.dumps({"slot": 0, "loader": loader}).encode() + b"\n" + sent)
        answer = await reader.readline()
        writer.close()
    return answer


async def test_a_slot_that_reaches_the_bridge_serves_all_its_connections_in_one_call(node: None) -> None:
    """Ray wakes an actor that waits for calls a hundred times a second."""
    made, door = list[DirectActor](), Door()

    def make(slot: type, _: Mapping[str, Any]) -> DirectActor:
        assert slot is Slot
        made.append(DirectActor())
        return made[-1]

    await door.open("127.0.0.1")
    slots = slots_of(make, door)
    assert [await _answered(slots, line) for line in (b"one\n", b"two\n")] == [b"one\n", b"two\n"]
    (actor,) = made
    assert not actor.has_ended.is_set()
    await slots.close()
    assert actor.has_ended.wait(5.0)


async def test_a_slot_that_does_not_reach_the_bridge_is_replaced_by_one_that_is_called(node: None) -> None:
    made, door = list[type](), Door()

    def make(slot: type, options: Mapping[str, Any]) -> Any:
        made.append(slot)
        if slot is Slot:
            return DirectActor()
        actor = Actor(options)
        actor.is_there.set()
        return actor

    with socket.create_server(("127.0.0.1", 0)) as closed:
        door.address = closed.getsockname()[:2]
    slots = slots_of(make, door)
    assert await _answered(slots, b"one\n") == b"", "its relay ends at once"
    assert await _answered(slots, b"two\n") == b""
    assert made == [Slot, SlotByCalls]
