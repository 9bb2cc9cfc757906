"""When a search of models ends before its last generation. A function of what is known, so a resumed run ends alike."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.core.verdict import Verdict
from kernel_lsp.evolve.propose.population import Member

FLOOR_FACTOR = 1.05
"""Within 5 % of what the hardware allows there is nothing left to find (KernelAgent stops at 95 % of it, too)."""
MIN_NOISE = 0.01
"""Relative. Below it neither an estimate nor a measurement can tell two kernels apart."""
N_STALE_GENERATIONS = 3
N_FAILED_CALLS = 8
"""Proposals in a row that got no reply: the provider will not come back within a run's patience."""


def why_give_up(n_failed_in_a_row: int, last_failure: str) -> str:
    """The reason to ask the models no more, or empty."""
    if n_failed_in_a_row < N_FAILED_CALLS:
        return ""
    return f"{n_failed_in_a_row} proposals in a row brought no reply; the last: {last_failure}"


def why_stop(best_us: Sequence[float | None], best: Member, floor_us: float, n_per_generation: int) -> str:
    """The reason why more proposals gain nothing, or empty. `best_us` is the best time after each settled proposal, in
    their order; None before the first right one."""
    if best.time_us <= FLOOR_FACTOR * floor_us:
        return f"the best is within {FLOOR_FACTOR - 1:.0%} of the floor ({floor_us:.3g} us)"
    noise = relative_noise(best.verdict)
    if _is_stale(best_us, noise, N_STALE_GENERATIONS * n_per_generation):
        return f"{N_STALE_GENERATIONS} generations gained less than the noise of {noise:.1%}"
    return ""


def relative_noise(verdict: Verdict) -> float:
    """Half the interval of a measured time; an estimate is deterministic, and good to no more than the minimum."""
    measured = verdict.measurement
    if measured is None:
        return MIN_NOISE
    return max((measured.high_us - measured.low_us) / 2 / measured.time_us, MIN_NOISE)


def _is_stale(best_us: Sequence[float | None], noise: float, n_proposals: int) -> bool:
    if len(best_us) <= n_proposals:
        return False
    before, now = best_us[-n_proposals - 1], best_us[-1]
    return before is not None and now is not None and now > before * (1.0 - noise)
