"""Answer `initialize` with the standard library alone, before the server's other imports.

Capabilities derive from the client's features. Importing the protocol's types takes most of a second of CPU time, too
long for a client that is waiting for our capabilities.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernel_lsp import __version__
from kernel_lsp.server.protocol.positions import Encoding, choose_encoding

REWRITE_KIND = "refactor.rewrite.kernelLsp"
COMMANDS = (
    "kernelLsp.optimize",
    "kernelLsp.optimizeWithBackward",
    "kernelLsp.optimizeLines",
    "kernelLsp.addShapes",
    "kernelLsp.check",
    "kernelLsp.measure",
    "kernelLsp.addPlan",
    "kernelLsp.profile",
    "kernelLsp.estimate",
    "kernelLsp.cancel",
    "kernelLsp.useNow",
    "kernelLsp.resume",
    "kernelLsp.showKernel",
    "kernelLsp.compare",
    "kernelLsp.report",
    "kernelLsp.useEverywhere",
    "kernelLsp.revertEverywhere",
    "kernelLsp.explain",
)
DIAGNOSTICS_IDENTIFIER = "kernel-lsp"
SYNC_INCREMENTAL = 2
CELL_LANGUAGES = ("python", "cuda-cpp", "cuda")


@dataclass(frozen=True)
class ClientFeatures:
    """The client features that we use; any may be missing."""

    encoding: Encoding
    pulls_diagnostics: bool
    """The client pulls diagnostics and can be told to refresh. To others they are pushed."""
    versioned_edits: bool
    creates_files: bool
    confirms_edits: bool
    shows_progress: bool
    shows_documents: bool
    gives_configuration: bool
    registers_configuration: bool
    watches_files: bool
    """The client can be asked to watch files on disk."""
    refreshes_lenses: bool
    refreshes_hints: bool
    shows_hints: bool
    markdown_hover: bool
    literal_actions: bool
    """The client accepts code actions with edits. Others get only the actions that are commands."""
    opens_notebooks: bool
    shows_related: bool
    """The client shows a diagnostic's related locations."""


def client_features(capabilities: Mapping[str, Any]) -> ClientFeatures:
    """Read the features from the client's message; malformed entries count as missing."""

    def has(path: str) -> bool:
        return _at(capabilities, path) is True

    resource_operations = _at(capabilities, "workspace.workspaceEdit.resourceOperations")
    hover_formats = _at(capabilities, "textDocument.hover.contentFormat")
    pulls = _is_object(capabilities, "textDocument.diagnostic")
    creates = "create" in _list(resource_operations)
    # Only `documentChanges` can hold a creation: Neovim announces the one without the other and takes both.
    versioned = has("workspace.workspaceEdit.documentChanges") or creates
    return ClientFeatures(
        encoding=choose_encoding(_list(_at(capabilities, "general.positionEncodings"))),
        pulls_diagnostics=pulls and has("workspace.diagnostics.refreshSupport"),
        versioned_edits=versioned,
        creates_files=creates,
        confirms_edits=versioned and _is_object(capabilities, "workspace.workspaceEdit.changeAnnotationSupport"),
        shows_progress=has("window.workDoneProgress"),
        shows_documents=has("window.showDocument.support"),
        gives_configuration=has("workspace.configuration"),
        registers_configuration=has("workspace.didChangeConfiguration.dynamicRegistration"),
        watches_files=has("workspace.didChangeWatchedFiles.dynamicRegistration"),
        refreshes_lenses=has("workspace.codeLens.refreshSupport"),
        refreshes_hints=has("workspace.inlayHint.refreshSupport"),
        shows_hints=_is_object(capabilities, "textDocument.inlayHint"),
        markdown_hover="markdown" in _list(hover_formats),
        literal_actions=_is_object(capabilities, "textDocument.codeAction.codeActionLiteralSupport"),
        opens_notebooks=_is_object(capabilities, "notebookDocument.synchronization"),
        shows_related=has("textDocument.publishDiagnostics.relatedInformation"),
    )


def server_capabilities(features: ClientFeatures) -> dict[str, Any]:
    """Return our capabilities for a client with these features."""
    offered: dict[str, Any] = {
        "positionEncoding": features.encoding,
        "textDocumentSync": {"openClose": True, "change": SYNC_INCREMENTAL, "save": {"includeText": False}},
        "hoverProvider": True,
        "codeLensProvider": {"resolveProvider": False},
        "executeCommandProvider": {"commands": list(COMMANDS)},
        "workspace": {"workspaceFolders": {"supported": True, "changeNotifications": True}},
    }
    if features.opens_notebooks:
        cells = [{"language": language} for language in CELL_LANGUAGES]
        offered["notebookDocumentSync"] = {"notebookSelector": [{"notebook": "*", "cells": cells}]}
    kinds = {"codeActionKinds": ["quickfix", REWRITE_KIND], "resolveProvider": False}
    offered["codeActionProvider"] = kinds if features.literal_actions else True
    if features.shows_hints:
        offered["inlayHintProvider"] = {"resolveProvider": False}
    if features.pulls_diagnostics:
        offered["diagnosticProvider"] = {
            "identifier": DIAGNOSTICS_IDENTIFIER,
            "interFileDependencies": False,
            "workspaceDiagnostics": False,
        }
    return offered


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _is_object(value: Any, path: str) -> bool:
    return isinstance(_at(value, path), Mapping)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


