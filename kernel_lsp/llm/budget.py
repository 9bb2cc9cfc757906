"""Track a run's spending on models, and enforce its limit.

The worst-case cost of a call is reserved before it, and replaced by the real cost afterwards. A call that could exceed
the limit is not made, so the limit holds whatever concurrent calls turn out to cost.
"""

from __future__ import annotations

from kernel_lsp.core.model import Noun
from kernel_lsp.llm.request import Usage

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
