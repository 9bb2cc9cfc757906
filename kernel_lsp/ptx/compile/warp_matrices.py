"""Run matrix instructions once the lanes of their warp have arrived. Written in the subset of `ptx.compile.native`.

Every lane of a warp must take part; otherwise the instruction is undefined.
"""

from __future__ import annotations

from collections.abc import Callable

from kernel_lsp.ptx.compile.native import call_warp, load64, store64
from kernel_lsp.ptx.run.layout import WARP_SIZE, FaultKind, Thread

STEP_SHIFT = 8
"""Bit position of the failed step's number in the result of a batch.
The bits below hold the kind of fault; 0 is success."""
ALL_LANES = (1 << WARP_SIZE) - 1


def perform_matrix(first: int, stride: int, group: int) -> int:
    """Run the instruction that the lanes of `group` wait for. Returns 0, or the FaultKind that forbids it. On a fault,
    the first lane's `Thread.C` becomes the site of the failed step; otherwise it stays that of the first step."""
    if group != ALL_LANES:
        return FaultKind.WARP_INCOMPLETE
    code = call_warp(load64(first + Thread.WARP_FUNCTION), load64(first + Thread.MATRIX_AREA), stride)
    store64(first + Thread.C, load64(first + Thread.C) + (code >> STEP_SHIFT))
    return code & ((1 << STEP_SHIFT) - 1)


FUNCTIONS: tuple[Callable[..., int], ...] = (perform_matrix,)
