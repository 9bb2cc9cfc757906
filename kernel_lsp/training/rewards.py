"""Rewards for learning from verdicts: -1, 1, 2 or 3, as defined by CUDA Agent (arXiv 2602.24286).

-1: incorrect; 1: correct; 2: also more than 5 % faster than eager PyTorch; 3: also faster than every timed mode of
`torch.compile`. The lower reward of forward and backward counts. Estimates earn at most 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from kernel_lsp.core.measurement import Comparison, TimedBaseline
from kernel_lsp.core.model import Noun
from kernel_lsp.core.verdict import Verdict

FASTER = 1.05
EAGER = "eager"
WRONG: Final = -1
RIGHT: Final = 1
FASTER_THAN_EAGER: Final = 2
FASTER_THAN_COMPILE: Final = 3


class Reward(Noun):
    """`kind` is that of the times behind it; ``none`` without times."""

    value: Literal[-1, 1, 2, 3]
    kind: Literal["measured", "estimated", "none"]


def reward(verdict: Verdict) -> Reward:
    """Return the lowest reward of all operations."""
    if not verdict.is_correct:
        return Reward(value=WRONG, kind="none")
    if not verdict.times:
        return Reward(value=RIGHT, kind="none")
    rewards = [_of_operation(comparison) for comparison in verdict.times.values()]
    return min(rewards, key=lambda found: found.value)


def reward_of_speedups(speedups: Mapping[str, float], kind: Literal["measured", "estimated"]) -> Reward:
    """Return the reward of a correct kernel with these speedups over PyTorch, by baseline."""
    eager = speedups.get(EAGER)
    compiled = [speedup for name, speedup in speedups.items() if name != EAGER]
    if eager is None or eager <= FASTER:
        return Reward(value=RIGHT, kind=kind)
    if kind == "measured" and compiled and all(speedup > FASTER for speedup in compiled):
        return Reward(value=FASTER_THAN_COMPILE, kind=kind)
    return Reward(value=FASTER_THAN_EAGER, kind=kind)


def _of_operation(comparison: Comparison) -> Reward:
    return reward_of_speedups(_speedups(comparison), comparison.ours.kind)


def _speedups(comparison: Comparison) -> dict[str, float]:
    """Return speedups by baseline: the measured ratio where there is one, else that of the times."""
    ours_us = comparison.ours.time_us
    ratios = {each.name: each.ratio for each in comparison.baselines if isinstance(each, TimedBaseline)}
    return {
        name: ratio.value if (ratio := ratios.get(name)) is not None else time_us / ours_us
        for name, time_us in comparison.baselines_us.items()
    }
