"""The end of a search: stop it early, then check the best candidates in full, one by one, until one passes."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.event import Event, StageStarted
from kernel_lsp.core.measurement import EAGER, Comparison, is_pytorch
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.core.words import counted
from kernel_lsp.evolve.propose.population import Member
from kernel_lsp.evolve.run.evaluations import Evaluations, outcome_message, score_kind

N_VERIFICATION_ATTEMPTS = 6
"""Maximum full checks of a run: candidates share their structure, so a cause that fails six of them fails the rest."""
FLOOR_FACTOR = 1.05
"""Factor to the speed of light within which the search stops: 5 % leave nothing to find (KernelAgent stops at 95 % of
it, too)."""
MIN_NOISE = 0.01
"""Relative noise below which neither estimates nor measurements distinguish two kernels."""
N_STALE_GENERATIONS = 3
N_STALE_ESTIMATED, N_STALE_MEASURED = 2, 1
"""Generations of schedules without a gain: the neighbourhood of the best is then mostly known. A third measured one,
after a second without a gain, gained 0.2 % at most in five searches and took 7 to 9 s (H200, 2026-11-28)."""
N_GENERATIONS_AT_LIMIT = 2
"""Generations after which the search ends where PyTorch itself is at the speed of light."""
MAX_DEVICE_S = 20.0
"""Seconds of the GPU for schedules, after which no further generation begins: with PyTorch's compilation, which goes on
beside it, a search then ends within two minutes also where one call takes a tenth of a second."""
MAX_SEARCH_S = 20.0
"""Seconds of measured generations after which no further one begins: three of four second generations gained nothing in
15 to 22 s, the fourth 11 % in 40 s (H200, 2026-11-28)."""
AHEAD = 1.2
"""Factor by which the best is ahead of PyTorch, modes of `torch.compile` included, from which on `MAX_AHEAD_S` bounds
measured generations: what another one gains there changes no recommendation."""
MAX_AHEAD_S = 8.0
"""Seconds of measured generations of a search that is `AHEAD`. Second generations gained 0, 0 and 1.8 % in about 9.5 s
each (H200, 2026-11-29); the bound was not compared with none on a GPU."""
UNTIMED = re.compile(r"\bnot (timed|measured): ")
"""Notes of verdicts that say why a correct candidate has no time."""
N_FAILED_CALLS = 8
"""Maximum consecutive proposals without a reply, after which the provider counts as unavailable."""


@dataclass(frozen=True)
class Finalist:
    """A candidate that passed its screen, with that verdict and its time."""

    candidate: Candidate
    screened: Verdict
    time_us: float


@dataclass(frozen=True)
class TimeLimit:
    """Time for a run's candidates, in seconds from its start on a monotonic clock: none but the first starts later."""

    seconds: float
    started: float

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.started + self.seconds


@dataclass(frozen=True)
class SearchResult:
    """Result of a search. `winner` is fully verified, or None. `n_built` counts the candidates that compiled. `stopped`
    is the reason for an early stop; `is_cut_short` when that is the time limit."""

    winner: Candidate | None
    verdict: Verdict | None
    reason: str
    n_proposed: int
    n_built: int
    n_correct: int
    stopped: str = ""
    is_cut_short: bool = False


