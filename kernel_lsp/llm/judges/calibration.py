"""Judgements of candidates, and the calibration of judges' probabilities against labelled kernels, with scores of the
judges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from kernel_lsp.core.model import Noun
from kernel_lsp.errors import UserError

JudgeName = Literal["compilation", "memory", "numerics"]
JUDGES: tuple[JudgeName, ...] = ("compilation", "memory", "numerics")


class Judgement(Noun):
    """`said` is the judge's own probability of no fault of its kind, `probability` the calibrated one."""

    judge: JudgeName
    model: str
    said: float
    probability: float
    request_key: str
    prompt_hash: str


class NoJudgement(Noun):
    """The judge gave no readable answer, and is not counted."""

    judge: JudgeName
    model: str
    problem: str


FILE_NAME = "judges.json"
CLIP = 1e-3
"""Probabilities are clipped to this distance from 0 and 1, which keeps logits finite."""
N_STEPS = 100
RIDGE = 1.0
"""Regularization towards the identity, equivalent to about one observation: few labels must not produce a step
function."""
MAX_STEP = 1.0
"""Maximum size of one Newton step: on flat regions full steps overshoot and diverge."""
THRESHOLD = 0.5


class Fit(Noun):
    """``calibrated = logistic(slope * logit(said) + shift)``, fitted to `n` labels."""

    judge: JudgeName
    model: str
    slope: float
    shift: float
    n: int


class Calibration(Noun):
    """The fits of a workspace. Without a fit, a judge's probability is used unchanged."""

    fits: tuple[Fit, ...] = ()

    def calibrated(self, judge: JudgeName, model: str, said: float) -> float:
        """Return the calibrated probability of a judge's output."""
        for fit in self.fits:
            if (fit.judge, fit.model) == (judge, model):
                return _logistic(fit.slope * _logit(said) + fit.shift)
        return said


def fit(judge: JudgeName, model: str, said: Sequence[float], is_right: Sequence[bool]) -> Fit:
    """Fit Platt's logistic map by Newton's method, with a ridge penalty towards slope 1 and shift 0."""
    slope, shift = 1.0, 0.0
    points = [(_logit(probability), float(label)) for probability, label in zip(said, is_right, strict=True)]
    for _ in range(N_STEPS):
        gradient_slope, gradient_shift = RIDGE * (slope - 1.0), RIDGE * shift
        h_slope, h_both, h_shift = RIDGE, 0.0, RIDGE
        for x, label in points:
            p = _logistic(slope * x + shift)
            weight = p * (1.0 - p)
            gradient_slope += (p - label) * x
            gradient_shift += p - label
            h_slope, h_both, h_shift = h_slope + weight * x * x, h_both + weight * x, h_shift + weight
        determinant = h_slope * h_shift - h_both * h_both
        slope -= _bounded((h_shift * gradient_slope - h_both * gradient_shift) / determinant)
        shift -= _bounded((h_slope * gradient_shift - h_both * gradient_slope) / determinant)
    if slope < 0.0:  # worse than chance: use the base rate only; the judge is not inverted
        slope, shift = 0.0, _logit((sum(is_right) + 1) / (len(is_right) + 2))
    return Fit(judge=judge, model=model, slope=slope, shift=shift, n=len(points))


def read_calibration(folder: Path) -> Calibration:
    """Read the calibration from a workspace's `.kernel-lsp`; empty if there is none. Raises UserError."""
    path = folder / FILE_NAME
    if not path.exists():
        return Calibration()
    try:
        return Calibration.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise UserError(
            f"cannot be read: {error}", file=str(path), next_step="run `kernel-lsp judge calibrate` again, or remove it"
        ) from None


def write_calibration(folder: Path, calibration: Calibration) -> Path:
    """Save it for the workspace's runs. Raises OSError."""
    path = folder / FILE_NAME
    path.write_text(calibration.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return path


def _bounded(step: float) -> float:
    return min(max(step, -MAX_STEP), MAX_STEP)


def _logit(probability: float) -> float:
    clipped = min(max(probability, CLIP), 1.0 - CLIP)
    return math.log(clipped / (1.0 - clipped))


def _logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


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


def score(judge: str, model: str, judged: Sequence[Judged], n_unanswered: int) -> Score:
    """Return the score over all judged kernels."""
    held_back = [found for found in judged if found.said < THRESHOLD]
    faulty = [found for found in judged if not found.is_right]
    caught = [found for found in held_back if not found.is_right]
    n_agreed = sum((found.said >= THRESHOLD) == found.is_right for found in judged)
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


def _ratio(part: float, whole: int) -> float | None:
    return part / whole if whole else None
