"""The bridge's slots, with actors that are made here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp.process.ray_bridge import NODE_LABEL, Door, Slots


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

    async def _open(self, *_: object) -> bool:
        await self.is_there.wait()
        if self.loss is not None:
            raise self.loss
        self.n_relays += 1
        return False

    async def _close(self, name: str) -> None: ...

    async def _read(self, name: str, n_bytes: int) -> bytes:
        return b""

    async def _write(self, name: str, content: bytes) -> None: ...


class Writer:
    """The other end of a connection that nobody reads."""

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("loss", "options"), [(Lost(), {}), (Unreachable(), {"label_selector": {NODE_LABEL: "!in(a-node)"}})]
)
async def test_a_slot_that_comes_back_too_late_is_used_by_the_next_connection(
    loss: Lost, options: dict[str, Any]
) -> None:
    """Keep the new actor away from a machine that Ray cannot reach."""
    made: list[Actor] = []

    def make(**options: Any) -> Any:
        def remote() -> Actor:
            made.append(Actor(options))
            return made[-1]

        return SimpleNamespace(remote=remote)

    ray: Any = SimpleNamespace(
        __version__="2.60.0",
        exceptions=SimpleNamespace(RayError=Lost, ActorUnavailableError=Unreachable),
        remote=lambda **_: lambda _: SimpleNamespace(options=make),
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
