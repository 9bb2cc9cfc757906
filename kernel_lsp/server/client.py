"""The editor at the other end: what it supports, and what it is told, shown and asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from kernel_lsp.server.protocol.handshake import Initialized
from kernel_lsp.server.protocol.rpc import ClientRefused, Protocol
from kernel_lsp.server.settings import SECTION

logger = logging.getLogger(__name__)


class Client:
    """Sends notifications and requests to the editor. A refusal is a result: no method raises for one."""

    def __init__(self, wire: LanguageServer, protocol: Protocol, initialized: Initialized) -> None:
        self._wire, self.protocol = wire, protocol
        self.features = initialized.features
        self.process_id = initialized.params.get("processId")
        capabilities = as_object(initialized.params.get("capabilities"))
        wants = as_object(as_object(capabilities.get("experimental")).get("kernelLsp"))
        self.wants_job_news = wants.get("jobs") is True
        self.wants_events = wants.get("events") is True
        self.types_commands = wants.get("terminal") is True
        self.has_editor_model = wants.get("languageModel") is True
        self._said: set[str] = set()

    def notify(self, method: str, params: Any) -> None:
        """Send one of our own notifications."""
        self.protocol.notify(method, params)

    def say(self, kind: types.MessageType, message: str) -> None:
        """Show a message to the user."""
        self._wire.window_show_message(types.ShowMessageParams(type=kind, message=message))

    def inform(self, message: str) -> None:
        """Show a message that needs no action."""
        self.say(types.MessageType.Info, message)

    def warn(self, message: str) -> None:
        """Show a warning."""
        self.say(types.MessageType.Warning, message)

    def warn_once(self, message: str) -> None:
        """Show a warning once, not after every edit."""
        if message not in self._said:
            self._said.add(message)
            self.warn(message)

    async def choose(self, kind: types.MessageType, message: str, *choices: str) -> str | None:
        """Return the user's choice; None when the message is dismissed, and from a client that shows no choices. Such a
        client shows an error without them."""
        actions = [types.MessageActionItem(title=choice) for choice in choices]
        params = types.ShowMessageRequestParams(type=kind, message=message, actions=actions)
        try:
            chosen = await self._wire.window_show_message_request_async(params)
        except ClientRefused:
            if kind is types.MessageType.Error:
                self.say(kind, message)
            return None
        return chosen.title if chosen is not None else None

    async def show(self, path: Path, line: int | None = None) -> bool:
        """Open a file in the editor, at a 0-based line; return False if the client cannot."""
        at = types.Range(types.Position(line, 0), types.Position(line, 0)) if line is not None else None
        return await self.show_document(types.ShowDocumentParams(uri=path.as_uri(), take_focus=False, selection=at))

    async def show_document(self, params: types.ShowDocumentParams) -> bool:
        """Open a document as the parameters say; return False if the client cannot."""
        if not self.features.shows_documents:
            return False
        try:
            return (await self._wire.window_show_document_async(params)).success
        except ClientRefused:
            return False

    async def apply(self, edit: types.WorkspaceEdit, label: str) -> bool:
        """Have the client make an edit; return False if it did not."""
        try:
            applied = await self._wire.workspace_apply_edit_async(types.ApplyWorkspaceEditParams(edit, label))
        except ClientRefused as error:
            self.warn(f"the editor refused the edit: {error}")
            return False
        if not applied.applied:
            logger.info("not applied: %s", applied.failure_reason)
        return applied.applied

    def publish(self, uri: str, found: list[types.Diagnostic], version: int | None = None) -> None:
        """Publish all diagnostics of a document."""
        self._wire.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, found, version))

    async def refresh_lenses(self) -> None:
        """Have the client ask for lenses again, if it can."""
        if self.features.refreshes_lenses:
            await _harmless(self._wire.workspace_code_lens_refresh_async(None))

    async def refresh(self) -> None:
        """Have the client ask again for diagnostics, lenses and hints, if it can."""
        refreshes = [self.refresh_lenses()]
        if self.features.pulls_diagnostics:
            refreshes.append(_harmless(self._wire.workspace_diagnostic_refresh_async(None)))
        if self.features.refreshes_hints:
            refreshes.append(_harmless(self._wire.workspace_inlay_hint_refresh_async(None)))
        await asyncio.gather(*refreshes)

    def register(self, name: str, method: str, options: dict[str, Any]) -> None:
        """Register a capability."""
        registration = types.Registration(id=f"{SECTION}.{name}", method=method, register_options=options)
        self._wire.client_register_capability(types.RegistrationParams(registrations=[registration]))

    async def configuration(self, folders: Sequence[Path]) -> list[Any] | None:
        """Return the client's settings, globally and for each folder; None from a client without."""
        if not self.features.gives_configuration:
            return None
        items = [types.ConfigurationItem(section=SECTION)]
        items += [types.ConfigurationItem(section=SECTION, scope_uri=folder.as_uri()) for folder in folders]
        try:
            return list(await self._wire.workspace_configuration_async(types.ConfigurationParams(items=items)))
        except ClientRefused as error:
            logger.warning("the client gave no configuration: %s", error)
            return None


def as_object(value: Any) -> dict[str, Any]:
    """Return a JSON object; an empty one in place of any other value."""
    return value if isinstance(value, dict) else {}


async def _harmless(request: Coroutine[Any, Any, Any]) -> None:
    """Ignore a client's refusal to refresh."""
    try:
        await request
    except ClientRefused as error:
        logger.info("refused: %s", error)