MAX_HEADER_BYTES = 4096
MAX_BODY_BYTES = 256 << 20
_LENGTH = re.compile(rb"(?:^|\r\n)content-length[ \t]*:[ \t]*(\d{1,12})[ \t]*(?:\r\n|$)", re.IGNORECASE)
_NEXT_HEADER = re.compile(rb"content-length[ \t]*:", re.IGNORECASE)
_HEADER_END = b"\r\n\r\n"


class Frames:
    """Split bytes into message bodies. Malformed input is skipped up to the next header."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.n_skipped = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes; return the bodies that are now complete."""
        self._buffer += data
        while (body := self._next()) is not None:
            yield body

    def _next(self) -> bytes | None:
        while True:
            end = self._buffer.find(_HEADER_END)
            if end < 0:
                self._skip_garbage()
                return None
            length = self._length(end)
            if length is None:
                self._resynchronize(end)
                continue
            start = end + len(_HEADER_END)
            if len(self._buffer) < start + length:
                return None
            body = bytes(self._buffer[start : start + length])
            del self._buffer[: start + length]
            return body

    def _length(self, end: int) -> int | None:
        match = _LENGTH.search(self._buffer, 0, end)
        if match is None or int(match[1]) > MAX_BODY_BYTES or end > MAX_HEADER_BYTES:
            return None
        return int(match[1])

    def _resynchronize(self, end: int) -> None:
        """Drop a malformed header; a valid one may begin inside it."""
        again = _NEXT_HEADER.search(self._buffer, 1)
        cut = min(again.start(), end + len(_HEADER_END)) if again is not None else end + len(_HEADER_END)
        self.n_skipped += cut
        del self._buffer[:cut]

    def _skip_garbage(self) -> None:
        """Bound the buffer: keep at most one header's length of data without a header end."""
        if len(self._buffer) > MAX_HEADER_BYTES:
            excess = len(self._buffer) - MAX_HEADER_BYTES
            self.n_skipped += excess
            del self._buffer[:excess]


def frame(body: bytes) -> bytes:
    """Return a body with its header."""
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


READ_BYTES = 1 << 16
# JSON-RPC 2.0 and LSP 3.17, "ErrorCodes"
PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS, NOT_INITIALIZED = -32700, -32600, -32602, -32002


@dataclass
class Connection:
    """Stdin and stdout: the bytes read so far, and a stream to write to."""

    stdin: int
    stdout: int
    frames: Frames = field(default_factory=Frames)
    waiting: list[bytes] = field(default_factory=list)
    """Bodies received together with `initialize`."""


@dataclass(frozen=True)
class Initialized:
    """Parameters of `initialize`, after it was answered."""

    params: dict[str, Any]
    features: ClientFeatures


@dataclass(frozen=True)
class Left:
    """The client disconnected or sent `exit` before `initialize`."""


def shake_hands(connection: Connection) -> Initialized | Left:
    """Read until `initialize` and answer it. Earlier messages are refused, as the protocol requires."""
    for body in _bodies(connection):
        message = _parsed(body)
        if message is None:
            _send(connection, _error(None, PARSE_ERROR, "this is no JSON object"))
        elif message.get("method") == "initialize" and _is_id(message.get("id")):
            params = message.get("params")
            if isinstance(params, dict):
                features = client_features(_object(params.get("capabilities")))
                _send(connection, _initialize_reply(message["id"], features))
                return Initialized(params, features)
            _send(connection, _error(message["id"], INVALID_PARAMS, "initialize needs params"))
        elif message.get("method") == "exit":
            return Left()
        elif "id" in message and "method" in message:
            _send(connection, _error(_id(message), NOT_INITIALIZED, "the server is not initialized"))
    return Left()


def _bodies(connection: Connection) -> Iterator[bytes]:
    while True:
        while connection.waiting:
            yield connection.waiting.pop(0)
        data = os.read(connection.stdin, READ_BYTES)
        if not data:
            return
        connection.waiting += connection.frames.feed(data)


def _parsed(body: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _initialize_reply(id_: int | str, features: ClientFeatures) -> dict[str, Any]:
    result = {
        "capabilities": server_capabilities(features),
        "serverInfo": {"name": "kernel-lsp", "version": __version__},
    }
    return {"jsonrpc": "2.0", "id": id_, "result": result}


def _error(id_: int | str | None, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": message}}


def _send(connection: Connection, message: dict[str, Any]) -> None:
    data = frame(json.dumps(message).encode())
    while data:
        data = data[os.write(connection.stdout, data) :]


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _id(message: dict[str, Any]) -> int | str | None:
    return message["id"] if _is_id(message["id"]) else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
