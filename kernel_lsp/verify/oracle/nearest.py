"""Round to the nearest number of a narrow type, as one correctly rounded operation does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernel_lsp.core.dtype import DType


@dataclass(frozen=True)
class NarrowFormat:
    """A binary format of IEEE 754's kind: `precision` bits with the hidden one; `lowest`, the exponent of two of its
    subnormal numbers' last place; and `limit`, from which everything rounds to infinity."""

    precision: int
    lowest: int
    limit: float


FORMATS = {
    DType.F16: NarrowFormat(precision=11, lowest=-24, limit=2.0**16),
    DType.BF16: NarrowFormat(precision=8, lowest=-133, limit=2.0**128),
}


def nearest(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Round float64 values to a 16-bit type, ties to even, as float64. One step: through float32 some values would be
    rounded twice. Raises KeyError for any other type."""
    form = FORMATS[dtype]
    place = last_place(values, form)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(values, -place)), place)
    return np.where(np.abs(rounded) >= form.limit, np.copysign(np.inf, values), rounded)


def last_place(values: np.ndarray, form: NarrowFormat) -> np.ndarray:
    """Return the exponent of two of each value's last place in the format."""
    _, exponents = np.frexp(values)
    return np.maximum(exponents - form.precision, form.lowest)
