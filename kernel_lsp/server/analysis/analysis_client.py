"""Keep an analysis of every open document: request one after each change and cache the latest result."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from kernel_lsp.process.channel import Channel
from kernel_lsp.server.analysis.analysis_types import ANALYSIS, EMPTY, Analysis, carried
from kernel_lsp.server.documents.documents import Document, Documents

ANALYST = (sys.executable, "-m", "kernel_lsp.server.analysis.analysis_worker")
QUIET_S = 0.15
"""Debounce after the last edit, in seconds. Diagnostics shown while a person types are noise."""
PATIENCE_S = 0.5
"""Maximum delay after the first unanalysed edit, in seconds, so that continuous typing still gets an analysis."""
DEADLINE_S = 20.0
"""Timeout of one analysis, in seconds. The process is then stopped, and the text is skipped until it changes."""

logger = logging.getLogger(__name__)


@dataclass
class Known:
    """The last analysis of a text. `serial` is the document's at that time, -1 before the first."""

    analysis: Analysis = EMPTY
    serial: int = -1
    asked_serial: int = -1
    """Serial of the last text that was analysed or abandoned."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _carried: tuple[int, Analysis] = (-1, EMPTY)

    def now(self, document: Document) -> Analysis:
        """Return the analysis rebased onto the current text."""
        if self.serial == document.serial:
            return self.analysis
        if self._carried[0] != document.serial:
            self._carried = (document.serial, carried(document, self.analysis, self.serial))
        return self._carried[1]

    @property
    def is_any(self) -> bool:
        """Return True once a text was analysed, even in part, or abandoned."""
        return self.serial >= 0 or self.asked_serial >= 0

    def is_current(self, document: Document) -> bool:
        return self.serial == document.serial


class Analyses:
    """Schedule one analysis process: one text at a time, the longest waiting first. `on_change` receives every new
    result."""

    def __init__(
        self,
        documents: Documents,
        on_change: Callable[[Document], None],
        above: Callable[[Document], tuple[str, ...]] = lambda _: (),
    ) -> None:
        """`above` returns the cells of a notebook above a text; names defined there are in scope."""
        self._documents, self._on_change, self._above = documents, on_change, above
        self._known: dict[str, Known] = {}
        self._first_unseen: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._channel: Channel | None = None
        self._ids = itertools.count(1)
        self._task: asyncio.Task[None] | None = None

    @property
    def analyst_pid(self) -> int:
        """Return the process id, 0 when none runs."""
        return self._channel.pid if self._channel is not None and self._channel.is_alive else 0

    def start(self) -> None:
        """Start the process at once: its start-up takes longer than most analyses."""
        self._task = asyncio.create_task(self._work())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._channel is not None:
            await self._channel.close()

    def opened(self, document: Document) -> None:
        """Analyse a newly opened text immediately."""
        self._known[document.uri] = Known()
        self._schedule(document, 0.0)

    def edited(self, document: Document) -> None:
        """Schedule an analysis for when typing pauses."""
        self._schedule(document, QUIET_S)

    def closed(self, uri: str) -> None:
        known = self._known.pop(uri, None)
        self._due.pop(uri, None)
        self._first_unseen.pop(uri, None)
        if known is not None:
            known.changed.set()

    def latest(self, document: Document) -> Known:
        """Return the last analysis, possibly of an older text."""
        return self._known.get(document.uri) or Known()

    async def current(self, document: Document, at_most_s: float) -> Known:
        """Wait up to `at_most_s` for the analysis of the current text; then return the latest one."""
        known = self.latest(document)
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                while known.asked_serial != document.serial and self._known.get(document.uri) is known:
                    known.changed.clear()
                    await known.changed.wait()
        return known

    def _schedule(self, document: Document, quiet_s: float) -> None:
        now = asyncio.get_running_loop().time()
        first = self._first_unseen.setdefault(document.uri, now)
        self._due[document.uri] = min(now + quiet_s, first + PATIENCE_S)
        self._wake.set()

    async def _work(self) -> None:
        with suppress(OSError):  # retried with the first text, which reports the error
            await self._analyst()
        while True:
            document = await self._next()
            serial = document.serial
            analysis = await self._analyse(document)
            if self._documents.get(document.uri) is not document:
                continue
            known = self.latest(document)
            known.asked_serial = serial
            if analysis is not None:
                known.analysis, known.serial = analysis, serial
            known.changed.set()
            self._on_change(document)

    async def _next(self) -> Document:
        """Return the next text that is due."""
        while True:
            self._wake.clear()
            now = asyncio.get_running_loop().time()
            uri = min(self._due, key=lambda uri: self._due[uri], default=None)
            if uri is not None and self._due[uri] <= now:
                del self._due[uri]
                self._first_unseen.pop(uri, None)
                document = self._documents.get(uri)
                if document is not None:
                    return document
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._due[uri] - now if uri is not None else None):
                    await self._wake.wait()

    async def _analyse(self, document: Document) -> Analysis | None:
        """Return None when the process died or timed out on the text."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                reply = await self._ask(document)
            return ANALYSIS.validate_python(reply["analysis"], strict=False) if reply is not None else None
        except (TimeoutError, OSError, ValidationError) as error:
            logger.warning("no analysis of %s: %s", document.uri, type(error).__name__)
            if self._channel is not None and not isinstance(error, ValidationError):
                await self._channel.close()
            return None

    def _learn_a_part(self, document: Document, text: str, message: dict[str, Any]) -> None:
        """Publish a partial analysis of a long text; requests for the complete one keep waiting."""
        if self._documents.get(document.uri) is document and document.text == text:
            known = self.latest(document)
            known.analysis, known.serial = ANALYSIS.validate_python(message["analysis"], strict=False), document.serial
            self._on_change(document)

    async def _ask(self, document: Document) -> dict[str, Any] | None:
        channel = await self._analyst()
        path, text = document.path, document.text
        request = {
            "id": next(self._ids),
            "language": document.language,
            "path": str(path) if path is not None else document.uri,
            "text": text,
            "above": self._above(document),
        }
        channel.send(request)
        async for message in channel.messages():
            if message.get("id") == request["id"]:
                if not message.get("n_more"):
                    return message
                self._learn_a_part(document, text, message)
        await channel.close()
        return None

    async def _analyst(self) -> Channel:
        """Return the running process, restarted if it has ended."""
        if self._channel is None or not self._channel.is_alive:
            self._channel = Channel(ANALYST, environment=dict(os.environ))
            await self._channel.start()
        return self._channel
