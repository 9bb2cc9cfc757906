"""Which model, temperature and kind of hint to draw next: bandits that learn from verified improvement.

Each of the three choices is a bandit of its own (UCB1, Auer, Cesa-Bianchi and Fischer 2002): arms are drawn by their
mean gain, less their share of the cost, plus an allowance for having been drawn seldom. The state is a function of the
results seen so far, so it survives whatever the run survives.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

EXPLORATION = 0.4
"""Of UCB1's sqrt(2 ln n / n_i). Gains are mostly below 0.3, so the textbook's 1 would only explore."""
COST_WEIGHT = 0.1
"""An arm that costs all of the money gives up this much of its mean gain."""
RIGHT_GAIN = 0.1
"""For a kernel that is right and no faster: better than one that is wrong."""
DROPPED_GAIN = 0.0

Mode = Literal["bandit", "uniform"]
Arm = TypeVar("Arm")


@dataclass(frozen=True)
class Arms:
    """One draw: an index into the models, a temperature, a kind of hint (empty where none applies)."""

    model: int
    temperature: float
    hint_kind: str


@dataclass(frozen=True)
class Pull:
    """What a draw brought. `gain` is None while it is not known."""

    arms: Arms
    gain: float | None = None
    cost_usd: float = 0.0


class Ensemble:
    """Draws arms from the pulls so far. The same pulls and the same `seed` give the same draw."""

    def __init__(self, n_models: int, temperatures: Sequence[float], mode: Mode, seed: int) -> None:
        self._n_models, self._temperatures = n_models, tuple(temperatures)
        self._mode, self._seed = mode, seed

    def draw(self, slot: int, pulls: Sequence[Pull], hint_kinds: Sequence[str]) -> Arms:
        """The arms of proposal `slot`. `hint_kinds` are those that apply now."""
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
        draw.shuffle(arms)  # ties, and the first draws, fall at random
        if self._mode == "uniform":
            return arms[0]
        n_all = sum(len(found) for found in pulls.values())
        cost_usd = sum(pull.cost_usd for found in pulls.values() for pull in found)
        return max(arms, key=lambda arm: _upper_bound(pulls[arm], n_all, cost_usd))


def gain_of(time_us: float | None, parent_us: float | None) -> float:
    """What a verified kernel is worth: the logarithm of its speed-up over the best it was shown, between 0 and 1; a
    little for being right at all."""
    if time_us is None:
        return DROPPED_GAIN
    if parent_us is None:
        return 1.0
    return RIGHT_GAIN + min(max(math.log2(parent_us / time_us), 0.0), 1.0) * (1.0 - RIGHT_GAIN)


def _upper_bound(pulls: Sequence[Pull], n_all: int, cost_usd: float) -> float:
    """A pull under way counts as drawn, so that many at once do not all draw the same."""
    if not pulls:
        return math.inf
    known = [pull.gain for pull in pulls if pull.gain is not None]
    mean = sum(known) / len(known) if known else 0.0
    share = sum(pull.cost_usd for pull in pulls) / cost_usd if cost_usd > 0 else 0.0
    return mean - COST_WEIGHT * share + EXPLORATION * math.sqrt(2.0 * math.log(n_all) / len(pulls))
