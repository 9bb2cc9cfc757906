"""Compute a job's progress from its events."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.core.event import (
    CandidateEvaluated,
    GenerationStarted,
    ModelCalled,
    NewBest,
    RunStarted,
    StageStarted,
    TaskCaptured,
)
from kernel_lsp.engine.messages import JobNews, JobQueued, JobStarted
from kernel_lsp.server.features.formatting import time_text

CAPTURED_PERCENT, SEARCHED_PERCENT, FULL_PERCENT = 5, 90, 99
"""Percentages at the end of capture and of the search; the winner's full verification is the rest."""


@dataclass
class Tracker:
    """Convert a job's events to a percentage and a status line. `run_id` is empty until the run has one."""

    percentage: int = 0
    message: str = ""
    run_id: str = ""
    best_us: float | None = None
    best: str = ""
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

    # --- below

    def _search(self) -> None:
        done = (self._generation + min(self._n_evaluated / self._n_proposals, 1.0)) / max(self._n_generations, 1)
        percentage = CAPTURED_PERCENT + (SEARCHED_PERCENT - CAPTURED_PERCENT) * done
        counted = f"generation {self._generation + 1}/{self._n_generations}, {self._n_evaluated}/{self._n_proposals}"
        self._advance(int(percentage), self._with_best(counted))

    def _with_best(self, text: str) -> str:
        return ", ".join(filter(None, (text, self.best, f"cost ${self.cost_usd:.2f}")))

    def _advance(self, percentage: int, message: str) -> None:
        self.percentage, self.message = max(self.percentage, percentage), message
