"""The closer look at an access that the code of a kernel is not sure of, and the record of what is wrong with it.

In the subset that `kernel_lsp.ptx.native` translates. `info` is what `Info` describes.
"""

from __future__ import annotations

from collections.abc import Callable

from kernel_lsp.ptx.access_traces import trace
from kernel_lsp.ptx.layout import (
    ENTRY_BYTES,
    FIRST_CLUSTER_WINDOW,
    N_WINDOWS,
    WINDOW_SHIFT,
    Context,
    Entry,
    EntryFlag,
    FaultKind,
    Info,
    Launch,
    Thread,
)
from kernel_lsp.ptx.native import load8, load64, shift_right, store64
from kernel_lsp.ptx.races import is_race


def check(context: int, thread: int, info: int, address: int) -> int:
    """The closer look at a generic access. Returns 0 when it is allowed, 1 after it recorded a fault."""
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
    if flags & EntryFlag.WATCHED:
        race = is_race(context, thread, info, entry, offset, n_bytes)
        if race != 0:
            return fault(context, thread, info, address, race)
    if flags & EntryFlag.TRACED:
        trace(context, thread, info, address, n_bytes)
    return 0


def check_shared(context: int, thread: int, info: int, offset: int) -> int:
    """The closer look at an access of shared memory by its own address. Reading bytes that were never written is noted
    and goes on: compilers may load early what they then do not use."""
    launch = load64(context + Context.LAUNCH)
    n_bytes = 1 << ((info >> Info.LOG2_SHIFT) & 7)
    if offset < 0 or offset > load64(launch + Launch.SHARED_BYTES) - n_bytes or (offset & (n_bytes - 1)) != 0:
        return fault(context, thread, info, offset, FaultKind.ACCESS)
    return warn(context, thread, info)


def warn(context: int, thread: int, info: int) -> int:
    """Note a read of shared memory that nothing has written."""
    site = 8 * (info & Info.SITE_MASK)
    counts = load64(context + Context.WARNING_COUNTS) + site
    if load64(counts) == 0:
        place = (load64(context + Context.BLOCK) << 16) | load64(thread + Thread.INDEX)
        store64(load64(context + Context.WARNING_PLACES) + site, place)
    store64(counts, load64(counts) + 1)
    return 0


def fault(context: int, thread: int, info: int, address: int, kind: int) -> int:
    store64(context + Context.FAULT_INFO, info)
    store64(context + Context.FAULT_KIND, kind)
    store64(context + Context.FAULT_ADDRESS, address)
    store64(context + Context.FAULT_THREAD, thread)
    return 1


FUNCTIONS: tuple[Callable[..., int], ...] = (
    check,
    check_shared,
    warn,
    fault,
)
