"""What a run spends on models, and the limit that it never passes.

Before a call its worst cost is set aside; afterwards the real cost replaces it. A call that could pass the limit is not
made, so the limit holds whatever the calls that are under way turn out to cost.
"""

from __future__ import annotations

from kernel_lsp.core.model import Noun
from kernel_lsp.llm.request import Usage

ROUNDING_USD = 1e-9
"""Sums of prices are exact to far less than this; a budget of exactly one call must allow it."""


class Spending(Noun):
    """Totals of a run. `n_unpriced` calls have no known price and are not in `cost_usd`."""

    n_calls: int = 0
    n_failed: int = 0
    n_prompt_tokens: int = 0
    n_reply_tokens: int = 0
    cost_usd: float = 0.0
    n_unpriced: int = 0

    def plus(self, usage: Usage, *, failed: bool) -> Spending:
        """With one more call."""
        return Spending(
            n_calls=self.n_calls + 1,
            n_failed=self.n_failed + failed,
            n_prompt_tokens=self.n_prompt_tokens + usage.n_prompt_tokens,
            n_reply_tokens=self.n_reply_tokens + usage.n_reply_tokens,
            cost_usd=self.cost_usd + (usage.cost_usd or 0.0),
            n_unpriced=self.n_unpriced + (usage.cost_usd is None),
        )


class Ledger:
    """The spending of one run against its budget; `budget_usd` None is no limit."""

    def __init__(self, budget_usd: float | None, spending: Spending | None = None) -> None:
        self.budget_usd = budget_usd
        self.spending = spending or Spending()
        self._reserved_usd = 0.0

    def reserve(self, worst_usd: float) -> bool:
        """Set the worst cost of a call aside; False when it could pass the budget."""
        if self.budget_usd is not None and worst_usd > 0:
            committed_usd = self.spending.cost_usd + self._reserved_usd + worst_usd
            if committed_usd > self.budget_usd + ROUNDING_USD:
                return False
        self._reserved_usd += worst_usd
        return True

    def settle(self, worst_usd: float, usage: Usage, *, failed: bool) -> None:
        """Replace what was set aside by what the call cost."""
        self._reserved_usd -= worst_usd
        self.spending = self.spending.plus(usage, failed=failed)

    def release(self, worst_usd: float) -> None:
        """The call was not made."""
        self._reserved_usd -= worst_usd
