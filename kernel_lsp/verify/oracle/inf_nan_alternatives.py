"""Where PyTorch has NaN only since infinities met (inf - inf, 0 * inf): which other results are as good there.

A NaN of the inputs is in a result wherever PyTorch has one. An infinity is another matter: whether inf - inf is ever
computed depends on the formula, and right kernels for one function differ in it (an online softmax that counts its
maximum as 1 has NaN where the infinity was and 0 beside it, PyTorch has NaN in the whole row). What nobody may do is
hide it: a run that has diverged must look so; maxima and limits may, with a warning (`worker/oracle/lost_nans.py`). So
there

- any result that is not finite is right, and
- a finite one is right in a line of the output, along some dim, in which PyTorch has nothing but such NaNs and some
  other result is not finite.

An infinity of the reference, and a number, are asked for as everywhere.
"""

from __future__ import annotations

import numpy as np

from kernel_lsp.core.dtype import DType
from kernel_lsp.verify.oracle.arrays import decode, poisoned_elements
from kernel_lsp.verify.oracle.compare import Expectation

INFINITE_FAMILIES = frozenset(("special_inf", "special_minus_inf"))
"""Families whose inputs hold infinities, and no NaN."""
_BF16_NAN = np.uint16(0x7FC0)


def with_nan_where_as_good(found: np.ndarray, expected: Expectation) -> np.ndarray:
    """What was found, as stored, with PyTorch's NaN wherever what is there is as good. Elements that nobody wrote stay
    as they are."""
    if expected.native is None or not expected.dtype.is_floating:
        return found
    missing, specified = np.isnan(expected.native), expected.specified()
    missing = missing if specified is None else missing & specified
    written = ~poisoned_elements(found, expected.dtype).reshape(found.shape)
    seen = missing & written & ~np.isfinite(decode(found, expected.dtype))
    # Where the reference is a number (of what a mask hides, or a maximum leaves out) no other number is as good.
    as_good = seen | (written & np.isnan(expected.reference) & missing & _in_seen_lines(missing, seen))
    nan = _BF16_NAN if expected.dtype is DType.BF16 else found.dtype.type(np.nan)
    return np.where(as_good, nan, found)


def _in_seen_lines(missing: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Places of lines, along some dim, of which PyTorch has nothing, and some is seen not to be finite."""
    found = np.zeros(seen.shape, bool)
    for axis in range(seen.ndim):
        found |= missing.all(axis=axis, keepdims=True) & seen.any(axis=axis, keepdims=True)
    return found