class Ending:
    """Verify `finalists`, best first; `screened` are all verdicts of the search. `given_ids` are the candidates from
    which the search started."""

    def __init__(
        self,
        finalists: Sequence[Finalist],
        screened: Sequence[Verdict],
        n_proposed: int,
        evaluations: Evaluations,
        stopped: str = "",
        given_ids: frozenset[str] = frozenset(),
    ) -> None:
        self._finalists, self._screened, self._n_proposed = finalists, screened, n_proposed
        self._evaluations, self._stopped, self._given_ids = evaluations, stopped, given_ids
        self.result: SearchResult | None = None

    async def run(self) -> AsyncIterator[Event]:
        """Yield the events of the full checks; afterwards `result` is set."""
        refused: list[str] = []
        for finalist in self._finalists[:N_VERIFICATION_ATTEMPTS]:
            yield StageStarted(message=self._full_check_text(finalist, len(refused)))
            verdict, event = await self._evaluations.evaluate(finalist.candidate, "full")
            yield event
            if verdict.is_correct:
                self.result = self._ended(finalist.candidate, verdict, self._why(finalist, len(refused)))
                return
            refused.append(outcome_message(verdict))
        self.result = self._ended(None, None, self._why_none(refused))

    def _full_check_text(self, finalist: Finalist, n_refused: int) -> str:
        """Describe the current step, with the maximum wait for PyTorch's compiled modes, if any."""
        which = "best" if not n_refused else "next best"
        text = f"full check of the {which} candidate {finalist.candidate.id}"
        wait_s = self._evaluations.baseline_wait_s
        return f"{text}: it waits at most {wait_s:.0f} s for torch.compile, to time both" if wait_s else text

    def _ended(self, winner: Candidate | None, verdict: Verdict | None, reason: str) -> SearchResult:
        n_built = sum(v.outcome.kind != "build_failed" for v in self._screened)
        n_correct = sum(v.is_correct for v in self._screened)
        return SearchResult(winner, verdict, reason, self._n_proposed, n_built, n_correct, self._stopped)

    def _why(self, winner: Finalist, n_refused: int) -> str:
        kind = score_kind(winner.screened)
        others = [finalist for finalist in self._finalists if finalist is not winner]
        which = "fastest" if winner.time_us <= min(each.time_us for each in self._finalists) else "verified first"
        text = f"{which} of {len(self._finalists)} correct candidates ({kind}: {winner.time_us:.3g} us"
        text += f"; the next {others[0].time_us:.3g} us" if others else ""
        text += f", the slowest {others[-1].time_us:.3g} us)" if len(others) > 1 else ")"
        if n_refused:
            text += f"; {n_refused} faster ones failed the full check"
        return text + self._beside_given(winner)

    def _beside_given(self, winner: Finalist) -> str:
        """Compare the winner with the best of the kernels from which the search started."""
        if not self._given_ids:
            return ""
        words = "the given kernel" if len(self._given_ids) == 1 else "the best given kernel"
        if winner.candidate.id in self._given_ids:
            return f"; nothing beat {words}"
        given = next((f for f in self._finalists if f.candidate.id in self._given_ids), None)
        if given is not None:
            return f"; {given.time_us / winner.time_us:.3g}x as fast as {words} ({given.time_us:.3g} us)"
        verdict = next((v for v in self._screened if v.candidate_id in self._given_ids), None)
        why = "has no time" if verdict is None or verdict.is_correct else f"failed: {outcome_message(verdict)}"
        return f"; {words} {why}"

    def _why_none(self, refused: Sequence[str]) -> str:
        messages = [*refused] or [outcome_message(v) for v in self._screened if not v.is_correct]
        if messages:
            return f"no candidate passed; the first failure: {messages[0]}"
        if self._screened:
            return why_untimed(self._screened)
        ended = f": {self._stopped}" if self._stopped else ""
        if self._n_proposed:
            return f"{counted(self._n_proposed, 'candidate')} proposed, none evaluated{ended}"
        return f"the generator has no valid schedule{ended}"


def why_untimed(verdicts: Sequence[Verdict]) -> str:
    """Return why correct candidates have no time, so that none can be chosen."""
    notes = [note for verdict in verdicts for note in verdict.notes if UNTIMED.search(note)]
    took_s = max((verdict.evaluate_s for verdict in verdicts), default=0.0)
    why = notes[0] if notes else f"nothing was measured in {took_s:.0f} s"
    return f"{counted(len(verdicts), 'candidate')} correct, none has a time to be ranked by: {why}"


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


