"""Check which client is offered what."""

from __future__ import annotations

from typing import Any

import pytest
from lsprotocol import types
from pygls.protocol import default_converter

from kernel_lsp.server.handlers import HANDLERS
from kernel_lsp.server.protocol import messages as protocol
from kernel_lsp.server.protocol.handshake import COMMANDS, client_features, server_capabilities

from .client import MINIMAL, NEOVIM, VSCODE

REQUESTS = {
    "hoverProvider": types.TEXT_DOCUMENT_HOVER,
    "codeLensProvider": types.TEXT_DOCUMENT_CODE_LENS,
    "codeActionProvider": types.TEXT_DOCUMENT_CODE_ACTION,
    "inlayHintProvider": types.TEXT_DOCUMENT_INLAY_HINT,
    "diagnosticProvider": types.TEXT_DOCUMENT_DIAGNOSTIC,
    "executeCommandProvider": types.WORKSPACE_EXECUTE_COMMAND,
}
CLIENTS = pytest.mark.parametrize("client", [MINIMAL, NEOVIM, VSCODE], ids=["minimal", "neovim", "vscode"])


def offered(client: dict[str, Any]) -> dict[str, Any]:
    return server_capabilities(client_features(client))


@CLIENTS
def test_what_we_offer_is_what_the_protocol_knows(client: dict[str, Any]) -> None:
    converter = default_converter()
    result = converter.structure({"capabilities": offered(client)}, types.InitializeResult)
    assert converter.unstructure(result)["capabilities"] == offered(client)


@CLIENTS
def test_what_we_offer_is_handled(client: dict[str, Any]) -> None:
    for name in offered(client):
        assert name not in REQUESTS or REQUESTS[name] in HANDLERS


def test_no_completion_and_no_navigation_beside_clangd() -> None:
    assert not [name for name in offered(VSCODE) if "completion" in name or "definition" in name.lower()]


def test_the_commands_are_those_of_the_protocol_file() -> None:
    assert set(COMMANDS) == {command.name for command in protocol.COMMANDS}


def test_methods_of_ours_that_a_client_sends_are_handled() -> None:
    own = {method.name for method in protocol.METHODS if method.direction == "client to server"}
    assert own == {name for name in HANDLERS if name.startswith("kernelLsp/")}


def test_vscode_pulls_diagnostics_and_confirms_edits() -> None:
    features = client_features(VSCODE)
    assert features.pulls_diagnostics
    assert features.confirms_edits
    assert features.encoding == "utf-16"


def test_neovim_takes_utf_8_and_confirms_no_edits() -> None:
    features = client_features(NEOVIM)
    assert features.encoding == "utf-8"
    assert not features.confirms_edits
    assert features.creates_files


def test_a_client_that_cannot_be_told_to_pull_again_has_diagnostics_pushed() -> None:
    assert not client_features({"textDocument": {"diagnostic": {}}}).pulls_diagnostics


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, True])
def test_capabilities_of_any_form_are_read(value: Any) -> None:
    for path in ("general", "workspace", "textDocument", "window", "experimental"):
        client_features({path: value})
        client_features(
            {path: {"positionEncodings": value, "workspaceEdit": value, "hover": value, "diagnostics": value}}
        )
