"""The server after its handshake: reads messages, hands them out, and ends with everything that it started."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from kernel_lsp.server.handlers import register
from kernel_lsp.server.language_server import KernelLanguageServer
from kernel_lsp.server.protocol.handshake import READ_BYTES, Connection, Initialized

PARENT_CHECK_S = 2.0
FLUSH_S = 0.5
SETTINGS_CHECK_S = 1.0
"""Between two looks at when the settings' files were written: some microseconds each."""


def run(connection: Connection, initialized: Initialized) -> int:
    """Serve until `exit`, the end of the input, a signal, or the client's death. Does not come back: threads that wait
    for something must not keep the process."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("pygls").setLevel(logging.CRITICAL)  # what it would say, `report_server_error` says
    status = asyncio.run(_serve(connection, initialized))
    sys.stderr.flush()
    os._exit(status)


async def _serve(connection: Connection, initialized: Initialized) -> int:
    server = KernelLanguageServer(initialized)
    register(server)
    gc.freeze()  # the modules are never garbage, and looking through them takes as long as a person notices
    writer = await _Writer.open(connection.stdout, server.stopped)
    server.protocol.set_writer(writer)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stopped.set)
    server.analyses.start()
    helpers = [asyncio.create_task(work) for work in _endless(connection, server)]
    await server.stopped.wait()
    for helper in helpers:
        helper.cancel()
    await server.close()
    await writer.flush()
    return server.exit_status


def _endless(connection: Connection, server: KernelLanguageServer) -> tuple[Coroutine[Any, Any, None], ...]:
    return _read(connection, server), _watch_client(server), _watch_settings(server)


async def _read(connection: Connection, server: KernelLanguageServer) -> None:
    """Hand out messages in order. Between two of them everything else gets its turn."""
    reader = asyncio.StreamReader()
    stdin = os.fdopen(connection.stdin, "rb", buffering=0)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdin)
    bodies = list(connection.waiting)
    while True:
        for body in bodies:
            server.protocol.receive(body)
            await asyncio.sleep(0)
        data = await reader.read(READ_BYTES)
        if not data:
            server.stopped.set()
            return
        bodies = list(connection.frames.feed(data))


async def _watch_client(server: KernelLanguageServer) -> None:
    """A client that was killed may leave its end of the pipe to a child of its own."""
    pid = server.client_process_id
    while isinstance(pid, int) and not isinstance(pid, bool) and pid > 0:
        await asyncio.sleep(PARENT_CHECK_S)
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            server.stopped.set()
            return
        except (PermissionError, OverflowError):
            return


async def _watch_settings(server: KernelLanguageServer) -> None:
    """A client may be unable to watch files, and the pyproject.toml that counts may lie above what it watches."""
    while True:
        await asyncio.sleep(SETTINGS_CHECK_S)
        server.settings.look()


class _Writer:
    """The client's end. Never blocks: a client that does not read is waited for in memory."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport

    @classmethod
    async def open(cls, stdout: int, stopped: asyncio.Event) -> _Writer:
        loop = asyncio.get_running_loop()
        pipe = os.fdopen(stdout, "wb", buffering=0)
        transport, _ = await loop.connect_write_pipe(lambda: _Watch(stopped), pipe)
        return cls(transport)

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    async def flush(self) -> None:
        """Wait until the client has everything, up to a bound."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while self._transport.get_write_buffer_size():
                    await asyncio.sleep(0.005)


class _Watch(asyncio.Protocol):
    """Notices when the client closes its end."""

    def __init__(self, stopped: asyncio.Event) -> None:
        self._stopped = stopped

    def connection_lost(self, exc: Exception | None) -> None:
        self._stopped.set()
