"""Every request is answered: malformed, unknown, early, late, repeated, cancelled."""

from __future__ import annotations

import asyncio
import os
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types

from kernel_lsp.server.handlers import HANDLERS
from kernel_lsp.server.protocol import messages as protocol

from .client import VSCODE, Client, initialized, started
from .samples import KERNEL, SCALE

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, NOT_INITIALIZED = -32700, -32600, -32601, -32602, -32002
N_FUZZED = int(os.environ.get("KERNEL_LSP_TEST_MESSAGES", "300"))
SECONDS_PER_MESSAGE = 0.1
"""Allowed at most, of a busy machine."""
N_AT_ONCE = max(200, N_FUZZED // 50)
"""Messages between two waits for all answers: some answers wait for an analysis, which comes when typing pauses."""
SEED = 20261121
PLACE = {"line": 1, "character": 1}
HOVER = {"textDocument": {"uri": "file:///nowhere.py"}, "position": PLACE}


async def check_refused(editor: Client, message: Any, id_: Any, code: int) -> None:
    reply = editor.expect(id_)
    editor.send(message)
    assert (await asyncio.wait_for(reply, 30))["error"]["code"] == code


async def check_alive(editor: Client) -> None:
    assert (await editor.ask("kernelLsp/status", {}))["jobs"] == []


@pytest.mark.parametrize(
    "params",
    [
        None,
        3,
        "x",
        [],
        {},
        {"textDocument": {"uri": "file:///a"}},
        {"textDocument": 3, "position": PLACE},
        {"textDocument": {"uri": "file:///a"}, "position": {"line": "one", "character": 1}},
        {"textDocument": {"uri": "file:///a"}, "position": {"line": -1, "character": 1}},
        {"textDocument": {"uri": None}, "position": {"line": 1 << 80, "character": 1}},
    ],
)
async def test_malformed_params_get_an_error(tmp_path: Path, params: Any) -> None:
    async with initialized(tmp_path) as editor:
        message = {"jsonrpc": "2.0", "id": "m", "method": "textDocument/hover", "params": params}
        await check_refused(editor, message, "m", INVALID_PARAMS)
        await check_alive(editor)


async def test_missing_params_get_an_error(tmp_path: Path) -> None:
    async with initialized(tmp_path) as editor:
        await check_refused(editor, {"jsonrpc": "2.0", "id": "m", "method": "textDocument/hover"}, "m", INVALID_PARAMS)


@pytest.mark.parametrize(
    "arguments", [None, [], [3], [{"uri": 3}], [{"uri": "file:///a"}, {}], [{"uri": "untitled:a", "symbol": "f"}]]
)
async def test_malformed_arguments_of_a_command_get_an_error(tmp_path: Path, arguments: Any) -> None:
    async with initialized(tmp_path, trusted=True) as editor:
        params = {"command": "kernelLsp.optimize", "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": "m", "method": "workspace/executeCommand", "params": params}
        await check_refused(editor, message, "m", INVALID_PARAMS)


async def test_an_unknown_command_gets_an_error(tmp_path: Path) -> None:
    async with initialized(tmp_path) as editor:
        params = {"command": "kernelLsp.conquer"}
        message = {"jsonrpc": "2.0", "id": "m", "method": "workspace/executeCommand", "params": params}
        await check_refused(editor, message, "m", INVALID_PARAMS)


@pytest.mark.parametrize("method", ["textDocument/definition", "kernelLsp/nothing", "$/something", ""])
async def test_an_unknown_method_gets_an_error(tmp_path: Path, method: str) -> None:
    async with initialized(tmp_path) as editor:
        await check_refused(
            editor, {"jsonrpc": "2.0", "id": "m", "method": method, "params": {}}, "m", METHOD_NOT_FOUND
        )


@pytest.mark.parametrize(
    ("message", "id_"),
    [
        ({"id": "m", "method": "textDocument/hover"}, "m"),
        ({"jsonrpc": "1.0", "id": "m", "method": "textDocument/hover"}, "m"),
        ({"jsonrpc": "2.0", "id": "m"}, "m"),
        ({"jsonrpc": "2.0", "id": "m", "method": 3}, "m"),
    ],
)
async def test_what_is_no_request_gets_an_error(tmp_path: Path, message: dict[str, Any], id_: str) -> None:
    async with initialized(tmp_path) as editor:
        await check_refused(editor, message, id_, INVALID_REQUEST)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"3", b"null", b"\xff\xfe", b"[" * 100_000, b'{"jsonrpc":"2.0","id":[],"method":"a"}']
)
async def test_what_is_no_message_gets_an_error_without_an_id(tmp_path: Path, body: bytes) -> None:
    async with initialized(tmp_path) as editor:
        editor.send_bytes(body)
        await editor.until(lambda: editor.errors_without_id, 30)
        await check_alive(editor)


