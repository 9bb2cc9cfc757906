"""What a judge's probabilities are worth: a logistic map per judge and model, fitted to labelled kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from kernel_lsp.core.model import Noun
from kernel_lsp.errors import UserError
from kernel_lsp.llm.judges.verdicts import JudgeName

FILE_NAME = "judges.json"
CLIP = 1e-3
"""What a judge is sure of is at most one in a thousand: a logit needs an end."""
N_STEPS = 100
RIDGE = 1.0
"""Pull towards the identity, worth about one observation: few labels must not make a step function."""
MAX_STEP = 1.0
"""Of one Newton step: where the curve is flat, whole steps overshoot and never come back."""


class Fit(Noun):
    """``calibrated = logistic(slope * logit(said) + shift)``; `n` labels were seen."""

    judge: JudgeName
    model: str
    slope: float
    shift: float
    n: int


class Calibration(Noun):
    """The fits of a workspace. A judge without one is believed as it is."""

    fits: tuple[Fit, ...] = ()

    def calibrated(self, judge: JudgeName, model: str, said: float) -> float:
        """The probability that history gives to what the judge said."""
        for fit in self.fits:
            if (fit.judge, fit.model) == (judge, model):
                return _logistic(fit.slope * _logit(said) + fit.shift)
        return said


def fit(judge: JudgeName, model: str, said: Sequence[float], is_right: Sequence[bool]) -> Fit:
    """Platt's logistic fit, by Newton's method, with a ridge towards slope 1 and shift 0."""
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
    if slope < 0.0:  # worse than a coin: only the base rate is left, for nobody is believed by his opposite
        slope, shift = 0.0, _logit((sum(is_right) + 1) / (len(is_right) + 2))
    return Fit(judge=judge, model=model, slope=slope, shift=shift, n=len(points))


def read_calibration(folder: Path) -> Calibration:
    """The calibration in a workspace's `.kernel-lsp`; an empty one when there is none. Raises UserError."""
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
    """Keep it for the workspace's runs. Raises OSError."""
    path = folder / FILE_NAME
    path.write_text(calibration.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return path


# --- below


def _bounded(step: float) -> float:
    return min(max(step, -MAX_STEP), MAX_STEP)


def _logit(probability: float) -> float:
    clipped = min(max(probability, CLIP), 1.0 - CLIP)
    return math.log(clipped / (1.0 - clipped))


def _logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))
