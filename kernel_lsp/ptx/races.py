"""Races: two threads access a word, one of them writes another value, and nothing orders the two.

Threads run one after the other here, so that what others would overwrite on a GPU comes out right. Every access of the
tensors that a kernel may write and of shared memory is therefore compared with the last ones of its word: it must know
them, in the sense of `kernel_lsp.ptx.race_order`. In the subset that `kernel_lsp.ptx.native` translates; `state` is a
`RaceBlock`, `record` a `Record`, `own` a thread index.
"""

from __future__ import annotations

from collections.abc import Callable

from kernel_lsp.ptx.access_faults import fault
from kernel_lsp.ptx.layout import Context, FaultKind, Info, Thread
from kernel_lsp.ptx.native import fill, load8, load64, store64
from kernel_lsp.ptx.race_layout import (
    BLOCK_MASK,
    BLOCK_SHIFT,
    NOT_THREAD,
    SILENT,
    SITE_BITS,
    STAMP_SITE_MASK,
    STRONG,
    THREAD_MASK,
    TIME_BITS,
    TIME_MASK,
    WARP_IN_STAMP,
    Known,
    RaceBlock,
    RaceLaunch,
    Record,
    Sync,
)
from kernel_lsp.ptx.race_order import known_time
from kernel_lsp.ptx.race_signals import covering_entry, is_acquired, is_waited_since, pass_fence, publish, see_signal

N_SAME_WRITERS = 61
"""Bits that tell writers of the same value apart, roughly; a prime number, so that neighbours differ."""


def find_race(context: int, thread: int, info: int, address: int, record: int, host: int, grain_shift: int) -> int:
    """Look at an access, whose first record and host address are given, and remember it. Returns 1 after it recorded a
    fault, of this access or of the store before it."""
    if settle_store(context) != 0:
        return 1
    state = load64(context + Context.RACES)
    n_bytes = 1 << ((info >> Info.LOG2_SHIFT) & 7)
    if spend_steps(load64(state + RaceBlock.LAUNCH), n_bytes >> grain_shift) == 0 or (info & Info.UNUSED) != 0:
        return 0
    own = load64(thread + Thread.INDEX)
    if (info & Info.RELEASES) != 0:
        pass_fence(state, own, (info & Info.IN_BLOCK) == 0)
    if (info & Info.READS) == 0:
        store64(state + RaceBlock.STORE_THREAD, thread)
        store64(state + RaceBlock.STORE_INFO, info)
        store64(state + RaceBlock.STORE_ADDRESS, address)
        begin_store(state, own, record, host, grain_shift, n_bytes)
        return 0
    for _ in range(n_bytes >> grain_shift):
        kind = read_or_update(state, own, info, record)
        if kind != 0:
            return fault(context, thread, info, address, kind)
        record = record + Record.N_BYTES
    return 0


def watch_fence(context: int, thread: int, info: int, is_of_device: int) -> int:
    """A fence of a kernel that is watched. Never a fault."""
    state = load64(context + Context.RACES)
    if state != 0:
        pass_fence(state, load64(thread + Thread.INDEX), is_of_device)
    return 0


def settle_store(context: int) -> int:
    """Look at what the last store left, now that it is done. Returns 1 after it recorded that the store was a race."""
    state = load64(context + Context.RACES)
    thread = load64(state + RaceBlock.STORE_THREAD)
    if thread == 0:
        return 0
    store64(state + RaceBlock.STORE_THREAD, 0)
    own = load64(thread + Thread.INDEX)
    info = load64(state + RaceBlock.STORE_INFO)
    record = load64(state + RaceBlock.STORE_RECORD)
    host = load64(state + RaceBlock.STORE_HOST)
    grain = load64(state + RaceBlock.STORE_GRAIN)
    conflicts = load64(state + RaceBlock.STORE_CONFLICTS)
    old = state + RaceBlock.OLD_BYTES
    for index in range(load64(state + RaceBlock.STORE_N_RECORDS)):
        if is_same(host, old, grain):
            keep_writer(state, own, record, index, (conflicts >> index) & 1)
        elif (conflicts >> index) & 1 != 0:
            kind = accuse_store(state, own, info, record, index)
            return fault(context, thread, info, load64(state + RaceBlock.STORE_ADDRESS), kind)
        else:
            store64(record + Record.SAME_WRITERS, 0)
        record = record + Record.N_BYTES
        host = host + grain
        old = old + grain
    return 0


