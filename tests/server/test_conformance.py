"""Sessions through pytest-lsp, which warns of whatever a client with these capabilities could not take."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_lsp
from lsprotocol import types
from pytest_lsp import ClientServerConfig, LanguageClient, client_capabilities

from .samples import CALL_LINE, NET_LINE, SCALE, SCALE_LINE

pytestmark = pytest.mark.filterwarnings("error::pytest_lsp.LspSpecificationWarning")


@pytest_lsp.fixture(
    params=["visual-studio-code", "neovim", "neovim@0.7.0", "emacs"],
    config=ClientServerConfig(server_command=[sys.executable, "-m", "kernel_lsp", "serve"]),
)
async def client(request: pytest.FixtureRequest, lsp_client: LanguageClient, tmp_path: Path) -> AsyncIterator[None]:
    (tmp_path / "scale.py").write_text(SCALE)
    for method in ("client/registerCapability", "workspace/codeLens/refresh", "workspace/inlayHint/refresh"):
        lsp_client.feature(method)(accept)
    params = types.InitializeParams(
        capabilities=client_capabilities(request.param),
        workspace_folders=[types.WorkspaceFolder(uri=tmp_path.as_uri(), name="workspace")],
    )
    await lsp_client.initialize_session(params)
    yield
    await lsp_client.shutdown_session()


def accept(params) -> None:  # type: ignore[no-untyped-def]
    """What an editor answers when it does as it is asked."""


def document(tmp_path: Path) -> types.TextDocumentIdentifier:
    return types.TextDocumentIdentifier(uri=(tmp_path / "scale.py").as_uri())


def open_scale(client: LanguageClient, tmp_path: Path) -> types.TextDocumentIdentifier:
    identifier = document(tmp_path)
    item = types.TextDocumentItem(uri=identifier.uri, language_id="python", version=1, text=SCALE)
    client.text_document_did_open(types.DidOpenTextDocumentParams(item))
    return identifier


async def test_a_session_as_an_editor_has_it(client: LanguageClient, tmp_path: Path) -> None:
    identifier = open_scale(client, tmp_path)
    await client.wait_for_notification(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    lenses = await client.text_document_code_lens_async(types.CodeLensParams(identifier))
    assert [lens.range.start.line for lens in lenses or ()] == [SCALE_LINE, NET_LINE]
    hover = await client.text_document_hover_async(types.HoverParams(identifier, types.Position(SCALE_LINE, 5)))
    assert hover is not None
    place = types.Range(types.Position(CALL_LINE, 0), types.Position(CALL_LINE, 0))
    actions = await client.text_document_code_action_async(
        types.CodeActionParams(identifier, place, types.CodeActionContext(diagnostics=[]))
    )
    assert any(action.title.startswith("Explain KL101") for action in actions or ())
    found = client.diagnostics[identifier.uri]
    assert "KL101" in [diagnostic.code for diagnostic in found]
