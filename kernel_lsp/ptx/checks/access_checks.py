"""Slow path of the access checks, for accesses that the inline check cannot clear. Faults are recorded here.

Count the warp requests to global memory, and the sectors that they touch, in traced blocks. Written in the subset that
`kernel_lsp.ptx.compile.native` translates. `info` has the layout of `Info`.
"""

from __future__ import annotations

from kernel_lsp.ptx.checks.access_faults import fault, warn
from kernel_lsp.ptx.compile.native import load8, load64, shift_right, store64
from kernel_lsp.ptx.races.layout import RaceBlock, RaceLaunch, Record
from kernel_lsp.ptx.races.watch import find_race
from kernel_lsp.ptx.run.layout import (
    BETWEEN_VARIABLES,
    ENTRY_BYTES,
    FIRST_CLUSTER_WINDOW,
    IN_FLIGHT,
    N_ACCESS_SIZES,
    N_WINDOWS,
    SHARED_WINDOW,
    WARP_SIZE,
    WINDOW_SHIFT,
    Context,
    Entry,
    EntryFlag,
    FaultKind,
    Info,
    Launch,
    SiteTrace,
    Thread,
)


def check(context: int, thread: int, info: int, address: int) -> int:
    """Check a generic access on the slow path. Returns 0 when it is allowed, 1 after it recorded a fault."""
    window = shift_right(address, WINDOW_SHIFT) & (N_WINDOWS - 1)
    entry = load64(context + Context.TABLE) + window * ENTRY_BYTES
    n_bytes = 1 << ((info >> Info.LOG2_SHIFT) & 7)
    offset = address - load64(entry + Entry.BASE)
    flags = load64(entry + Entry.FLAGS)
    if window >= FIRST_CLUSTER_WINDOW and (flags & (EntryFlag.NOT_STARTED | EntryFlag.ENDED)) != 0:
        is_ended = (flags & EntryFlag.ENDED) != 0
        return fault(context, thread, info, address, FaultKind.BLOCK_NOT_STARTED + is_ended)
    if offset < 0 or offset > load64(entry + Entry.N_BYTES) - n_bytes or (address & (n_bytes - 1)) != 0:
        return fault(context, thread, info, address, FaultKind.ACCESS)
    if (info & Info.WRITES) != 0 and (flags & EntryFlag.READ_ONLY) != 0:
        return fault(context, thread, info, address, FaultKind.ACCESS)
    if (info & Info.READS) != 0 and (flags & EntryFlag.CHECK_INITIALISED) != 0:
        shadow = load64(entry + Entry.SHADOW) + offset
        for index in range(n_bytes):
            if load8(shadow + index) == 0:
                if window >= FIRST_CLUSTER_WINDOW:
                    return warn(context, thread, info)
                return fault(context, thread, info, address, FaultKind.UNINITIALISED)
    if (flags & EntryFlag.WATCHED) != 0 and watch(context, thread, info, address, entry, offset) != 0:
        return 1
    if flags & EntryFlag.TRACED:
        trace(context, thread, info, address, n_bytes)
    return 0


def check_shared(context: int, thread: int, info: int, offset: int) -> int:
    """Check an access of shared memory by a shared address on the slow path."""
    launch = load64(context + Context.LAUNCH)
    n_bytes = 1 << ((info >> Info.LOG2_SHIFT) & 7)
    if offset < 0 or offset > load64(launch + Launch.SHARED_BYTES) - n_bytes or (offset & (n_bytes - 1)) != 0:
        return fault(context, thread, info, offset, FaultKind.ACCESS)
    races = load64(context + Context.RACES)
    if races == 0:
        return 0
    if is_in_gap(load64(launch + Launch.SHARED_SHADOW) + offset, n_bytes):
        return fault(context, thread, info, offset, FaultKind.SHARED_GAP)
    shift = load64(load64(races + RaceBlock.LAUNCH) + RaceLaunch.SHARED_GRAIN_SHIFT)
    record = load64(races + RaceBlock.SHARED_RECORDS) + Record.N_BYTES * (offset >> shift)
    if find_race(context, thread, info, offset, record, load64(launch + Launch.SHARED_HOST) + offset, shift) != 0:
        return 1
    if load64(load64(races + RaceBlock.LAUNCH) + RaceLaunch.IS_ON) == 0:
        trust_shared(launch)
    return 0


def check_shared_written(context: int, thread: int, info: int, offset: int) -> int:
    """Note a read of uninitialised shared memory and continue: compilers may hoist loads whose value is then unused. A
    read of bytes still being copied is an error: compilers do not move loads across the wait for a copy."""
    shadow = load64(load64(context + Context.LAUNCH) + Launch.SHARED_SHADOW) + offset
    n_bytes = 1 << ((info >> Info.LOG2_SHIFT) & 7)
    if is_in_gap(shadow, n_bytes):
        return fault(context, thread, info, offset, FaultKind.SHARED_GAP)
    for index in range(n_bytes):
        if load8(shadow + index) & IN_FLIGHT:
            return fault(context, thread, info, offset, FaultKind.COPY_IN_FLIGHT)
    return warn(context, thread, info)


def is_in_gap(shadow: int, n_bytes: int) -> int:
    """Check whether an access of shared memory begins or ends between two variables. Gaps are wider than accesses."""
    return ((load8(shadow) | load8(shadow + n_bytes - 1)) & BETWEEN_VARIABLES) != 0


def watch(context: int, thread: int, info: int, address: int, entry: int, offset: int) -> int:
    """Check an offset of a window for a race. Returns 1 after it recorded a fault."""
    launch = load64(load64(context + Context.RACES) + RaceBlock.LAUNCH)
    shift = load64(launch + RaceLaunch.GRAIN_SHIFT)
    window = (entry - load64(context + Context.TABLE)) // ENTRY_BYTES
    if window == SHARED_WINDOW or window >= FIRST_CLUSTER_WINDOW:
        shift = load64(launch + RaceLaunch.SHARED_GRAIN_SHIFT)
        if is_in_gap(load64(entry + Entry.SHADOW) + offset, 1 << ((info >> Info.LOG2_SHIFT) & 7)):
            return fault(context, thread, info, address, FaultKind.SHARED_GAP)
    record = load64(entry + Entry.RECORDS) + Record.N_BYTES * (offset >> shift)
    return find_race(context, thread, info, address, record, load64(entry + Entry.HOST) + offset, shift)


def trust_shared(launch: int) -> int:
    """End the slow path for every access of shared memory, after the race check has given up."""
    for log2 in range(N_ACCESS_SIZES):
        limit = load64(launch + Launch.SHARED_BYTES) - (1 << log2) + 1
        store64(launch + Launch.SHARED_LIMITS + 8 * log2, limit if limit > 0 else 0)
    return 0


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
