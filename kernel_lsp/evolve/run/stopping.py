"""Stop a search early. A pure function of the results, so a resumed run stops alike."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.core.measurement import Comparison, is_pytorch
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.evolve.propose.population import Member

FLOOR_FACTOR = 1.05
"""Factor to the speed of light within which the search stops: 5 % leave nothing to find (KernelAgent stops at 95 % of
it, too)."""
MIN_NOISE = 0.01
"""Relative noise below which neither estimates nor measurements distinguish two kernels."""
N_STALE_GENERATIONS = 3
N_STALE_TUNING = 2
"""Generations of schedules without a gain: the neighbourhood of the best is then mostly known."""
N_FAILED_CALLS = 8
"""Maximum consecutive proposals without a reply, after which the provider counts as unavailable."""


def why_give_up(n_failed_in_a_row: int, last_failure: str) -> str:
    """Return the reason to stop asking the models, or empty."""
    if n_failed_in_a_row < N_FAILED_CALLS:
        return ""
    return f"{n_failed_in_a_row} proposals in a row brought no reply; the last: {last_failure}"


def why_stop(best_us: Sequence[float | None], best: Member, floor_us: float, n_per_generation: int) -> str:
    """Return the reason why more proposals gain nothing, or empty. `best_us` is the best time after each settled
    proposal, in order; None before the first correct one."""
    if best.time_us <= FLOOR_FACTOR * floor_us:
        return f"the best is within {FLOOR_FACTOR - 1:.0%} of the speed of light ({floor_us:.3g} us)"
    noise = relative_noise(best.verdict)
    if _is_stale(best_us, noise, N_STALE_GENERATIONS * n_per_generation):
        return f"{N_STALE_GENERATIONS} generations gained less than the noise of {noise:.1%}"
    return ""


def why_stop_tuning(best: Verdict, best_us: Sequence[float], n_generations: int) -> str:
    """Return the reason why more schedules gain nothing, or empty. `best_us` is the best time after each of the
    `n_generations` so far."""
    floors = [comparison.floor.time_us for comparison in best.times.values() if comparison.floor is not None]
    if floors and len(floors) == len(best.times):
        bound_us, limit = FLOOR_FACTOR * sum(floors), f"within {FLOOR_FACTOR - 1:.0%} of the speed of light"
        if best_us[-1] <= bound_us:
            return f"the best is {limit} ({sum(floors):.3g} us)"
        if n_generations >= N_STALE_TUNING and sum(map(_pytorch_us, best.times.values())) <= bound_us:
            return f"PyTorch itself is {limit} ({sum(floors):.3g} us): no kernel can be clearly faster"
    noise = relative_noise(best)
    if n_generations > N_STALE_TUNING and best_us[-1] > best_us[-1 - N_STALE_TUNING] * (1.0 - noise):
        return f"{N_STALE_TUNING} generations gained less than the noise of {noise:.1%}"
    return ""


def _pytorch_us(comparison: Comparison) -> float:
    return min(time_us for name, time_us in comparison.baselines_us.items() if is_pytorch(name))


def relative_noise(verdict: Verdict) -> float:
    """Return half the relative interval of a measured time; the minimum for an estimate, which is deterministic."""
    measured = verdict.measurement
    if measured is None:
        return MIN_NOISE
    return max((measured.high_us - measured.low_us) / 2 / measured.time_us, MIN_NOISE)


def _is_stale(best_us: Sequence[float | None], noise: float, n_proposals: int) -> bool:
    if len(best_us) <= n_proposals:
        return False
    before, now = best_us[-n_proposals - 1], best_us[-1]
    return before is not None and now is not None and now > before * (1.0 - noise)
