"""The bridge's slots, with actors that are made here."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from kernel_lsp.process.ray_bridge import Door, Slots


class Lost(Exception):
    """Stand for Ray's errors."""


class Actor:
    """An actor whose relay ends at once. Until `is_there` is set it waits for a GPU."""

    def __init__(self) -> None:
        self.is_there, self.is_lost = asyncio.Event(), False
        for name in ("open", "close", "read", "write"):
            setattr(self, name, SimpleNamespace(remote=getattr(self, f"_{name}")))

    async def _open(self, *_: object) -> bool:
        await self.is_there.wait()
        if self.is_lost:
            raise Lost
        return False

    async def _close(self, name: str) -> None: ...

    async def _read(self, name: str, n_bytes: int) -> bytes:
        return b""

    async def _write(self, name: str, content: bytes) -> None: ...


class Writer:
    """The other end of a connection that nobody reads."""

    def close(self) -> None: ...


async def test_a_slot_that_comes_back_too_late_is_used_by_the_next_connection() -> None:
    made: list[Actor] = []

    def make() -> Actor:
        made.append(Actor())
        return made[-1]

    ray: Any = SimpleNamespace(
        exceptions=SimpleNamespace(RayError=Lost), remote=lambda **_: lambda _: SimpleNamespace(remote=make)
    )
    slots, writer = Slots(ray, {}, Door()), Writer()

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
    made[0].is_lost = True
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
