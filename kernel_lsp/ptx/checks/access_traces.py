"""Count warp requests to global memory, and the sectors that they touch, in traced blocks.

Written in the subset that `kernel_lsp.ptx.compile.native` translates.
"""

from __future__ import annotations

from kernel_lsp.ptx.compile.native import load64, shift_right, store64
from kernel_lsp.ptx.run.layout import WARP_SIZE, Context, Info, SiteTrace, Thread

HASH_A = 0x9E3779B97F4A7C1
HASH_B = 0x2545F4914F6CDD1D
HASH_C = 0x27D4EB2F165667C5
"""Odd multipliers without bit structure, to hash keys."""
SECTOR_SHIFT = 5
"""Base-2 logarithm of a global-memory sector: 32 bytes."""


def trace(context: int, thread: int, info: int, address: int, n_bytes: int) -> int:
    """Count the warp requests and the 32-byte sectors that they touch. A request is one execution of an instruction by
    a warp: the n-th executions of its lanes belong together."""
    if load64(context + Context.N_SEEN) * 2 > load64(context + Context.SEEN_MASK):
        store64(context + Context.N_UNTRACED, load64(context + Context.N_UNTRACED) + 1)
        return 0
    store64(context + Context.N_TRACED, load64(context + Context.N_TRACED) + 1)
    site = info & Info.SITE_MASK
    index = load64(thread + Thread.INDEX)
    counter = load64(context + Context.OCCURRENCES)
    counter = counter + 8 * (site * load64(context + Context.N_THREADS) + index)
    occurrence = load64(counter)
    store64(counter, occurrence + 1)
    traces = load64(context + Context.SITE_TRACES) + SiteTrace.N_BYTES * site
    store64(traces + SiteTrace.N_ACCESSES, load64(traces + SiteTrace.N_ACCESSES) + 1)
    request = ((site * WARP_SIZE + index // WARP_SIZE) << 32) + occurrence
    key = request * HASH_A + load64(context + Context.BLOCK) * HASH_C
    if add_to_seen(context, key):
        store64(context + Context.N_REQUESTS, load64(context + Context.N_REQUESTS) + 1)
        store64(traces + SiteTrace.N_REQUESTS, load64(traces + SiteTrace.N_REQUESTS) + 1)
    sector = address >> SECTOR_SHIFT
    if add_to_seen(context, key + (sector + 1) * HASH_B):
        store64(context + Context.N_SECTORS, load64(context + Context.N_SECTORS) + 1)
        store64(traces + SiteTrace.N_SECTORS, load64(traces + SiteTrace.N_SECTORS) + 1)
    return 0


def add_to_seen(context: int, key: int) -> int:
    """Insert the key into the hash set and return whether it is new.
    Keys are 64-bit hashes, so collisions are very rare."""
    seen = load64(context + Context.SEEN)
    mask = load64(context + Context.SEEN_MASK)
    key = key ^ shift_right(key, 29)
    key = (key * HASH_B) | 1
    slot = shift_right(key, 20) & mask
    while load64(seen + 8 * slot) != 0:
        if load64(seen + 8 * slot) == key:
            return 0
        slot = (slot + 1) & mask
    store64(seen + 8 * slot, key)
    store64(context + Context.N_SEEN, load64(context + Context.N_SEEN) + 1)
    return 1