@pytest.mark.parametrize("trusted", ["true", 1, [True], {}, None])
async def test_what_is_no_trust_does_not_become_any(tmp_path: Path, trusted: Any) -> None:
    async with initialized(tmp_path, trusted=False) as editor:
        editor.tell("kernelLsp/didChangeTrust", {"trusted": trusted})
        assert (await editor.ask("kernelLsp/status", {}))["trusted"] is False


async def test_a_request_before_initialize_is_refused() -> None:
    async with started() as editor:
        message = {"jsonrpc": "2.0", "id": 77, "method": "textDocument/hover", "params": HOVER}
        await check_refused(editor, message, 77, NOT_INITIALIZED)


async def test_a_second_initialize_is_refused(tmp_path: Path) -> None:
    async with initialized(tmp_path) as editor:
        reply = await editor.reply("initialize", {"capabilities": {}})
        assert "error" in reply


async def test_a_request_after_shutdown_is_refused(tmp_path: Path) -> None:
    async with initialized(tmp_path) as editor:
        await editor.ask("shutdown")
        reply = await editor.reply("textDocument/hover", HOVER)
        assert reply["error"]["code"] == INVALID_REQUEST


async def test_a_cancelled_request_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(SCALE)
    async with initialized(tmp_path, VSCODE) as editor:
        reply = editor.expect("c")
        params = {"textDocument": {"uri": editor.open(path)}}
        editor.send({"jsonrpc": "2.0", "id": "c", "method": "textDocument/diagnostic", "params": params})
        editor.tell("$/cancelRequest", {"id": "c"})
        assert (await asyncio.wait_for(reply, 30))["error"]["code"] == -32800
        await check_alive(editor)


async def test_a_client_that_answers_its_own_request_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(SCALE)
    async with initialized(tmp_path, VSCODE) as editor:
        reply = editor.expect("own")
        params = {"textDocument": {"uri": editor.open(path)}}
        editor.send({"jsonrpc": "2.0", "id": "own", "method": "textDocument/diagnostic", "params": params})
        editor.send({"jsonrpc": "2.0", "id": "own", "result": None})
        assert (await asyncio.wait_for(reply, 30))["result"]["kind"] == "full"


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "method": "textDocument/didChange", "params": None},
        {"jsonrpc": "2.0", "method": "textDocument/didChange", "params": {"textDocument": {"uri": "file:///a"}}},
        {
            "jsonrpc": "2.0",
            "method": "textDocument/didChange",
            "params": {"textDocument": {"uri": "file:///a", "version": 1}, "contentChanges": [{"text": "x"}]},
        },
        {"jsonrpc": "2.0", "method": "textDocument/didClose", "params": {"textDocument": {"uri": "file:///a"}}},
        {"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 99}},
        {"jsonrpc": "2.0", "method": "$/cancelRequest", "params": 3},
        {"jsonrpc": "2.0", "method": "window/workDoneProgress/cancel", "params": {"token": "none"}},
        {"jsonrpc": "2.0", "method": "nobody/knows", "params": {"deep": [[[]]]}},
        {"jsonrpc": "2.0", "id": "unasked", "result": 3},
        {"jsonrpc": "2.0", "id": "unasked", "error": {"code": 1, "message": "x"}},
        {"jsonrpc": "2.0", "id": None, "error": 3},
    ],
)
async def test_a_bad_notification_or_response_does_no_harm(tmp_path: Path, message: dict[str, Any]) -> None:
    async with initialized(tmp_path) as editor:
        editor.send(message)
        await check_alive(editor)
        assert editor.said("window/showMessage") == []


async def test_nothing_that_the_server_hears_may_be_malformed_to_its_harm(tmp_path: Path) -> None:
    async with initialized(tmp_path, trusted=False) as editor:
        replies = []
        for number, (method, params) in enumerate(product((*METHODS, *NOTIFICATIONS), ODD)):
            message = {"jsonrpc": "2.0", "method": method, "params": params}
            if method in METHODS:
                message["id"] = f"n{number}"
                replies.append(editor.expect(message["id"]))
            editor.send(message)
        await asyncio.wait_for(asyncio.gather(*replies), 60)
        await check_alive(editor)


def test_a_file_that_changed_outside_of_the_editor_is_among_the_messages() -> None:
    assert types.WORKSPACE_DID_CHANGE_WATCHED_FILES in NOTIFICATIONS


