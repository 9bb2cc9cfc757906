"""Identity elements of reductions."""

from __future__ import annotations

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.scalar import Constant


def identity_of(kind: str, dtype: DType) -> Constant:
    """Return the identity element of the kind of reduction: its result over no elements."""
    if kind in ("sum", "any"):
        return Constant(False if dtype == DType.BOOL else 0, dtype)
    if kind in ("prod", "all"):
        return Constant(True if dtype == DType.BOOL else 1, dtype)
    if kind == "logsumexp":
        return Constant(float("-inf"), dtype)
    if dtype.is_floating:
        return Constant(float("-inf" if kind == "max" else "inf"), dtype)
    if dtype in (DType.U8, DType.BOOL):
        return Constant(0 if kind == "max" else (1 if dtype == DType.BOOL else 255), dtype)
    n_bits = 8 * dtype.itemsize
    return Constant(-(1 << (n_bits - 1)) if kind == "max" else (1 << (n_bits - 1)) - 1, dtype)
