"""Results of 16 bits that were cut off toward zero, where every other rounding is to the nearest number.

Each is off by less than one unit, which many kernels are allowed. But all are off to the same side, by 0.28 % on the
average in bf16, and what is added up or trained with them drifts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernel_lsp.core.dtype import DType
from kernel_lsp.verify.oracle.arrays import decode
from kernel_lsp.verify.oracle.nearest import FORMATS, last_place

MAX_ELEMENTS = 1 << 17
"""From the first on: few milliseconds, and many more than tell."""
TELLING_PARTS = (0.05, 0.95)
"""Of a unit beyond the number below: what f32 computes is on the same side of that number. Half of these have the one
above for their nearest."""
LEAST_TELLING, LEAST_SHARE = 512, 0.995
"""Where a factor of all results was rounded, too, by two thirds of a unit at worst, 4.8 % are not the number below."""


@dataclass(frozen=True)
class CutOff:
    """How many elements were, and the flat index of the first."""

    n: int
    first: int


def cut_off(found: np.ndarray, reference: np.ndarray, dtype: DType, judged: np.ndarray | None) -> CutOff | None:
    """What was cut off in an output, as stored or as numbers; None where it was not, or where too few elements tell.
    `judged` marks the elements that count, all when None."""
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
