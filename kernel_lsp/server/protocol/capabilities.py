"""The client's features, and the server's capabilities derived from them. Standard library only: `initialize` is
answered before heavy imports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