def why_stop_tuning(
    best: Verdict,
    best_us: Sequence[float],
    n_generations: int,
    device_s: float,
    search_s: float,
    is_ahead: bool,
) -> str:
    """Return the reason why more schedules gain nothing or too little, or empty. `best_us` is the best time after each
    of the `n_generations` so far, which took `device_s` of the GPU. `search_s` are the seconds so far of a search that
    measures, else 0. `is_ahead` is as `is_clearly_ahead` says."""
    floor_us = _floor_us(best)
    if floor_us is not None:
        limit = f"within {FLOOR_FACTOR - 1:.0%} of the speed of light ({floor_us:.3g} us)"
        if is_at_limit(best, best_us[-1]):
            return f"the best is {limit}"
        pytorch_us = _pytorch_us(best.times.values())
        if n_generations >= N_GENERATIONS_AT_LIMIT and pytorch_us <= FLOOR_FACTOR * floor_us:
            return f"PyTorch itself is {limit}: no kernel can be clearly faster"
    noise = relative_noise(best)
    n_stale = N_STALE_MEASURED if search_s else N_STALE_ESTIMATED
    if n_generations > n_stale and best_us[-1] > best_us[-1 - n_stale] * (1.0 - noise):
        return f"{counted(n_stale, 'generation')} gained less than the noise of {noise:.1%}"
    max_s = MAX_AHEAD_S if is_ahead else MAX_SEARCH_S
    if search_s > max_s:
        where = f" where the best is {AHEAD:g}x as fast as PyTorch" if is_ahead else ""
        took = f"{counted(n_generations, 'generation')} took {search_s:.0f} s"
        return f"{took}, and none begins after {max_s:.0f} s{where}"
    if device_s > MAX_DEVICE_S:
        return f"candidates took {device_s:.0f} s of the GPU, more than the {MAX_DEVICE_S:.0f} s that a search may take"
    return ""


def is_at_limit(verdict: Verdict, time_us: float) -> bool:
    """Check whether a candidate's time is so near the speed of light that no other gains anything, in each of its
    operations: gated residual's were 4.9 % from it together, its backward 8.8 % (H200, 2026-11-29)."""
    floor_us = _floor_us(verdict)
    if floor_us is None or time_us > FLOOR_FACTOR * floor_us:
        return False
    comparisons = verdict.times.values()
    return all(each.floor is None or each.ours.time_us <= FLOOR_FACTOR * each.floor.time_us for each in comparisons)


def is_clearly_ahead(time_us: float, verdicts: Iterable[Verdict]) -> bool:
    """Check whether a time is `AHEAD` of the fastest of PyTorch in these verdicts. False while none of them has a mode
    of `torch.compile` for each operation."""
    found = [_pytorch_us(times) for each in verdicts if _has_compiled(times := each.times.values())]
    return bool(found) and min(found) >= AHEAD * time_us


def _has_compiled(comparisons: Collection[Comparison]) -> bool:
    """Check whether there are operations, and each was compared with a mode of `torch.compile`."""
    modes = [[name for name in each.baselines_us if is_pytorch(name) and name != EAGER] for each in comparisons]
    return bool(modes) and all(modes)


def _floor_us(verdict: Verdict) -> float | None:
    """Return the speed of light of all operations; None where one is unknown."""
    floors = [comparison.floor.time_us for comparison in verdict.times.values() if comparison.floor is not None]
    return sum(floors) if floors and len(floors) == len(verdict.times) else None


def device_seconds(verdict: Verdict) -> float:
    """Return the seconds for which a candidate occupied the GPU."""
    return sum(time_s for stage, time_s in verdict.stages_s.items() if stage.startswith("gpu ") and stage != "gpu wait")


def _pytorch_us(comparisons: Iterable[Comparison]) -> float:
    """Return the time of all operations, each in the fastest way of PyTorch."""
    return sum(min(us for name, us in each.baselines_us.items() if is_pytorch(name)) for each in comparisons)


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
