"""A language client that says exactly what a test tells it to, also what no client should."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest_lsp

from kernel_lsp.process.tree import descendants, kill_tree

from . import fake_engine

DEADLINE_S = 60.0
SERVE = (sys.executable, "-m", "kernel_lsp", "serve")
MINIMAL: dict[str, Any] = {}
SILENCE = object()
"""The answer of a client that gives none."""
_SETS = Path(pytest_lsp.__file__).parent / "clients"
NEOVIM = json.loads((_SETS / "neovim_v0.11.0.json").read_text())["capabilities"]
_VSCODE_1_65 = json.loads((_SETS / "visual_studio_code_v1.65.2.json").read_text())["capabilities"]


def _merged(base: Any, more: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(more, dict):
        return more
    return {**base, **{key: _merged(base.get(key), value) for key, value in more.items()}}


VSCODE = _merged(
    _VSCODE_1_65,
    {
        "general": {"positionEncodings": ["utf-16"]},
        "notebookDocument": {"synchronization": {"dynamicRegistration": True}},
        "textDocument": {"diagnostic": {"dynamicRegistration": True}, "inlayHint": {"dynamicRegistration": True}},
        "workspace": {
            "diagnostics": {"refreshSupport": True},
            "inlayHint": {"refreshSupport": True},
            "workspaceEdit": {"changeAnnotationSupport": {"groupsOnLabel": True}},
        },
        "experimental": {"kernelLsp": {"jobs": True}},
    },
)
"""The recorded set of 1.65, with what VS Code has said since LSP 3.17 came out, and what our extension adds."""


class Client:
    """One server and what it said. `answers` maps a method that the server may request to its answer."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.notifications: list[tuple[str, Any]] = []
        self.requests: list[tuple[str, Any]] = []
        self.errors_without_id: list[dict[str, Any]] = []
        self.answers: dict[str, Callable[[Any], Any]] = {"workspace/configuration": _no_configuration}
        self.initialize_s = 0.0
        self.initialize_result: dict[str, Any] = {}
        self._ids = itertools.count(1)
        self._pending: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        return self.process.pid

    def send_bytes(self, body: bytes) -> None:
        assert self.process.stdin is not None
        with suppress(ConnectionResetError, BrokenPipeError):
            self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def send(self, message: Any) -> None:
        self.send_bytes(json.dumps(message).encode())

    def tell(self, method: str, params: Any = None) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def expect(self, id_: Any) -> asyncio.Future[dict[str, Any]]:
        """The reply to a request that the test writes itself."""
        self._pending[id_] = asyncio.get_running_loop().create_future()
        return self._pending[id_]

    async def reply(self, method: str, params: Any = None) -> dict[str, Any]:
        """The whole reply to a request, result or error."""
        id_ = next(self._ids)
        future = self.expect(id_)
        self.send({"jsonrpc": "2.0", "id": id_, "method": method, "params": params})
        return await asyncio.wait_for(future, DEADLINE_S)

    async def ask(self, method: str, params: Any = None) -> Any:
        """The result of a request that must not fail."""
        reply = await self.reply(method, params)
        assert "error" not in reply, reply["error"]
        return reply["result"]

    async def command(self, name: str, **argument: Any) -> Any:
        return await self.ask("workspace/executeCommand", {"command": f"kernelLsp.{name}", "arguments": [argument]})

    async def until(self, holds: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
        """Wait until it holds; what it then gives."""
        async with asyncio.timeout(deadline_s):
            while not (found := holds()):
                self._news.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), 0.2)
        return found

    def said(self, method: str) -> list[Any]:
        """The params of every notification of a method."""
        return [params for name, params in self.notifications if name == method]

    def asked(self, method: str) -> list[Any]:
        """The params of every request of the server."""
        return [params for name, params in self.requests if name == method]

    # --- documents

    def open(self, path: Path, text: str | None = None, version: int = 1) -> str:
        """Open a file, or another text as if it stood in it; returns its URI."""
        language = "python" if path.suffix == ".py" else "cuda"
        content = path.read_text() if text is None else text
        item = {"uri": path.as_uri(), "languageId": language, "version": version, "text": content}
        self.tell("textDocument/didOpen", {"textDocument": item})
        return path.as_uri()

    def change(self, uri: str, version: int, *changes: dict[str, Any]) -> None:
        identifier = {"uri": uri, "version": version}
        self.tell("textDocument/didChange", {"textDocument": identifier, "contentChanges": list(changes)})

    async def at(self, method: str, uri: str, line: int = 0, character: int = 0) -> Any:
        """A request about a place in a document."""
        place = {"line": line, "character": character}
        params = {
            "textDocument": {"uri": uri},
            "position": place,
            "range": {"start": place, "end": place},
            "context": {"diagnostics": []},
        }
        return await self.ask(f"textDocument/{method}", params)

    async def diagnostics(self, uri: str) -> list[dict[str, Any]]:
        """Pulled or waited for, by what the server offers."""
        if "diagnosticProvider" in self.initialize_result["capabilities"]:
            return (await self.ask("textDocument/diagnostic", {"textDocument": {"uri": uri}}))["items"]
        told = await self.until(lambda: [p for p in self.said("textDocument/publishDiagnostics") if p["uri"] == uri])
        return told[-1]["diagnostics"]

    # --- the end

    async def leave(self) -> int:
        """Shut down as the protocol says; the exit status."""
        await self.ask("shutdown")
        self.tell("exit")
        return await asyncio.wait_for(self.process.wait(), DEADLINE_S)

    async def _read(self) -> None:
        stdout = self.process.stdout
        assert stdout is not None
        with suppress(asyncio.IncompleteReadError):
            while True:
                header = await stdout.readuntil(b"\r\n\r\n")
                length = int(header.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                self._take(json.loads(await stdout.readexactly(length)))
                self._news.set()

    def _take(self, message: dict[str, Any]) -> None:
        if "method" in message and "id" in message:
            self.requests.append((message["method"], message.get("params")))
            answer = self.answers.get(message["method"], lambda _: None)(message.get("params"))
            if answer is not SILENCE:
                self.send({"jsonrpc": "2.0", "id": message["id"], "result": answer})
        elif "method" in message:
            self.notifications.append((message["method"], message.get("params")))
        elif message["id"] is None:
            self.errors_without_id.append(message["error"])
        elif message["id"] in self._pending:
            self._pending.pop(message["id"]).set_result(message)


@asynccontextmanager
async def started(engine_script: Path | None = None) -> AsyncIterator[Client]:
    """A server that has not been told anything; with `engine_script` its engine is the fake one."""
    process = await asyncio.create_subprocess_exec(
        *(SERVE if engine_script is None else fake_engine.SERVE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 28,
        env={**_environment(), "OMP_NUM_THREADS": "1", fake_engine.VARIABLE: str(engine_script)},
    )
    client = Client(process)
    try:
        yield client
    finally:
        kill_tree(process.pid)
        await process.wait()
        client._reading.cancel()


@asynccontextmanager
async def initialized(
    root: Path,
    capabilities: dict[str, Any] = MINIMAL,
    answers: dict[str, Callable[[Any], Any]] | None = None,
    engine_script: Path | None = None,
    **options: Any,
) -> AsyncIterator[Client]:
    """A server for a workspace. `options` are `initializationOptions`; `engine_script` is what a fake engine does."""
    before = time.perf_counter()
    async with started(engine_script) as client:
        client.answers.update(answers or {})
        params = {
            "processId": os.getpid(),
            "rootUri": root.as_uri(),
            "workspaceFolders": [{"uri": root.as_uri(), "name": root.name}],
            "capabilities": capabilities,
            "initializationOptions": options,
        }
        client.initialize_result = await client.ask("initialize", params)
        client.initialize_s = time.perf_counter() - before
        client.tell("initialized", {})
        yield client


def children(client: Client) -> tuple[int, ...]:
    """Every process below the server."""
    return descendants(client.pid)


def _environment() -> dict[str, str]:
    """Ours without what is for tests alone: to a server that would be settings which do not exist."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KERNEL_LSP_TEST_")}


def _no_configuration(params: Any) -> list[None]:
    return [None for _ in params["items"]]