@pytest.mark.timeout(240 + N_FUZZED * SECONDS_PER_MESSAGE)
async def test_fuzzed_messages_leave_every_request_answered(tmp_path: Path) -> None:
    """Valid and malformed ones in random order; the seed is fixed. `KERNEL_LSP_TEST_MESSAGES=100000` sends more."""
    random_ = random.Random(SEED)
    async with initialized(tmp_path, VSCODE, trusted=False) as editor:
        replies: list[asyncio.Future[dict[str, Any]]] = []
        for number in range(N_FUZZED):
            message = fuzzed(random_, f"f{number}", tmp_path)
            if "id" in message and "method" in message:
                replies.append(editor.expect(message["id"]))
            editor.send(message)
            if number % N_AT_ONCE == 0:
                await check_alive(editor)
                await asyncio.wait_for(asyncio.gather(*replies), 120)
                replies.clear()
        await asyncio.wait_for(asyncio.gather(*replies), 120)
        await check_alive(editor)
        assert await editor.leave() == 0


# --- below: what is sent

ENDS = (types.SHUTDOWN, types.EXIT)
"""Methods that end a session, so that no fuzzing goes on after them; tests of their own send these."""
_OURS = {method.name: method.result is not None for method in protocol.METHODS}


def is_request(method: str) -> bool:
    """Return whether the protocol, or our own document, says that the method has an answer."""
    return _OURS[method] if method in _OURS else types.METHOD_TO_TYPES[method][1] is not None


HEARD = tuple(method for method in HANDLERS if method not in ENDS)
METHODS = (*filter(is_request, HEARD), "textDocument/foldingRange")
"""Every request that the server hears, and one that it does not."""
NOTIFICATIONS = (*(method for method in HEARD if not is_request(method)), "$/cancelRequest", "made/up")
"""Every notification that it hears, one that the transport hears, and one that nobody does."""
ODD: tuple[Any, ...] = (None, True, -1, 1 << 70, 1.5, "", "\ud83d", "é😀", [], {}, [[]], {"uri": 3}, {"line": {}})


FUZZED = tuple(method for method in METHODS if method != "kernelLsp/targets")
"""Without the one that starts a process each time: of thousands of messages it alone would take all of the time."""


def fuzzed(random_: random.Random, id_: str, folder: Path) -> dict[str, Any]:
    params = valid_params(random_, folder)
    for _ in range(random_.choice((0, 0, 1, 2))):
        params = damaged(random_, params)
    if isinstance(params, dict) and params.get("trusted") is True:
        params = {**params, "trusted": "yes"}  # what is no trust must not become any
    message = {"jsonrpc": "2.0", "method": random_.choice(NOTIFICATIONS), "params": params}
    return message if random_.random() < 0.4 else {**message, "id": id_, "method": random_.choice(FUZZED)}


def valid_params(random_: random.Random, folder: Path) -> Any:
    uri = (folder / random_.choice(("a.py", "b.py", "c.cu"))).as_uri()
    start = {"line": random_.randrange(20), "character": random_.randrange(40)}
    end = {"line": start["line"] + random_.randrange(3), "character": random_.randrange(40)}
    text = random_.choice((SCALE, KERNEL, "x", "", "é😀\r\n\r"))
    language = "cuda" if uri.endswith("cu") else "python"
    cell = {"kind": 2, "document": f"{uri}#0"}
    return {
        "textDocument": {"uri": uri, "version": random_.randrange(100), "languageId": language, "text": text},
        "position": start,
        "range": {"start": start, "end": end},
        "context": {"diagnostics": []},
        "contentChanges": [{"range": {"start": start, "end": end}, "text": text[:9]}],
        "command": random_.choice(("kernelLsp.optimize", "kernelLsp.cancel", "kernelLsp.check", "nothing")),
        "arguments": [{"uri": uri, "symbol": "scale"}],
        "settings": {"kernelLsp": {"codeLens": random_.random() < 0.5}},
        "event": {"added": [], "removed": []},
        "changes": [{"uri": uri, "type": random_.randrange(1, 4)}],
        "notebookDocument": {"uri": uri, "version": 1, "notebookType": "jupyter-notebook", "cells": [cell]},
        "cellTextDocuments": [{"uri": f"{uri}#0", "version": 1, "languageId": language, "text": text}],
        "change": {"cells": {"textContent": [{"document": {"uri": f"{uri}#0", "version": 2}, "changes": []}]}},
        "uri": uri,
        "run": "none",
        "token": "t",
        "trusted": False,
        "value": "off",
        "id": f"f{random_.randrange(3000)}",
    }


def damaged(random_: random.Random, value: Any) -> Any:
    """One part of it is something else, or missing."""
    if isinstance(value, dict) and value and random_.random() < 0.85:
        key = random_.choice(sorted(value))
        if random_.random() < 0.2:
            return {name: inner for name, inner in value.items() if name != key}
        return {**value, key: damaged(random_, value[key])}
    return random_.choice(ODD)