# --- below: reads and updates


def spend_steps(launch: int, n_steps: int) -> int:
    """Whether the check is on. It gives up when its budget is spent."""
    budget = load64(launch + RaceLaunch.BUDGET) - n_steps
    store64(launch + RaceLaunch.BUDGET, budget)
    if budget < 0:
        store64(launch + RaceLaunch.IS_ON, 0)
    return load64(launch + RaceLaunch.IS_ON)


def read_or_update(state: int, own: int, info: int, record: int) -> int:
    """Returns the kind of fault that it is, or 0."""
    if (info & Info.WRITES) != 0:
        return update_word(state, own, info, record)
    return read_word(state, own, info, record)


def read_word(state: int, own: int, info: int, record: int) -> int:
    last = load64(record + Record.WRITE)
    if last != 0 and is_free(state, own, info, record, last) == 0 and is_harmless(own, info, record, last) == 0:
        return blame(state, record, Record.WRITE)
    place = Record.OTHER_WRITE
    if (info & Info.STRONG) != 0:
        place = Record.WEAK_WRITE
    last = load64(record + place)
    if last != 0 and is_free(state, own, info, record, last) == 0:
        return blame(state, record, place)
    if (info & Info.STRONG) == 0:
        note_read(state, own, info, record)
    elif load64(record + Record.SYNC) != 0:
        see_signal(state, own, load64(record + Record.SYNC), (info & Info.ACQUIRES) != 0)
    return 0


def update_word(state: int, own: int, info: int, record: int) -> int:
    """An atomic operation: it reads what others published, and goes on with it."""
    for place in range(3):
        last = load64(record + 8 * place)
        is_unknown = last != 0 and is_free(state, own, info, record, last) == 0
        if is_unknown and (place != 0 or is_harmless(own, info, record, last) == 0):
            return blame(state, record, 8 * place)
    last = load64(record + Record.WEAK_WRITE)
    if last != 0 and is_free(state, own, info, record, last) == 0:
        return blame(state, record, Record.WEAK_WRITE)
    keep_last(state, own, info, record)
    stamp = new_stamp(state, own, info)
    if load64(record + Record.SYNC) != 0:
        see_signal(state, own, load64(record + Record.SYNC), (info & Info.ACQUIRES) != 0)
    publish(state, own, record, stamp, 1)
    store64(record + Record.WRITE, stamp)
    store64(record + Record.SAME_WRITERS, 0)
    put_site(record, 0, info)
    return 0


def keep_last(state: int, own: int, info: int, record: int) -> int:
    """Before a strong write: remember the last write beside it, where that is for others to know."""
    last = load64(record + Record.WRITE)
    if last == 0:
        return 0
    is_known = is_free(state, own, info & ~Info.STRONG, record, last)
    if (last & STRONG) == 0:
        store64(record + Record.WEAK_WRITE, last if is_known else 0)
        store64(record + Record.OTHER_WRITE, 0)
    elif is_known == 0:
        store64(record + Record.OTHER_WRITE, last)
    return 0


def is_free(state: int, own: int, info: int, record: int, last: int) -> int:
    """Whether an access of `info` may follow that of the stamp `last`: it knows it, or both are strong."""
    if (info & Info.STRONG) != 0 and (last & STRONG) != 0:
        return 1
    block = (last >> BLOCK_SHIFT) & BLOCK_MASK
    if block != load64(state + RaceBlock.BLOCK):
        # What is remembered of shared memory from an earlier block in this arena says nothing.
        return is_shared(state, record) or knows_block(state, own, info, record, last)
    time = last & TIME_MASK
    if time <= load64(state + RaceBlock.FLOOR):
        return 1
    other = (last >> TIME_BITS) & THREAD_MASK
    return other == own or known_time(state, own, other) >= time


def is_harmless(own: int, info: int, record: int, last: int) -> int:
    """Whether a read may see an unordered write: one that changed nothing, one of a value that the reader itself wrote,
    or a plain store of a flag after a fence, which a strong read looks for."""
    is_same_value = (last & SILENT) != 0 or (load64(record + Record.SAME_WRITERS) >> (own % N_SAME_WRITERS)) & 1 != 0
    if is_same_value and (info & Info.WRITES) == 0:
        return 1
    sync = load64(record + Record.SYNC)
    return (info & Info.STRONG) != 0 and sync != 0 and load64(sync + Sync.WRITER) == last


