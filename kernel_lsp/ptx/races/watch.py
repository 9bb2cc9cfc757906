"""Detect data races: two unordered accesses of a word by different threads, one of which writes another value.

The executor runs threads one after the other, so a value that a GPU might overwrite is still correct here. Every access
of shared memory and of tensors that a kernel may write is therefore compared with the last accesses of its word. Each
of these must be known, in the sense of `ptx.races.order`. Of a store, the change of value is known only after it.
Written in the subset that `ptx.compile.native` translates; `state` is a `RaceBlock`, `record` a `Record`, `own` a
thread index.
"""

from __future__ import annotations

from kernel_lsp.ptx.checks.access_faults import fault
from kernel_lsp.ptx.compile.native import fill, load8, load64, store64
from kernel_lsp.ptx.races.layout import NOT_THREAD, SILENT, STRONG, WARP_IN_STAMP, RaceBlock, RaceLaunch, Record
from kernel_lsp.ptx.races.proxies import overwrites_source, unfenced_access
from kernel_lsp.ptx.races.rules import (
    N_SAME_WRITERS,
    blame,
    is_free,
    is_harmless,
    is_of,
    keep_last,
    new_stamp,
    put_site,
)
from kernel_lsp.ptx.races.signals import pass_fence, publish, see_signal
from kernel_lsp.ptx.run.layout import Context, FaultKind, Info, Thread


def begin_store(state: int, own: int, record: int, host: int, grain_shift: int, n_bytes: int) -> int:
    """Record a store and the bytes before it. A conflicting store is a race if the value changes."""
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


def settle_store(context: int) -> int:
    """Check the value after the last store. Returns 1 after it recorded that the store was a race."""
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


def conflict_of(state: int, own: int, info: int, record: int) -> int:
    """Return the index in the record of an access unordered with a store, or -1. A plain store after a fence may
    release a flag or lock, which others access by atomic operations."""
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
    """Keep the previous write as the last one after an unordered, silent store, and add its thread as a writer."""
    if is_conflict == 0:
        store64(record + Record.WRITE, load64(record + Record.WRITE) | SILENT)
        return 0
    store64(record + Record.WRITE, load64(state + RaceBlock.OLD_WRITES + 8 * index))
    store64(record + Record.SITES, load64(state + RaceBlock.OLD_SITES + 8 * index))
    writers = load64(record + Record.SAME_WRITERS) | (1 << (own % N_SAME_WRITERS))
    store64(record + Record.SAME_WRITERS, writers)
    return 0


def accuse_store(state: int, own: int, info: int, record: int, index: int) -> int:
    """Return the kind of fault of a store, from the conflict in its record."""
    store64(record + Record.WRITE, load64(state + RaceBlock.OLD_WRITES + 8 * index))
    store64(record + Record.SITES, load64(state + RaceBlock.OLD_SITES + 8 * index))
    return blame(state, record, conflict_of(state, own, info, record))


def find_race(context: int, thread: int, info: int, address: int, record: int, host: int, grain_shift: int) -> int:
    """Check an access for a race, given its first record and host address, and record it. Returns 1 after it recorded a
    fault, of this access or of the store before it."""
    if settle_store(context) != 0:
        return 1
    state = load64(context + Context.RACES)
    n_bytes = 1 << ((info >> Info.LOG2_SHIFT) & 7)
    if spend_steps(load64(state + RaceBlock.LAUNCH), n_bytes >> grain_shift) == 0 or (info & Info.UNUSED) != 0:
        return 0
    own = load64(thread + Thread.INDEX)
    kind = conflict_of_proxies(state, own, info, record, n_bytes >> grain_shift)
    if kind != 0:
        return fault(context, thread, info, address, kind)
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


def conflict_of_proxies(state: int, own: int, info: int, record: int, n_records: int) -> int:
    """Check an access for a missing fence or wait between the proxies. Returns the kind of fault, or 0."""
    for _ in range(n_records if (info & (Info.ASYNC_PROXY | Info.WRITES)) != 0 else 0):
        kind = unfenced_access(state, info, record)
        if kind == 0:
            kind = overwrites_source(state, own, info, record)
        if kind != 0:
            return kind
        record = record + Record.N_BYTES
    return 0


def watch_fence(context: int, thread: int, info: int, is_of_device: int) -> int:
    """Record a fence of a watched kernel. Never a fault."""
    state = load64(context + Context.RACES)
    if state != 0:
        pass_fence(state, load64(thread + Thread.INDEX), is_of_device)
    return 0


def spend_steps(launch: int, n_steps: int) -> int:
    """Charge the budget and return whether the check is active. It gives up once the budget is spent."""
    budget = load64(launch + RaceLaunch.BUDGET) - n_steps
    store64(launch + RaceLaunch.BUDGET, budget)
    if budget < 0:
        store64(launch + RaceLaunch.IS_ON, 0)
    return load64(launch + RaceLaunch.IS_ON)


def read_or_update(state: int, own: int, info: int, record: int) -> int:
    """Check a read or an atomic update. Returns the kind of fault, or 0."""
    if (info & Info.WRITES) != 0:
        return update_word(state, own, info, record)
    return read_word(state, own, info, record)


def read_word(state: int, own: int, info: int, record: int) -> int:
    last = load64(record + Record.WRITE)
    if last != 0 and (info & Info.READ_ONLY_CACHE) != 0:
        blame(state, record, Record.WRITE)
        return FaultKind.STALE_READ
    if last != 0 and is_free(state, own, info, record, last) == 0 and is_harmless(state, own, info, record, last) == 0:
        return blame(state, record, Record.WRITE)
    place = Record.OTHER_WRITE
    if (info & Info.STRONG) != 0:
        place = Record.WEAK_WRITE
    # A thread that rewrote the same value may read it, whoever wrote it first.
    is_own_copy = (last & SILENT) != 0 and is_of(state, own, last)
    last = load64(record + place)
    if last != 0 and is_own_copy == 0 and is_free(state, own, info, record, last) == 0:
        return blame(state, record, place)
    if (info & (Info.STRONG | Info.DATA)) == 0:
        note_read(state, own, info, record)
    elif load64(record + Record.SYNC) != 0:
        see_signal(state, own, load64(record + Record.SYNC), (info & Info.ACQUIRES) != 0)
    return 0


def update_word(state: int, own: int, info: int, record: int) -> int:
    """Record an atomic operation: it reads what others published, and extends it."""
    for place in range(3):
        last = load64(record + 8 * place)
        is_unknown = last != 0 and is_free(state, own, info, record, last) == 0
        if is_unknown and (place != 0 or is_harmless(state, own, info, record, last) == 0):
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


def note_read(state: int, own: int, info: int, record: int) -> int:
    """Keep two unordered reads, of different warps where possible.
    A write that knows both may still race with a third, but that takes more than one bug."""
    stamp = new_stamp(state, own, info)
    first = load64(record + Record.READ)
    second = load64(record + Record.OTHER_READ)
    if first == stamp or second == stamp:
        return 0
    # Fast path: two current reads by other threads that nobody waited for. This holds for most reads.
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
