"""Which blocks of a launch run, and in which order blocks, warps and lanes get their turns."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence

from kernel_lsp.ptx.run.layout import WARP_SIZE
from kernel_lsp.ptx.run.run_request import RunRequest

Orders = tuple["ctypes.Array[ctypes.c_int64]", "ctypes.Array[ctypes.c_int64]"]
"""Lanes of a warp and warps of a block, in the order of their turns."""


def choose_groups(n_groups: int, group_size: int, request: RunRequest) -> Sequence[int]:
    """All groups of blocks, those that hold the blocks that are named, or the first, the last, and random ones between
    them: as many as hold the sample."""
    if request.blocks:
        return sorted({block // group_size for block in request.blocks if block // group_size < n_groups})
    wanted = -(-request.sample[0] // group_size) if request.sample else n_groups
    if request.sample is None or wanted >= n_groups:
        return range(n_groups)
    chosen = {0, n_groups - 1}
    for first in random.Random(request.sample[1]).sample(range(n_groups), wanted):
        # In pairs: neighbours that write the same would look like two that do their work.
        for group in (first, min(first + 1, n_groups - 1)):
            if len(chosen) < wanted:
                chosen.add(group)
    return sorted(chosen)


def in_order(blocks: Sequence[int], request: RunRequest) -> Sequence[int]:
    """The blocks in the order of the request: nothing says in which order a GPU runs them."""
    if request.thread_order == "reverse":
        return blocks[::-1]
    if request.thread_order == "random":
        return random.Random(request.seed).sample(blocks, len(blocks))
    return blocks


def thread_orders(request: RunRequest, n_threads: int) -> Orders:
    """The order in which lanes of a warp, and warps of a block, get their turns."""
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
