"""Call a model within a budget and the provider's rate limits: bounded concurrency, back-off on errors, Retry-After."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kernel_lsp.llm.budget import Ledger
from kernel_lsp.llm.keys import hide_keys, hide_known_keys
from kernel_lsp.llm.request import RETRIED, Model, ModelFailed, ModelRequest, OnText, Replied, ignore_text

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class Pace:
    """Retry policy. Waits grow by `factor` from `first_wait_s` to `longest_wait_s`, each shortened at random by up to a
    half to spread concurrent retries. A Retry-After is the minimum wait."""

    n_attempts: int = 6
    first_wait_s: float = 1.0
    factor: float = 2.0
    longest_wait_s: float = 60.0
    patience_s: float = 600.0
    """Maximum time for all attempts and waits of one request, in seconds."""
    n_at_once: int = 8
    requests_per_minute: float | None = None


class PatientModel:
    """A model with its retry policy and the run's ledger. A Retry-After delays every call to this model."""

    def __init__(self, model: Model, ledger: Ledger, pace: Pace | None = None, sleep: Sleep = asyncio.sleep) -> None:
        self._model, self._ledger, self._pace, self._sleep = model, ledger, pace or Pace(), sleep
        self._slots = asyncio.Semaphore(self._pace.n_at_once)
        self._not_before_s = 0.0
        self._jitter = random.Random(model.name)

    @property
    def name(self) -> str:
        return self._model.name

    async def ask(self, request: ModelRequest, on_text: OnText = ignore_text) -> Replied | ModelFailed:
        """Return the reply, after retries on the provider's errors."""
        async with self._slots:
            return await self._persist(request, on_text)

    async def _persist(self, request: ModelRequest, on_text: OnText) -> Replied | ModelFailed:
        give_up_s = time.monotonic() + self._pace.patience_s
        attempt = 1
        while True:
            await self._wait_turn()
            outcome = await self._ask_once(request, on_text)
            if isinstance(outcome, Replied) or outcome.cause not in RETRIED or attempt >= self._pace.n_attempts:
                return outcome
            wait_s = self._wait_s(outcome, attempt)
            if time.monotonic() + wait_s > give_up_s:
                return outcome
            if outcome.retry_after_s is not None:
                self._not_before_s = max(self._not_before_s, time.monotonic() + wait_s)
            await self._sleep(wait_s)
            attempt += 1

    async def _ask_once(self, request: ModelRequest, on_text: OnText) -> Replied | ModelFailed:
        worst_usd = self._model.worst_cost_usd(request) or 0.0
        if not self._ledger.reserve(worst_usd):
            spent = f"${self._ledger.spending.cost_usd:.4f} of ${self._ledger.budget_usd:.4f}"
            message = f"one more call may cost ${worst_usd:.4f}, and {spent} are spent"
            return ModelFailed(model=self.name, cause="budget", message=message)
        try:
            outcome = await self._model.reply(request, on_text)
        except BaseException:
            self._ledger.release(worst_usd)
            raise
        self._ledger.settle(worst_usd, outcome.usage, failed=isinstance(outcome, ModelFailed))
        if isinstance(outcome, ModelFailed):
            return outcome.model_copy(update={"message": hide_keys(outcome.message)})
        return outcome.model_copy(update={"text": hide_known_keys(outcome.text)})

    async def _wait_turn(self) -> None:
        """Wait until the provider's Retry-After has passed and the rate limit allows another request."""
        now = time.monotonic()
        start_s = max(now, self._not_before_s)
        if self._pace.requests_per_minute:
            self._not_before_s = start_s + 60.0 / self._pace.requests_per_minute
        if start_s > now:
            await self._sleep(start_s - now)

    def _wait_s(self, outcome: ModelFailed, attempt: int) -> float:
        grown_s = self._pace.first_wait_s * self._pace.factor ** (attempt - 1)
        backed_off_s = min(grown_s, self._pace.longest_wait_s) * self._jitter.uniform(0.5, 1.0)
        return max(backed_off_s, outcome.retry_after_s or 0.0)
