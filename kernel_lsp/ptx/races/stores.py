"""Check stores that may be races. The change of value is known only after the store.

Written in the subset that `kernel_lsp.ptx.compile.native` translates, with the names of `kernel_lsp.ptx.races.rules`.
"""

from __future__ import annotations

from kernel_lsp.ptx.checks.access_faults import fault
from kernel_lsp.ptx.compile.native import fill, load8, load64, store64
from kernel_lsp.ptx.races.layout import SILENT, STRONG, RaceBlock, Record
from kernel_lsp.ptx.races.rules import N_SAME_WRITERS, blame, is_free, keep_last, new_stamp, put_site
from kernel_lsp.ptx.races.signals import publish
from kernel_lsp.ptx.run.layout import Context, Info, Thread


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
