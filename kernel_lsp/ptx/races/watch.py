"""Detect data races: two unordered accesses of a word by different threads, one of which writes another value.

The executor runs threads one after the other, so a value that a GPU might overwrite is still correct here. Every access
of shared memory and of tensors that a kernel may write is therefore compared with the last accesses of its word. Each
of these must be known, in the sense of `ptx.races.order`. Written in the subset that `ptx.compile.native` translates;
`state` is a `RaceBlock`, `record` a `Record`, `own` a thread index.
"""

from __future__ import annotations

from kernel_lsp.ptx.checks.access_faults import fault
from kernel_lsp.ptx.compile.native import load64, store64
from kernel_lsp.ptx.races.layout import NOT_THREAD, SILENT, WARP_IN_STAMP, RaceBlock, RaceLaunch, Record
from kernel_lsp.ptx.races.rules import blame, is_free, is_harmless, is_of, keep_last, new_stamp, put_site
from kernel_lsp.ptx.races.signals import pass_fence, publish, see_signal
from kernel_lsp.ptx.races.stores import begin_store, settle_store
from kernel_lsp.ptx.run.layout import Context, FaultKind, Info, Thread


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
