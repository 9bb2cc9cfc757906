"""Slow path of the access checks, for accesses that the inline check cannot clear. Faults are recorded here.

Written in the subset that `kernel_lsp.ptx.compile.native` translates. `info` has the layout of `Info`.
"""

from __future__ import annotations

from kernel_lsp.ptx.checks.access_faults import fault, warn
from kernel_lsp.ptx.checks.access_traces import trace
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
    WINDOW_SHIFT,
    Context,
    Entry,
    EntryFlag,
    FaultKind,
    Info,
    Launch,
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
