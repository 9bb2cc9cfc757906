"""Sessions through pytest-lsp, which warns of whatever a client with these capabilities could not take."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import pytest_lsp
from lsprotocol import types
from pytest_lsp import ClientServerConfig, LanguageClient, client_capabilities

from .samples import CALL_LINE, NET_LINE, SCALE, SCALE_LINE

pytestmark = pytest.mark.filterwarnings("error::pytest_lsp.LspSpecificationWarning")


FINDING_COLUMN = SCALE.split("\n")[CALL_LINE].index("x.sum()")
MINIMAL = "a client that says nothing of itself"


def capabilities(name: str, encodings: tuple[str, ...]) -> types.ClientCapabilities:
    """Those of an editor's release, with these position encodings in place of its own."""
    known = types.ClientCapabilities() if name == MINIMAL else client_capabilities(name)
    if encodings:
        general = known.general or types.GeneralClientCapabilities()
        known.general = attrs.evolve(general, position_encodings=list(encodings))
    return known


@pytest_lsp.fixture(
    params=[
        ("visual-studio-code", ()),
        ("visual-studio-code", ("utf-16",)),
        ("neovim", ("utf-8", "utf-16")),
        ("neovim@0.7.0", ()),
        ("emacs", ()),
        (MINIMAL, ()),
        (MINIMAL, ("utf-8",)),
    ],
    ids=lambda param: f"{param[0]}-{'+'.join(param[1]) or 'its own'}",
    config=ClientServerConfig(server_command=[sys.executable, "-m", "kernel_lsp", "serve"]),
)
async def client(request: pytest.FixtureRequest, lsp_client: LanguageClient, tmp_path: Path) -> AsyncIterator[None]:
    (tmp_path / "scale.py").write_text(SCALE)
    for method in ("client/registerCapability", "workspace/codeLens/refresh", "workspace/inlayHint/refresh"):
        lsp_client.feature(method)(accept)
    params = types.InitializeParams(
        capabilities=capabilities(*request.param),
        workspace_folders=[types.WorkspaceFolder(uri=tmp_path.as_uri(), name="workspace")],
    )
    offered = await lsp_client.initialize_session(params)
    general = params.capabilities.general
    first = (general.position_encodings if general is not None else None) or ["utf-16"]
    assert offered.capabilities.position_encoding == first[0]
    yield
    await lsp_client.shutdown_session()


def accept(_client: LanguageClient, _params: object) -> None:
    """Answer as an editor that does as it is asked."""


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
    if client.capabilities.text_document and client.capabilities.text_document.code_action:
        actions = await client.text_document_code_action_async(
            types.CodeActionParams(identifier, place, types.CodeActionContext(diagnostics=[]))
        )
        assert any(action.title.startswith("Explain this finding: KL101") for action in actions or ())
    found = client.diagnostics[identifier.uri]
    assert "KL101" in [diagnostic.code for diagnostic in found]


async def test_edits_around_and_inside_of_a_surrogate_pair(client: LanguageClient, tmp_path: Path) -> None:
    """Positions are the client's units: whatever they are, the finding stands behind the character, at its line."""
    identifier = open_scale(client, tmp_path)
    await client.wait_for_notification(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    start = types.Position(CALL_LINE, 8)
    inside = types.Position(CALL_LINE, 8 + 3 + 1)
    for version, (position, text) in enumerate(((start, "'😀'; "), (inside, "")), start=2):
        change = types.TextDocumentContentChangePartial(range=types.Range(position, position), text=text)
        versioned = types.VersionedTextDocumentIdentifier(uri=identifier.uri, version=version)
        client.text_document_did_change(types.DidChangeTextDocumentParams(versioned, [change]))
    while not has_moved(client, identifier.uri):
        await client.wait_for_notification(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    (found,) = [each for each in client.diagnostics[identifier.uri] if each.code == "KL101"]
    assert found.range.start.line == CALL_LINE
    assert found.range.start.character > len("        '😀'; return")


def has_moved(client: LanguageClient, uri: str) -> bool:
    """Return whether the findings are of the text with the pair: it moved them along their line."""
    columns = [each.range.start.character for each in client.diagnostics.get(uri, ()) if each.code == "KL101"]
    return bool(columns) and min(columns) > FINDING_COLUMN
