"""Detect 16-bit results that are truncated toward zero instead of rounded to nearest.

Each is off by less than one unit, which is within many kernels' tolerance. But all errors have the same sign, 0.28 % on
average in bf16, so sums and training drift.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernel_lsp.core.dtype import DType
from kernel_lsp.verify.oracle.arrays import decode
from kernel_lsp.verify.oracle.nearest import FORMATS, last_place

MAX_ELEMENTS = 1 << 17
"""Maximum elements examined, from the first on. They take a few milliseconds and suffice by far."""
TELLING_PARTS = (0.05, 0.95)
"""Informative distances above the next lower number, in units: f32 results are on the same side of that number. Half of
these have the upper number as their nearest."""
LEAST_TELLING, LEAST_SHARE = 512, 0.995
"""Minimum number of informative elements, and minimum share of truncated ones. Where a factor of all results was
rounded, too, by two thirds of a unit at worst, 4.8 % are not the lower number."""


@dataclass(frozen=True)
class CutOff:
    """The number of truncated elements, and the flat index of the first."""

    n: int
    first: int


def cut_off(found: np.ndarray, reference: np.ndarray, dtype: DType, judged: np.ndarray | None) -> CutOff | None:
    """Return the truncation of an output, as stored or as numbers. None where there is none, or where too few elements
    are informative. `judged` marks the elements that count, all when None."""
    if dtype not in FORMATS:
        return None
    part = slice(0, MAX_ELEMENTS)
    exact = reference.reshape(-1)[part]
    magnitude, unit = np.abs(exact), np.ldexp(1.0, last_place(exact, FORMATS[dtype]))
    below = np.floor(magnitude / unit) * unit
    beyond = (magnitude - below) / unit
    telling = np.isfinite(exact) & (beyond > TELLING_PARTS[0]) & (beyond < TELLING_PARTS[1])
    if judged is not None:
        telling &= judged.reshape(-1)[part]
    n_telling = int(np.count_nonzero(telling))
    if n_telling < LEAST_TELLING:
        return None
    values = decode(found.reshape(-1)[part], dtype)
    cut = telling & (values == np.copysign(below, exact))
    n = int(np.count_nonzero(cut))
    return CutOff(n, int(np.argmax(cut))) if n >= LEAST_SHARE * n_telling else None
