"""Results as edits: what is asked of which client, and what never."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types

from kernel_lsp.engine.messages import ResultFile
from kernel_lsp.server.documents.documents import Documents
from kernel_lsp.server.documents.edits import Proposal, propose, write_aside
from kernel_lsp.server.protocol.handshake import client_features

from .client import MINIMAL, NEOVIM, VSCODE


@pytest.fixture
def files(tmp_path: Path) -> list[ResultFile]:
    folder = tmp_path / "kernels"
    return [ResultFile(path=folder / "a.cu", text="// new\n"), ResultFile(path=folder / "a.py", text="new = 1\n")]


def proposal(files: list[ResultFile], client: dict[str, Any], documents: Documents | None = None) -> Proposal:
    return propose(files, "a label", documents or Documents("utf-16"), client_features(client))


def kinds(found: Proposal) -> list[str]:
    assert found.edit is not None
    return [type(change).__name__ for change in found.edit.document_changes or ()]


def write_older(files: list[ResultFile]) -> None:
    files[0].path.parent.mkdir()
    for file in files:
        file.path.write_text("older\nlines\n")


def test_new_files_are_created_and_confirmed(files: list[ResultFile]) -> None:
    found = proposal(files, VSCODE)
    assert kinds(found) == ["CreateFile", "TextDocumentEdit"] * 2
    assert found.edit is not None
    assert [a.needs_confirmation for a in (found.edit.change_annotations or {}).values()] == [True]


def test_new_files_are_created_where_nothing_can_be_confirmed(files: list[ResultFile]) -> None:
    found = proposal(files, NEOVIM)
    assert kinds(found) == ["CreateFile", "TextDocumentEdit"] * 2
    assert found.edit is not None
    assert found.edit.change_annotations is None


def test_what_is_there_is_replaced_only_with_confirmation(files: list[ResultFile]) -> None:
    write_older(files)
    assert kinds(proposal(files, VSCODE)) == ["TextDocumentEdit"] * 2
    refused = proposal(files, NEOVIM)
    assert refused.edit is None
    assert "there already" in refused.reason


def test_a_replacement_is_of_the_whole_text(files: list[ResultFile]) -> None:
    write_older(files)
    found = proposal(files, VSCODE)
    assert found.edit is not None
    assert found.edit.document_changes is not None
    change = found.edit.document_changes[0]
    assert isinstance(change, types.TextDocumentEdit)
    (edit,) = change.edits
    assert not isinstance(edit, types.SnippetTextEdit)
    assert (edit.range.start, edit.range.end) == (types.Position(0, 0), types.Position(3, 0))


def test_an_open_document_s_version_is_named(files: list[ResultFile]) -> None:
    write_older(files)
    documents = Documents("utf-16")
    documents.open(files[0].path.as_uri(), "cuda", 12, "older\nlines\n")
    found = proposal(files, VSCODE, documents)
    assert found.edit is not None
    assert found.edit.document_changes is not None
    versions = [c.text_document.version for c in found.edit.document_changes if isinstance(c, types.TextDocumentEdit)]
    assert versions == [12, None]


def test_a_document_that_has_moved_on_is_left_alone(files: list[ResultFile]) -> None:
    write_older(files)
    documents = Documents("utf-16")
    documents.open(files[1].path.as_uri(), "python", 3, "older\nlines\nand mine\n")
    refused = proposal(files, VSCODE, documents)
    assert refused.edit is None
    assert "a.py has unsaved changes" in refused.reason


def test_what_is_there_already_needs_no_edit(files: list[ResultFile]) -> None:
    files[0].path.parent.mkdir()
    for file in files:
        file.path.write_text(file.text)
    assert proposal(files, VSCODE).is_nothing_new


def test_a_client_that_creates_no_files_gets_no_edit(files: list[ResultFile]) -> None:
    assert proposal(files, MINIMAL).edit is None


def test_files_can_be_put_aside(files: list[ResultFile], tmp_path: Path) -> None:
    paths = write_aside(files, tmp_path / "aside")
    assert [path.read_text() for path in paths] == [file.text for file in files]
