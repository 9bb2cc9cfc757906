"""Calibrate judges' probabilities: a logistic map per judge and model, fitted to labelled kernels."""

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
"""Probabilities are clipped to this distance from 0 and 1, which keeps logits finite."""
N_STEPS = 100
RIDGE = 1.0
"""Regularization towards the identity, equivalent to about one observation: few labels must not produce a step
function."""
MAX_STEP = 1.0
"""Maximum size of one Newton step: on flat regions full steps overshoot and diverge."""


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


# --- below


def _bounded(step: float) -> float:
    return min(max(step, -MAX_STEP), MAX_STEP)


def _logit(probability: float) -> float:
    clipped = min(max(probability, CLIP), 1.0 - CLIP)
    return math.log(clipped / (1.0 - clipped))


def _logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))
