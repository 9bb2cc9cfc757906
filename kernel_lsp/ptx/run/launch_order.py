"""Select the blocks of a launch that run, and the order of blocks, warps and lanes."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence

from kernel_lsp.ptx.run.layout import WARP_SIZE
from kernel_lsp.ptx.run.run_request import RunRequest

Orders = tuple["ctypes.Array[ctypes.c_int64]", "ctypes.Array[ctypes.c_int64]"]
"""Scheduling order of the lanes of a warp, and of the warps of a block."""


def choose_groups(n_groups: int, group_size: int, request: RunRequest) -> Sequence[int]:
    """Return all groups of blocks, or a sample: the groups of the named blocks, or the first, the last and random ones
    between, as many as the sample needs."""
    if request.blocks:
        return sorted({block // group_size for block in request.blocks if block // group_size < n_groups})
    wanted = -(-request.sample[0] // group_size) if request.sample else n_groups
    if request.sample is None or wanted >= n_groups:
        return range(n_groups)
    chosen = {0, n_groups - 1}
    for first in random.Random(request.sample[1]).sample(range(n_groups), wanted):
        # Sample in pairs: two adjacent blocks that both write the same range would otherwise look like disjoint ones.
        for group in (first, min(first + 1, n_groups - 1)):
            if len(chosen) < wanted:
                chosen.add(group)
    return sorted(chosen)


def in_order(blocks: Sequence[int], request: RunRequest) -> Sequence[int]:
    """Return the blocks in the requested order. A GPU guarantees none."""
    if request.thread_order == "reverse":
        return blocks[::-1]
    if request.thread_order == "random":
        return random.Random(request.seed).sample(blocks, len(blocks))
    return blocks


def thread_orders(request: RunRequest, n_threads: int) -> Orders:
    """Return the scheduling order of the lanes of a warp, and of the warps of a block."""
    n_warps = -(-n_threads // WARP_SIZE)
    lanes, warps = list(range(WARP_SIZE)), list(range(n_warps))
    if request.thread_order == "reverse":
        lanes.reverse()
        warps.reverse()
    elif request.thread_order == "random":
        shuffler = random.Random(request.seed)
        shuffler.shuffle(lanes)
        shuffler.shuffle(warps)
    return (ctypes.c_int64 * WARP_SIZE)(*lanes), (ctypes.c_int64 * n_warps)(*warps)