def is_shared(state: int, record: int) -> int:
    offset = record - load64(state + RaceBlock.SHARED_RECORDS)
    return offset >= 0 and offset < load64(state + RaceBlock.SHARED_RECORD_BYTES)


def knows_block(state: int, own: int, info: int, record: int, last: int) -> int:
    """Whether an access of another block is known by signals. One that was seen without a fence after it is enough for
    strong accesses, and also when threads waited for each other since, if the block has not read the word before."""
    if load64(load64(state + RaceBlock.LAUNCH) + RaceLaunch.FOLLOWS_BLOCKS) == 0:
        return 1
    entry = covering_entry(load64(state + RaceBlock.TABLE), last)
    if entry != 0 and is_acquired(state, own, load64(entry + Known.ACQUIRER)) != 0:
        return 1
    entry = covering_entry(load64(state + RaceBlock.PENDING), last)
    if entry == 0:
        return 0
    acquirer = load64(entry + Known.ACQUIRER)
    if (info & Info.NEARBY) != 0 and is_acquired(state, own, acquirer) != 0:
        return 1
    if is_waited_since(state, own, acquirer) == 0:
        return 0
    return (info & Info.WRITES) != 0 or may_be_cached(state, record, acquirer) == 0


def may_be_cached(state: int, record: int, acquirer: int) -> int:
    """Whether the block read the word before it saw the signal."""
    for place in range(2):
        read = load64(record + Record.READ + 8 * place)
        is_own = read != 0 and (read >> BLOCK_SHIFT) & BLOCK_MASK == load64(state + RaceBlock.BLOCK)
        if is_own and (read & TIME_MASK) <= (acquirer & TIME_MASK):
            return 1
    return 0


def note_read(state: int, own: int, info: int, record: int) -> int:
    """Keep two reads that nothing orders, of different warps where there are such: a write that knows both may not know
    a third, but that takes more than one mistake."""
    stamp = new_stamp(state, own, info)
    first = load64(record + Record.READ)
    second = load64(record + Record.OTHER_READ)
    if first == stamp or second == stamp:
        return 0
    # Two reads of right now by other threads, which nobody waited for: that is quickly said of most reads.
    is_now = ((first ^ stamp) & NOT_THREAD) == 0 and ((second ^ stamp) & NOT_THREAD) == 0
    if is_now and (((first ^ second) & WARP_IN_STAMP) != 0 or ((second ^ stamp) & WARP_IN_STAMP) == 0):
        return 0
    if first == 0 or is_free(state, own, info, record, first):
        store64(record + Record.READ, stamp)
        put_site(record, 1, info)
        return 0
    is_third = ((first ^ second) & WARP_IN_STAMP) == 0 and ((second ^ stamp) & WARP_IN_STAMP) != 0
    if second == 0 or is_third or is_free(state, own, info, record, second):
        store64(record + Record.OTHER_READ, stamp)
        put_site(record, 2, info)
    return 0


# --- below: stores, whose value is known only when they are done


def begin_store(state: int, own: int, record: int, host: int, grain_shift: int, n_bytes: int) -> int:
    """Remember a store, and what was there before: where it conflicts, it is a race if the value changes."""
    info = load64(state + RaceBlock.STORE_INFO)
    stamp = new_stamp(state, own, info)
    conflicts = 0
    n_records = n_bytes >> grain_shift
    store64(state + RaceBlock.STORE_RECORD, record)
    for index in range(n_records):
        store64(state + RaceBlock.OLD_WRITES + 8 * index, load64(record + Record.WRITE))
        store64(state + RaceBlock.OLD_SITES + 8 * index, load64(record + Record.SITES))
        publish(state, own, record, stamp, 0)
        if conflict_of(state, own, info, record) >= 0:
            conflicts |= 1 << index
        if (info & Info.STRONG) != 0:
            keep_last(state, own, info, record)
        else:
            store64(record + Record.WEAK_WRITE, 0)
            store64(record + Record.OTHER_WRITE, 0)
        store64(record + Record.WRITE, stamp)
        put_site(record, 0, info)
        record = record + Record.N_BYTES
    for place in range(n_bytes):
        fill(state + RaceBlock.OLD_BYTES + place, load8(host + place), 1)
    store64(state + RaceBlock.STORE_HOST, host)
    store64(state + RaceBlock.STORE_GRAIN, 1 << grain_shift)
    store64(state + RaceBlock.STORE_N_RECORDS, n_records)
    store64(state + RaceBlock.STORE_CONFLICTS, conflicts)
    return 0


