"""Standard work-done progress created by the server: one fresh token per job, never reused."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress

from lsprotocol import types

from kernel_lsp.server.protocol.rpc import ClientRefused, Protocol

MIN_INTERVAL_S = 0.1
"""Minimum interval between two reports, in seconds: a person reads no faster."""


class WorkDoneProgress:
    """Sends nothing to a client without progress support, or before it has accepted the token."""

    def __init__(self, protocol: Protocol, title: str, *, is_shown: bool) -> None:
        self._protocol, self._title = protocol, title
        self.token = str(uuid.uuid4())
        self._is_begun = self._is_ended = False
        self._last_report_s = 0.0
        self._latest: types.WorkDoneProgressReport | None = None
        self._due: asyncio.TimerHandle | None = None
        self._opening = asyncio.create_task(self._open()) if is_shown else None

    def report(self, percentage: int, message: str) -> None:
        """Report progress, at most once per interval. The latest report is always sent eventually: a long phase may
        follow it."""
        self._latest = types.WorkDoneProgressReport(percentage=percentage, message=message, cancellable=True)
        if self._is_begun and not self._is_ended and self._due is None:
            loop = asyncio.get_running_loop()
            wait_s = self._last_report_s + MIN_INTERVAL_S - loop.time()
            if wait_s <= 0:
                self._tell_latest()
            else:
                self._due = loop.call_later(wait_s, self._tell_latest)

    def end(self, message: str) -> None:
        """Close the progress, once."""
        if self._due is not None:
            self._due.cancel()
        if self._is_begun and not self._is_ended:
            self._notify(types.WorkDoneProgressEnd(message=message))
        self._is_ended = True

    # --- below

    def _tell_latest(self) -> None:
        self._due = None
        if self._latest is not None:
            self._last_report_s = asyncio.get_running_loop().time()
            self._notify(self._latest)

    async def _open(self) -> None:
        params = types.WorkDoneProgressCreateParams(token=self.token)
        with suppress(ClientRefused):
            await self._protocol.send_request_async(types.WINDOW_WORK_DONE_PROGRESS_CREATE, params)
            if not self._is_ended:
                self._is_begun = True
                self._notify(types.WorkDoneProgressBegin(title=self._title, cancellable=True, percentage=0))
                self._tell_latest()

    def _notify(
        self, value: types.WorkDoneProgressBegin | types.WorkDoneProgressReport | types.WorkDoneProgressEnd
    ) -> None:
        self._protocol.notify(types.PROGRESS, types.ProgressParams(token=self.token, value=value))
