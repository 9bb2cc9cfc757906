"""The input families of a full check, beyond `normal` and `given`, ordered by the errors that they have caught."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.verify.model.cases import OperationKind

BOTH: tuple[OperationKind, ...] = ("forward", "backward")
FORWARD: tuple[OperationKind, ...] = ("forward",)
BACKWARD: tuple[OperationKind, ...] = ("backward",)


@dataclass(frozen=True)
class Family:
    """A distribution of inputs.

    `of` are the directions: PyTorch's own gradients need not be finite for every family of the forward.
    `needs_long_rows`: it detects a kernel that reads only the beginning of a row, so rows exceed a block.
    """

    name: str
    needs_long_rows: bool = False
    of: tuple[OperationKind, ...] = BOTH
    defence: str = "families"


SPARSE_GRADIENTS = "sparse_gradients"
"""Ordinary inputs; only the incoming gradients are sparse."""
FAMILIES = (
    Family("small_integers"),
    Family("special_nan", needs_long_rows=True),
    Family("scaled_up"),
    Family("scaled_down"),
    Family("negative"),
    Family("constant_rows", needs_long_rows=True),
    Family("one_hot", needs_long_rows=True),
    Family("large"),
    Family("uniform", needs_long_rows=True),  # masks: few true values in a row
    Family("special_inf", needs_long_rows=True),
    Family("negative_zeros", defence="zeros"),
    Family("needles", needs_long_rows=True),
    Family("halves"),
    Family("special_minus_inf", needs_long_rows=True),
    Family("special_others", needs_long_rows=True),
    Family(SPARSE_GRADIENTS, needs_long_rows=True, of=BACKWARD),
    Family("zeros", needs_long_rows=True),
    Family("huge", of=FORWARD),
    Family("tiny", of=FORWARD),
    Family("offset", of=FORWARD),
    Family("minute", of=FORWARD),
    Family("minus_inf_rows", needs_long_rows=True, of=FORWARD),
    Family("lowest_rows", needs_long_rows=True, of=FORWARD),
    Family("far_negative", of=FORWARD),
    Family("subnormal", of=FORWARD),
    Family("low", needs_long_rows=True, of=FORWARD),
    Family("highest_rows", needs_long_rows=True, of=FORWARD),
)
VARIANT_FAMILIES = {
    "forward": ("large", "offset", "lowest_rows", "special_nan", "minus_inf_rows"),
    "backward": ("large", "special_nan"),
}
"""Families for the captured sizes and for every size that a plan or a kernel has a variant for. A specialised variant
may skip the maximum or drop NaN."""
OCTAVES = "octaves"
"""Rows of every magnitude, for sizes with many rows."""
HALFWAY = "halves"
"""Halfway cases, where rounding modes differ."""
EXACT_SUMS = "small_integers"
"""Sums are exact in any order, so sums longer than their rounding could be judged are compared."""
EQUAL_TERMS = "constant_rows"
"""The family of a long floating sum: its terms have one sign, and are equal."""


def families_of(direction: OperationKind) -> tuple[Family, ...]:
    """Return the families of one direction, in order."""
    return tuple(family for family in FAMILIES if direction in family.of)
