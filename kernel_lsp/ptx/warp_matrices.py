"""Performs a matrix instruction once the lanes of its warp have arrived; in the subset of `kernel_lsp.ptx.native`.

Every lane of a warp must take part, with the same address and stride; otherwise the instruction has no meaning.
"""

from __future__ import annotations

from collections.abc import Callable

from kernel_lsp.ptx.layout import WARP_SIZE, FaultKind, Thread
from kernel_lsp.ptx.native import call_warp, load64

ALL_LANES = (1 << WARP_SIZE) - 1


def perform_matrix(first: int, stride: int, group: int) -> int:
    """Do what the lanes of `group` wait for. Returns 0, or the FaultKind that forbids it."""
    if group != ALL_LANES:
        return FaultKind.WARP_INCOMPLETE
    for lane in range(WARP_SIZE):
        thread = first + lane * stride
        is_other_address = load64(thread + Thread.A) != load64(first + Thread.A)
        if is_other_address or load64(thread + Thread.B) != load64(first + Thread.B):
            return FaultKind.WARP_DISAGREES
    function = load64(first + Thread.WARP_FUNCTION)
    if function != 0:
        call_warp(function, load64(first + Thread.MATRIX_AREA), stride)
    return 0


FUNCTIONS: tuple[Callable[..., int], ...] = (perform_matrix,)
