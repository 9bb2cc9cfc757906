"""Standard work-done progress created by the server: one fresh token per job, never reused."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from dataclasses import dataclass

from lsprotocol import types

from kernel_lsp.core.event import (
    CandidateEvaluated,
    CandidateVerified,
    GenerationStarted,
    ModelCalled,
    NewBest,
    RunStarted,
    StageStarted,
    TaskCaptured,
)
from kernel_lsp.engine.messages import JobNews, JobQueued, JobStarted
from kernel_lsp.server.features.formatting import time_text
from kernel_lsp.server.protocol.rpc import ClientRefused, Protocol

MIN_INTERVAL_S = 0.1
"""Minimum interval between two reports, in seconds: a person reads no faster."""
CAPTURED_PERCENT, SEARCHED_PERCENT, FULL_PERCENT = 5, 90, 99
"""Percentages at the end of capture and of the search; the winner's full verification is the rest."""


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


@dataclass
class Tracker:
    """Convert a job's events to a percentage and a status line. `run_id` is empty until the run has one."""

    percentage: int = 0
    message: str = ""
    run_id: str = ""
    best_us: float | None = None
    best: str = ""
    verified: str = ""
    cost_usd: float = 0.0
    """Cost of all model calls, in US dollars; 0 for a run without models."""
    _generation: int = 0
    _n_generations: int = 1
    _n_proposals: int = 1
    _n_evaluated: int = 0

    def hear(self, event: JobNews) -> None:
        """Process one event. The percentage never decreases."""
        match event:
            case JobQueued():
                self.message = f"waits for {event.n_before} other job{'s' if event.n_before > 1 else ''}"
            case JobStarted():
                self.message = "starting"
            case StageStarted():
                self.message = self._with_best(event.message) if self.run_id else event.message
            case RunStarted():
                self.run_id = event.run_id
                self.message = f"run {event.run_id} on {event.device}, for {event.target_gpu}"
            case TaskCaptured():
                self._advance(CAPTURED_PERCENT, f"captured {event.name}")
            case GenerationStarted():
                self._generation, self._n_generations = event.generation, event.n_generations
                self._n_proposals, self._n_evaluated = max(event.n_proposals, 1), 0
                self._search()
            case CandidateEvaluated(depth="rank" | "screen"):
                self._n_evaluated = min(self._n_evaluated + 1, self._n_proposals)
                self._search()
            case CandidateEvaluated():
                self._advance(FULL_PERCENT, self._with_best(f"full check: {event.outcome.replace('_', ' ')}"))
            case ModelCalled():
                self.cost_usd = event.run_cost_usd
                self._search()
            case NewBest():
                self.best_us = event.score_us
                self.best = f"best {time_text(event.score_us)} ({event.score_kind})"
                self._search()
            case CandidateVerified():
                self.verified = f"verified {time_text(event.score_us)}"
                self._search()

    def _search(self) -> None:
        done = (self._generation + min(self._n_evaluated / self._n_proposals, 1.0)) / max(self._n_generations, 1)
        percentage = CAPTURED_PERCENT + (SEARCHED_PERCENT - CAPTURED_PERCENT) * done
        counted = f"generation {self._generation + 1}/{self._n_generations}, {self._n_evaluated}/{self._n_proposals}"
        self._advance(int(percentage), self._with_best(counted))

    def _with_best(self, text: str) -> str:
        return ", ".join(filter(None, (text, self.best, self.verified, f"cost ${self.cost_usd:.2f}")))

    def _advance(self, percentage: int, message: str) -> None:
        self.percentage, self.message = max(self.percentage, percentage), message
