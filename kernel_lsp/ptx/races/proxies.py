"""Check the order between the generic proxy and the async proxy, in which bulk copies and `wgmma` access memory.

Happens-before alone does not order accesses of a word by the two proxies: a `fence.proxy.async` must stand between
them, in the thread of the first or in one that knows it (PTX ISA, "Memory Consistency Model", proxies). The completion
of a bulk copy is such a fence for what follows its wait; a copy that nobody has waited for may still read its source.
Written in the subset that `ptx.compile.native` translates. `state` is a `RaceBlock`, `own` a thread index.
"""

from __future__ import annotations

from kernel_lsp.ptx.compile.native import load64, store64
from kernel_lsp.ptx.races.clusters import is_in_shared_memory
from kernel_lsp.ptx.races.layout import (
    BLOCK_MASK,
    BLOCK_SHIFT,
    BULK,
    LATE_USE,
    THREAD_MASK,
    TIME_BITS,
    TIME_MASK,
    RaceBlock,
    RaceThread,
    Record,
)
from kernel_lsp.ptx.races.order import known_time, race_thread, raise_to, tick
from kernel_lsp.ptx.races.rules import blame
from kernel_lsp.ptx.run.layout import WARP_SIZE, Context, FaultKind, Info, Thread

SHARED_SPACE = 1
GLOBAL_SPACE = 2
"""Spaces that a proxy fence covers, as bits."""


def watch_proxy_fence(context: int, thread: int, info: int, spaces: int) -> int:
    """Record a `fence.proxy.async` of a watched kernel. Never a fault."""
    state = load64(context + Context.RACES)
    if state != 0:
        own = load64(thread + Thread.INDEX)
        now = tick(state)
        if (spaces & SHARED_SPACE) != 0:
            cover(state, own, now, 0)
        if (spaces & GLOBAL_SPACE) != 0:
            cover(state, own, now, 8)
    return 0


def cover(state: int, own: int, now: int, place: int) -> int:
    """Note which accesses a fence covers in one space: those of the thread, and those that it knows."""
    raise_to(state + RaceBlock.PROXY_FLOOR + place, load64(state + RaceBlock.FLOOR))
    first = own // WARP_SIZE * WARP_SIZE
    end = first + WARP_SIZE
    if load64(state + RaceBlock.HAS_WARPS) != 0 or load64(state + RaceBlock.CLUSTER_VECTOR) != 0:
        first = 0
        end = load64(state + RaceBlock.N_THREADS)
    if end > load64(state + RaceBlock.N_THREADS):
        end = load64(state + RaceBlock.N_THREADS)
    for other in range(first, end):
        raise_to(race_thread(state, other) + RaceThread.PROXY_TIME + place, known_time(state, own, other))
    raise_to(race_thread(state, own) + RaceThread.PROXY_TIME + place, now)
    return 0


def unfenced_access(state: int, info: int, record: int) -> int:
    """Check an access, if it is one of the async proxy. Returns the kind of fault, or 0. A generic read is harmless
    once its value was used: the use waits for it."""
    if (info & Info.ASYNC_PROXY) == 0:
        return 0
    if is_unfenced(state, record, load64(record + Record.WRITE)):
        return accuse(state, record, Record.WRITE, FaultKind.PROXY)
    if (info & Info.WRITES) == 0:
        return 0
    for place in range(1, 3):
        last = load64(record + 8 * place)
        if (last & LATE_USE) != 0 and is_unfenced(state, record, last):
            return accuse(state, record, 8 * place, FaultKind.PROXY)
    return 0


def is_unfenced(state: int, record: int, last: int) -> int:
    """Check whether an access of the block was generic, and no fence covers it."""
    if last == 0 or (last & BULK) != 0 or (last >> BLOCK_SHIFT) & BLOCK_MASK != load64(state + RaceBlock.BLOCK):
        return 0
    place = 0 if is_in_shared_memory(state, record) else 8
    time = last & TIME_MASK
    thread = race_thread(state, (last >> TIME_BITS) & THREAD_MASK)
    if time <= load64(state + RaceBlock.PROXY_FLOOR + place):
        return 0
    return time > load64(thread + RaceThread.PROXY_TIME + place)


def accuse(state: int, record: int, place: int, kind: int) -> int:
    """Record the other access of the pair and return the kind of fault."""
    blame(state, record, place)
    return kind


def overwrites_source(state: int, own: int, info: int, record: int) -> int:
    """Check an access, if it writes shared memory: a bulk copy may still read the word. Returns the kind of fault, or
    0."""
    if (info & Info.WRITES) == 0 or is_in_shared_memory(state, record) == 0:
        return 0
    for place in range(1, 3):
        last = load64(record + 8 * place)
        is_here = (last >> BLOCK_SHIFT) & BLOCK_MASK == load64(state + RaceBlock.BLOCK)
        if (last & BULK) != 0 and is_here and is_read(state, own, last) == 0:
            return accuse(state, record, 8 * place, FaultKind.SOURCE_IN_USE)
    return 0


def is_read(state: int, own: int, last: int) -> int:
    """Check whether a thread knows the wait for the bulk copy that read a word at the stamp `last`. Of each thread, the
    last wait is kept; a copy that an earlier one ended counts as known."""
    other = (last >> TIME_BITS) & THREAD_MASK
    thread = race_thread(state, other)
    time = last & TIME_MASK
    if time > load64(thread + RaceThread.COPIES_READ):
        return 0
    if time <= load64(thread + RaceThread.COPIES_READ_BEFORE) or own == other:
        return 1
    return known_time(state, own, other) >= load64(thread + RaceThread.COPY_WAIT)


def note_bulk_store(context: int) -> int:
    """Let the next bulk copy have a later time. Returns the time of this one, or 0 without a race check."""
    state = load64(context + Context.RACES)
    if state == 0:
        return 0
    return tick(state)


def note_bulk_wait(context: int, thread: int, first_left: int) -> int:
    """Record a wait for bulk copies. `first_left` is the time of the first copy that it left, or 0 for none."""
    state = load64(context + Context.RACES)
    if state == 0:
        return 0
    record = race_thread(state, load64(thread + Thread.INDEX))
    now = tick(state)
    read = first_left - 1 if first_left != 0 else now
    if read > load64(record + RaceThread.COPIES_READ):
        store64(record + RaceThread.COPIES_READ_BEFORE, load64(record + RaceThread.COPIES_READ))
        store64(record + RaceThread.COPIES_READ, read)
        store64(record + RaceThread.COPY_WAIT, now)
    return 0
