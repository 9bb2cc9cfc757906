"""The server after its handshake: read and dispatch messages, and stop every child process at the end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer

from kernel_lsp import __version__
from kernel_lsp.server.client import Client
from kernel_lsp.server.handlers import HANDLERS, REACTIONS
from kernel_lsp.server.protocol.handshake import READ_BYTES, Connection, Initialized
from kernel_lsp.server.protocol.rpc import Protocol
from kernel_lsp.server.settings import EditorSettings
from kernel_lsp.server.state import State

logger = logging.getLogger(__name__)


class KernelLanguageServer(LanguageServer):
    """One client's server. Handlers get the state, and reach the client through it: nothing here."""

    protocol: Protocol

    def __init__(self, initialized: Initialized) -> None:
        super().__init__("kernel-lsp", __version__, protocol_cls=Protocol)
        self.state = State(Client(self, self.protocol, initialized), initialized, REACTIONS)
        for method, handler in HANDLERS.items():
            self.feature(method)(partial(handler, self.state))

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Log the error only: the requester already has a reply."""
        is_ours = not isinstance(error, JsonRpcInvalidParams)
        logger.log(logging.ERROR if is_ours else logging.INFO, "%s: %s", getattr(source, "__name__", source), error)


PARENT_CHECK_S = 2.0
FLUSH_S = 0.5
SETTINGS_CHECK_S = 1.0
"""Interval between checks of the settings files' modification times, in seconds; each costs some microseconds."""


def run(connection: Connection, initialized: Initialized) -> int:
    """Serve until `exit`, the end of input, a signal, or the client's death. Does not return: blocked threads must not
    keep the process alive."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("pygls").setLevel(logging.CRITICAL)  # `report_server_error` reports the same
    status = asyncio.run(_serve(connection, initialized))
    sys.stderr.flush()
    os._exit(status)


async def _serve(connection: Connection, initialized: Initialized) -> int:
    server = KernelLanguageServer(initialized)
    state = server.state
    gc.freeze()  # modules are never garbage, and scanning them takes noticeable time
    writer = await _Writer.open(connection.stdout, state.stopped)
    server.protocol.set_writer(writer)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, state.stopped.set)
    state.analyses.start()
    helpers = [asyncio.create_task(work) for work in _endless(connection, state)]
    await state.stopped.wait()
    for helper in helpers:
        helper.cancel()
    await state.close()
    await writer.flush()
    return state.exit_status


def _endless(connection: Connection, state: State) -> tuple[Coroutine[Any, Any, None], ...]:
    return (
        _read(connection, state.client.protocol, state.stopped),
        _watch_client(state.client.process_id, state.stopped),
        _watch_settings(state.settings),
    )


async def _read(connection: Connection, protocol: Protocol, stopped: asyncio.Event) -> None:
    """Dispatch messages in order, yielding to other tasks between two of them."""
    reader = asyncio.StreamReader()
    stdin = os.fdopen(connection.stdin, "rb", buffering=0)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdin)
    bodies = list(connection.waiting)
    while True:
        for body in bodies:
            protocol.receive(body)
            await asyncio.sleep(0)
        data = await reader.read(READ_BYTES)
        if not data:
            stopped.set()
            return
        bodies = list(connection.frames.feed(data))


async def _watch_client(pid: object, stopped: asyncio.Event) -> None:
    """Watch the client: a killed client may leave its end of the pipe to a child process."""
    while isinstance(pid, int) and not isinstance(pid, bool) and pid > 0:
        await asyncio.sleep(PARENT_CHECK_S)
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            stopped.set()
            return
        except (PermissionError, OverflowError):
            return


async def _watch_settings(settings: EditorSettings) -> None:
    """Poll the settings files: a client may be unable to watch files, and the relevant pyproject.toml may lie above its
    root."""
    while True:
        await asyncio.sleep(SETTINGS_CHECK_S)
        settings.look()


class _Writer:
    """Write to the client without blocking: messages for a slow client are queued in memory."""

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
        """Wait until the client has read everything, up to a time limit."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while self._transport.get_write_buffer_size():
                    await asyncio.sleep(0.005)


class _Watch(asyncio.Protocol):
    """Detect that the client has closed its end."""

    def __init__(self, stopped: asyncio.Event) -> None:
        self._stopped = stopped

    def connection_lost(self, exc: Exception | None) -> None:
        self._stopped.set()
