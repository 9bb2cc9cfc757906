"""The end of a search: full checks of the best candidates, one by one, until one passes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.event import Event, StageStarted
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.evolve.run.evaluations import Evaluations, outcome_message, score_kind

N_VERIFICATION_ATTEMPTS = 6
"""Maximum full checks of a run: candidates share their structure, so a cause that fails six of them fails the rest."""


@dataclass(frozen=True)
class Finalist:
    """A candidate that passed its screen, with that verdict and its time."""

    candidate: Candidate
    screened: Verdict
    time_us: float


@dataclass(frozen=True)
class SearchResult:
    """Result of a search. `winner` is fully verified, or None. `n_built` counts the candidates that compiled. `stopped`
    is the reason for an early stop."""

    winner: Candidate | None
    verdict: Verdict | None
    reason: str
    n_proposed: int
    n_built: int
    n_correct: int
    stopped: str = ""


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

    # --- below

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
        text = f"fastest of {len(self._finalists)} correct candidates ({kind}: {winner.time_us:.3g} us"
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
        first = messages[0] if messages else self._stopped or "nothing was proposed"
        return f"no candidate passed; the first failure: {first}"
