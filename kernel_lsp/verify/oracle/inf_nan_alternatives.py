"""Accept alternatives to PyTorch's NaNs that arise only from inf - inf or 0 * inf.

A NaN of the inputs must appear wherever PyTorch has one. An infinity differs: whether inf - inf is ever computed
depends on the formula, and correct kernels for one function differ in it. For example, an online softmax that counts
its maximum as 1 has NaN where the infinity was and 0 elsewhere in the row; PyTorch has NaN in the whole row. But no
kernel may hide the infinity: a diverged run must be visible. Maxima and limits may hide it, with a warning
(`worker/oracle/lost_nans.py`). So at such NaNs

- any non-finite result is correct, and
- a finite one is correct in a line of the output, along some dim, in which PyTorch has only such NaNs and some other
  result is not finite.

Infinities and numbers of the reference are required as everywhere.
"""

from __future__ import annotations

import numpy as np

from kernel_lsp.core.dtype import DType
from kernel_lsp.verify.oracle.arrays import decode, poisoned_elements
from kernel_lsp.verify.oracle.compare import Expectation

ROW = (
    "infinities that meet",
    "NaN that arises only from inf - inf or 0 * inf",
    "NaN or an infinity; also a number where PyTorch's whole row is such NaN and the kernel's row is not all finite",
)
"""The row of the table in docs/checks.md: its name, what PyTorch has, what a kernel must have."""
INFINITE_FAMILIES = frozenset(("special_inf", "special_minus_inf"))
"""Families whose inputs hold infinities, and no NaN."""
_BF16_NAN = np.uint16(0x7FC0)


def with_nan_where_as_good(found: np.ndarray, expected: Expectation) -> np.ndarray:
    """Replace accepted alternatives in the stored results by PyTorch's NaN. Unwritten elements stay unchanged."""
    if expected.native is None or not expected.dtype.is_floating:
        return found
    missing, specified = np.isnan(expected.native), expected.specified()
    missing = missing if specified is None else missing & specified
    written = ~poisoned_elements(found, expected.dtype).reshape(found.shape)
    seen = missing & written & ~np.isfinite(decode(found, expected.dtype))
    # Where the reference is a number (e.g. behind a mask, or under a maximum) no other number is correct.
    as_good = seen | (written & np.isnan(expected.reference) & missing & _in_seen_lines(missing, seen))
    nan = _BF16_NAN if expected.dtype is DType.BF16 else found.dtype.type(np.nan)
    return np.where(as_good, nan, found)


def _in_seen_lines(missing: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Return the mask of lines, along some dim, in which PyTorch has only NaN and some result is seen not to be
    finite."""
    found = np.zeros(seen.shape, bool)
    for axis in range(seen.ndim):
        found |= missing.all(axis=axis, keepdims=True) & seen.any(axis=axis, keepdims=True)
    return found
