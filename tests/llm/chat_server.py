"""A server that speaks OpenAI's chat protocol over real HTTP, from a script: what providers do, well and badly.

It proves plumbing. It is no model, and what a run against it finds says nothing about models.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

CHUNK_CHARACTERS = 80
START_DEADLINE_S = 10.0


@dataclass(frozen=True)
class Says:
    """A reply, streamed. `pause_s` passes before each piece; after `drop_after` pieces the connection is cut."""

    text: str
    finish: str = "stop"
    pause_s: float = 0.0
    drop_after: int | None = None
    has_usage: bool = True


@dataclass(frozen=True)
class Refuses:
    """An HTTP error."""

    status: int
    message: str = "no"
    headers: dict[str, str] = field(default_factory=dict)


Script = Callable[[dict[str, Any], int], Says | Refuses]
"""From the request's JSON and how often this prompt was asked before."""


class ChatServer:
    """Use as a context manager; it listens on a free port of 127.0.0.1 in a thread of its own."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._ready = threading.Event()
        self._asked: dict[str, int] = {}
        self.port = 0
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> ChatServer:
        self._thread.start()
        assert self._ready.wait(START_DEADLINE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_DEADLINE_S)

    # --- below: HTTP/1.1, one request per connection

    def _serve(self) -> None:
        self._loop.run_until_complete(self._run())
        self._loop.close()

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await self._read(reader)
            prompt = json.dumps(request["messages"])
            n_before = self._asked.get(prompt, 0)
            self._asked[prompt] = n_before + 1
            self.requests.append(request)
            answer = self._script(request, n_before)
            if isinstance(answer, Refuses):
                await _refuse(writer, answer)
            else:
                await _stream(writer, answer, len(prompt))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # a client may hang up at any time, and the test may be over
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        self.keys.add(headers.get("authorization", "").removeprefix("Bearer "))
        return json.loads(await reader.readexactly(int(headers["content-length"])))


async def _refuse(writer: asyncio.StreamWriter, answer: Refuses) -> None:
    body = json.dumps({"error": {"message": answer.message, "type": "error", "code": str(answer.status)}}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    lines = [f"HTTP/1.1 {answer.status} Error", *(f"{k}: {v}" for k, v in {**headers, **answer.headers}.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()


async def _stream(writer: asyncio.StreamWriter, answer: Says, n_prompt_characters: int) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    )
    pieces = [answer.text[at : at + CHUNK_CHARACTERS] for at in range(0, len(answer.text), CHUNK_CHARACTERS)]
    for number, piece in enumerate(pieces):
        if number == answer.drop_after:
            return
        await asyncio.sleep(answer.pause_s)
        await _send(writer, _chunk({"content": piece}))
    await _send(writer, _chunk({}, finish=answer.finish))
    if answer.has_usage:
        usage = {"prompt_tokens": n_prompt_characters // 4, "completion_tokens": len(answer.text) // 4}
        usage["total_tokens"] = sum(usage.values())
        await _send(writer, {**_chunk({}), "choices": [], "usage": usage})
    writer.write(_framed(b"data: [DONE]\n\n") + _framed(b""))
    await writer.drain()


def _chunk(delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": finish}
    return {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "scripted", "choices": [choice]}


async def _send(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    writer.write(_framed(f"data: {json.dumps(event)}\n\n".encode()))
    await writer.drain()


def _framed(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
