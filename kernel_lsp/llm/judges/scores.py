"""Score a judge on kernels whose correctness is known."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.core.model import Noun

THRESHOLD = 0.5


class Judged(Noun):
    """One kernel and one judge. `is_right` is the truth about the faults that the judge looks for."""

    kernel: str
    said: float
    is_right: bool
    evaluate_s: float = 0.0


class Score(Noun):
    """`held_back` counts the kernels whose probability is below the threshold.

    `precision` is the fraction of faulty kernels among those held back, `recall` the fraction of faulty kernels that
    are held back, and `brier` the mean squared error of the probabilities (0 is perfect, 0.25 is chance). None where
    the denominator is 0. `saved_s` is the evaluation time of faulty kernels held back, `n_lost` the number of correct
    kernels held back.
    """

    judge: str
    model: str
    n: int
    n_faulty: int
    n_held_back: int
    n_lost: int
    accuracy: float | None
    precision: float | None
    recall: float | None
    brier: float | None
    saved_s: float
    n_unanswered: int = 0


def score(judge: str, model: str, judged: Sequence[Judged], n_unanswered: int, threshold: float = THRESHOLD) -> Score:
    """Return the score over all judged kernels."""
    held_back = [found for found in judged if found.said < threshold]
    faulty = [found for found in judged if not found.is_right]
    caught = [found for found in held_back if not found.is_right]
    n_agreed = sum((found.said >= threshold) == found.is_right for found in judged)
    squared_error = sum((found.said - found.is_right) ** 2 for found in judged)
    return Score(
        judge=judge,
        model=model,
        n=len(judged),
        n_faulty=len(faulty),
        n_held_back=len(held_back),
        n_lost=len(held_back) - len(caught),
        accuracy=_ratio(n_agreed, len(judged)),
        precision=_ratio(len(caught), len(held_back)),
        recall=_ratio(len(caught), len(faulty)),
        brier=_ratio(squared_error, len(judged)),
        saved_s=sum(found.evaluate_s for found in caught),
        n_unanswered=n_unanswered,
    )


COLUMNS = ("judge", "kernels", "faulty", "accuracy", "precision", "recall", "Brier", "lost", "saved", "model")


def cells(score: Score) -> tuple[str, ...]:
    """Return one row below `COLUMNS`, as the command line and docs/model-results.md show it."""
    ratios = (score.accuracy, score.precision, score.recall, score.brier)
    shown = ("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
    counts = (str(count) for count in (score.n, score.n_faulty))
    return (score.judge, *counts, *shown, str(score.n_lost), f"{score.saved_s:.1f} s", score.model)


def markdown_table(scores: Sequence[Score]) -> str:
    """Return the rows as a table of Markdown."""
    rows = (COLUMNS, ("---",) * len(COLUMNS), *map(cells, scores))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _ratio(part: float, whole: int) -> float | None:
    return part / whole if whole else None