def conflict_of(state: int, own: int, info: int, record: int) -> int:
    """The place in the record of an access that a store does not know, or -1. A plain store after a fence may be that
    of a flag or lock, which others access by atomic operations."""
    for place in range(3):
        last = load64(record + 8 * place)
        is_unknown = last != 0 and is_free(state, own, info, record, last) == 0
        if is_unknown and ((last & STRONG) == 0 or load64(record + Record.SYNC) == 0):
            return 8 * place
    return -1


def is_same(a: int, b: int, n_bytes: int) -> int:
    for place in range(n_bytes):
        if load8(a + place) != load8(b + place):
            return 0
    return 1


def keep_writer(state: int, own: int, record: int, index: int, is_conflict: int) -> int:
    """A store changed nothing. Where it is not ordered, the write before it stays the last, of one more thread."""
    if is_conflict == 0:
        store64(record + Record.WRITE, load64(record + Record.WRITE) | SILENT)
        return 0
    store64(record + Record.WRITE, load64(state + RaceBlock.OLD_WRITES + 8 * index))
    store64(record + Record.SITES, load64(state + RaceBlock.OLD_SITES + 8 * index))
    writers = load64(record + Record.SAME_WRITERS) | (1 << (own % N_SAME_WRITERS))
    store64(record + Record.SAME_WRITERS, writers)
    return 0


def accuse_store(state: int, own: int, info: int, record: int, index: int) -> int:
    """Returns the kind of fault that a store is, for what it found in its record."""
    store64(record + Record.WRITE, load64(state + RaceBlock.OLD_WRITES + 8 * index))
    store64(record + Record.SITES, load64(state + RaceBlock.OLD_SITES + 8 * index))
    return blame(state, record, conflict_of(state, own, info, record))


# --- below: stamps


def new_stamp(state: int, own: int, info: int) -> int:
    stamp = load64(state + RaceBlock.NOW) | (own << TIME_BITS) | (load64(state + RaceBlock.BLOCK) << BLOCK_SHIFT)
    return stamp | (STRONG if (info & Info.STRONG) != 0 else 0)


def put_site(record: int, nth: int, info: int) -> int:
    shift = SITE_BITS * nth
    sites = load64(record + Record.SITES) & ~(STAMP_SITE_MASK << shift)
    store64(record + Record.SITES, sites | ((info & STAMP_SITE_MASK) << shift))
    return 0


def blame(state: int, record: int, place: int) -> int:
    """Note whose access it is that nothing orders. Returns the kind of fault."""
    last = load64(record + place)
    nth = place // 8 if place < Record.SAME_WRITERS else 0
    store64(state + RaceBlock.OTHER_STAMP, last)
    store64(state + RaceBlock.OTHER_SITE, (load64(record + Record.SITES) >> (SITE_BITS * nth)) & STAMP_SITE_MASK)
    store64(state + RaceBlock.OTHER_IS_READ, nth != 0)
    store64(state + RaceBlock.SEES_SIGNAL, covering_entry(load64(state + RaceBlock.PENDING), last) != 0)
    if (last >> BLOCK_SHIFT) & BLOCK_MASK == load64(state + RaceBlock.BLOCK):
        return FaultKind.RACE_OF_THREADS
    return FaultKind.RACE_OF_BLOCKS


FUNCTIONS: tuple[Callable[..., int], ...] = (
    find_race,
    watch_fence,
    settle_store,
    spend_steps,
    read_or_update,
    read_word,
    update_word,
    keep_last,
    is_free,
    is_harmless,
    is_shared,
    knows_block,
    may_be_cached,
    note_read,
    begin_store,
    conflict_of,
    is_same,
    keep_writer,
    accuse_store,
    new_stamp,
    put_site,
    blame,
)
