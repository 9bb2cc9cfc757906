"""Call a model within a budget and the provider's rate limits: spending is tracked, concurrency bounded, errors retried
after a pause.

The worst-case cost of a call is reserved before it, and replaced by the real cost afterwards. A call that could exceed
the limit is not made, so the limit holds whatever concurrent calls turn out to cost.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kernel_lsp.core.model import Noun
from kernel_lsp.llm.litellm_model import hide_keys, hide_known_keys
from kernel_lsp.llm.request import RETRIED, Model, ModelFailed, ModelRequest, OnText, Replied, Usage, ignore_text

ROUNDING_USD = 1e-9
"""Tolerance in US dollars, far above the rounding error of sums, so that a budget of exactly one call allows it."""


class Spending(Noun):
    """Totals of a run. `n_unpriced` calls have no known price and are excluded from `cost_usd`."""

    n_calls: int = 0
    n_failed: int = 0
    n_prompt_tokens: int = 0
    n_reply_tokens: int = 0
    cost_usd: float = 0.0
    n_unpriced: int = 0

    def plus(self, usage: Usage, *, failed: bool) -> Spending:
        """Return the totals with one more call."""
        return Spending(
            n_calls=self.n_calls + 1,
            n_failed=self.n_failed + failed,
            n_prompt_tokens=self.n_prompt_tokens + usage.n_prompt_tokens,
            n_reply_tokens=self.n_reply_tokens + usage.n_reply_tokens,
            cost_usd=self.cost_usd + (usage.cost_usd or 0.0),
            n_unpriced=self.n_unpriced + (usage.cost_usd is None),
        )


class Ledger:
    """The spending of one run against its budget; `budget_usd` None means no limit."""

    def __init__(self, budget_usd: float | None, spending: Spending | None = None) -> None:
        self.budget_usd = budget_usd
        self.spending = spending or Spending()
        self._reserved_usd = 0.0

    def reserve(self, worst_usd: float) -> bool:
        """Reserve the worst-case cost of a call; return False if it could exceed the budget."""
        if self.budget_usd is not None and worst_usd > 0:
            committed_usd = self.spending.cost_usd + self._reserved_usd + worst_usd
            if committed_usd > self.budget_usd + ROUNDING_USD:
                return False
        self._reserved_usd += worst_usd
        return True

    def settle(self, worst_usd: float, usage: Usage, *, failed: bool) -> None:
        """Replace the reservation by the call's cost."""
        self._reserved_usd -= worst_usd
        self.spending = self.spending.plus(usage, failed=failed)

    def release(self, worst_usd: float) -> None:
        """Release the reservation of a call that was not made."""
        self._reserved_usd -= worst_usd


Sleep = Callable[[float], Awaitable[None]]
OnWait = Callable[[ModelFailed, float], None]
"""Receives a failed attempt and the seconds until the next one."""
LONG_WAIT_S = 5.0
"""Minimum wait in seconds that is told: shorter ones are over before they are read."""


def ignore_wait(_: ModelFailed, __: float) -> None:
    """Do nothing."""


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

    def __init__(self, model: Model, ledger: Ledger, pace: Pace | None, sleep: Sleep = asyncio.sleep) -> None:
        self._model, self._ledger, self._pace, self._sleep = model, ledger, pace or Pace(), sleep
        self._slots = asyncio.Semaphore(self._pace.n_at_once)
        self._not_before_s = 0.0
        self._jitter = random.Random(model.name)

    @property
    def name(self) -> str:
        return self._model.name

    async def ask(
        self, request: ModelRequest, on_text: OnText = ignore_text, on_wait: OnWait = ignore_wait
    ) -> Replied | ModelFailed:
        """Return the reply, after retries on the provider's errors; `on_wait` is called before long waits."""
        async with self._slots:
            return await self._persist(request, on_text, on_wait)

    async def _persist(self, request: ModelRequest, on_text: OnText, on_wait: OnWait) -> Replied | ModelFailed:
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
            if wait_s >= LONG_WAIT_S:
                on_wait(outcome, wait_s)
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
