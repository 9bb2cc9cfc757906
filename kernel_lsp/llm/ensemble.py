"""Choose the next model, temperature and kind of hint by bandits that learn from verified improvement.

Each of the three choices is a separate bandit (UCB1; Auer, Cesa-Bianchi and Fischer 2002): arms are ranked by their
mean gain, minus their share of the cost, plus an exploration bonus. The state is a function of the results so far, so
it survives a resumed run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

EXPLORATION = 0.4
"""Factor of UCB1's exploration bonus sqrt(2 ln n / n_i). Gains are mostly below 0.3, so the textbook's 1 would only
explore."""
COST_WEIGHT = 0.1
"""Mean gain deducted from an arm that causes all of the cost."""
RIGHT_GAIN = 0.1
"""Gain of a correct kernel that is no faster: better than an incorrect one."""
DROPPED_GAIN = 0.0

Mode = Literal["bandit", "uniform"]
Arm = TypeVar("Arm")


@dataclass(frozen=True)
class Arms:
    """One draw: an index into the models, a temperature, and a kind of hint (empty if none applies)."""

    model: int
    temperature: float
    hint_kind: str


@dataclass(frozen=True)
class Pull:
    """Result of a draw. `gain` is None until it is known."""

    arms: Arms
    gain: float | None = None
    cost_usd: float = 0.0


class Ensemble:
    """Draw arms from the results so far. The same results and `seed` give the same draw."""

    def __init__(self, n_models: int, temperatures: Sequence[float], mode: Mode, seed: int) -> None:
        self._n_models, self._temperatures = n_models, tuple(temperatures)
        self._mode, self._seed = mode, seed

    def draw(self, slot: int, pulls: Sequence[Pull], hint_kinds: Sequence[str]) -> Arms:
        """Return the arms of proposal `slot`. `hint_kinds` are the applicable ones."""
        draw = random.Random(f"{self._seed}:arms:{slot}")
        models = {model: [pull for pull in pulls if pull.arms.model == model] for model in range(self._n_models)}
        temperatures = {t: [pull for pull in pulls if pull.arms.temperature == t] for t in self._temperatures}
        hints = {kind: [pull for pull in pulls if pull.arms.hint_kind == kind] for kind in hint_kinds}
        return Arms(
            model=int(self._best(models, draw)),
            temperature=float(self._best(temperatures, draw)),
            hint_kind=str(self._best(hints, draw)) if hints else "",
        )

    def _best(self, pulls: Mapping[Arm, Sequence[Pull]], draw: random.Random) -> Arm:
        arms = list(pulls)
        draw.shuffle(arms)  # breaks ties, and the first draws, at random
        if self._mode == "uniform":
            return arms[0]
        n_all = sum(len(found) for found in pulls.values())
        cost_usd = sum(pull.cost_usd for found in pulls.values() for pull in found)
        return max(arms, key=lambda arm: _upper_bound(pulls[arm], n_all, cost_usd))


def gain_of(time_us: float | None, parent_us: float | None) -> float:
    """Return a verified kernel's gain: the logarithm of its speedup over the best kernel it was shown, between 0 and 1,
    plus a small amount for being correct."""
    if time_us is None:
        return DROPPED_GAIN
    if parent_us is None:
        return 1.0
    return RIGHT_GAIN + min(max(math.log2(parent_us / time_us), 0.0), 1.0) * (1.0 - RIGHT_GAIN)


def _upper_bound(pulls: Sequence[Pull], n_all: int, cost_usd: float) -> float:
    """Return the upper confidence bound. A pending draw counts, so that concurrent draws differ."""
    if not pulls:
        return math.inf
    known = [pull.gain for pull in pulls if pull.gain is not None]
    mean = sum(known) / len(known) if known else 0.0
    share = sum(pull.cost_usd for pull in pulls) / cost_usd if cost_usd > 0 else 0.0
    return mean - COST_WEIGHT * share + EXPLORATION * math.sqrt(2.0 * math.log(n_all) / len(pulls))
