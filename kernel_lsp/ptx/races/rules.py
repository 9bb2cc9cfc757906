"""Race rules: an access may follow another if happens-before orders them or the pair is harmless.

Written in the subset that `ptx.compile.native` translates. `state` is a `RaceBlock`, `record` a `Record`, `own` a
thread index, `last` the stamp of the access before, `info` the `Info` of this access.
"""

from __future__ import annotations

from kernel_lsp.ptx.compile.native import load64, store64
from kernel_lsp.ptx.races.clusters import is_left_over, knows_peer
from kernel_lsp.ptx.races.layout import (
    BLOCK_MASK,
    BLOCK_SHIFT,
    BULK,
    IN_BLOCK,
    LATE_USE,
    SILENT,
    SITE_BITS,
    STAMP_SITE_MASK,
    STRONG,
    THREAD_MASK,
    TIME_BITS,
    TIME_MASK,
    Known,
    RaceBlock,
    RaceLaunch,
    Record,
    Sync,
)
from kernel_lsp.ptx.races.order import known_time
from kernel_lsp.ptx.races.signals import covering_entry, is_acquired, is_later_throughout, is_waited_since
from kernel_lsp.ptx.run.layout import FaultKind, Info

N_SAME_WRITERS = 61
"""Bits that distinguish writers of the same value, approximately.
The number is prime, so that neighbouring threads differ."""


def is_free(state: int, own: int, info: int, record: int, last: int) -> int:
    """Check whether an access of `info` may follow that of the stamp `last`: they are ordered, or both are strong."""
    if (info & Info.STRONG) != 0 and (last & STRONG) != 0 and is_in_scope(state, info, record, last):
        return 1
    block = (last >> BLOCK_SHIFT) & BLOCK_MASK
    if block != load64(state + RaceBlock.BLOCK):
        return is_left_over(state, record, block) or knows_block(state, own, info, record, last)
    time = last & TIME_MASK
    if time <= load64(state + RaceBlock.FLOOR):
        return 1
    other = (last >> TIME_BITS) & THREAD_MASK
    return other == own or known_time(state, own, other) >= time


def is_in_scope(state: int, info: int, record: int, last: int) -> int:
    """Check whether the scopes of two strong accesses include each other. Block scope suffices within one block."""
    if (info & Info.IN_BLOCK) == 0 and (last & IN_BLOCK) == 0:
        return 1
    block = (last >> BLOCK_SHIFT) & BLOCK_MASK
    return block == load64(state + RaceBlock.BLOCK) or is_left_over(state, record, block)


def is_harmless(state: int, own: int, info: int, record: int, last: int) -> int:
    """Check whether a read may see an unordered write. It may if the write left the value unchanged, if it wrote a
    value that the reader itself wrote, or if it is a plain store of a flag after a fence that a strong read polls for
    or has seen before."""
    is_same_value = (last & SILENT) != 0 or (load64(record + Record.SAME_WRITERS) >> (own % N_SAME_WRITERS)) & 1 != 0
    if is_same_value and (info & Info.WRITES) == 0:
        return 1
    sync = load64(record + Record.SYNC)
    if sync == 0 or load64(sync + Sync.WRITER) != last or is_in_scope(state, info, record, last) == 0:
        return 0
    return (info & Info.STRONG) != 0 or ((info & Info.DATA) != 0 and has_seen(state, own, sync, last))


def has_seen(state: int, own: int, sync: int, last: int) -> int:
    """Check whether everything that the write `last` published is known. Then the write itself counts as seen."""
    writer = (last >> TIME_BITS) & THREAD_MASK
    block = (last >> BLOCK_SHIFT) & BLOCK_MASK
    if block == load64(state + RaceBlock.BLOCK):
        return known_time(state, own, writer) >= load64(load64(sync + Sync.BLOCK_VECTOR) + 8 * writer)
    vector = load64(sync + Sync.VECTOR)
    if vector == 0:
        return 0
    is_known = has_learned(state, load64(state + RaceBlock.TABLE), block, vector)
    return is_known or has_learned(state, load64(state + RaceBlock.PENDING), block, vector)


def has_learned(state: int, table: int, block: int, vector: int) -> int:
    """Check whether the entry of another block in a table is at least as late as a vector in every component."""
    if table == 0:
        return 0
    known = load64(table + Known.N_BYTES * block + Known.VECTOR)
    return known != 0 and is_later_throughout(state, known, vector)


def is_of(state: int, own: int, last: int) -> int:
    """Check whether a stamp belongs to this thread."""
    is_here = (last >> BLOCK_SHIFT) & BLOCK_MASK == load64(state + RaceBlock.BLOCK)
    return is_here and (last >> TIME_BITS) & THREAD_MASK == own


def knows_block(state: int, own: int, info: int, record: int, last: int) -> int:
    """Check whether an access of another block is ordered by the cluster barrier or by signals. A signal without a
    later fence suffices for strong accesses. It also suffices when threads synchronised since, if the block has not
    read the word before."""
    if load64(load64(state + RaceBlock.LAUNCH) + RaceLaunch.FOLLOWS_BLOCKS) == 0 or knows_peer(state, last):
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
    """Check whether the block read the word before it saw the signal."""
    for place in range(2):
        read = load64(record + Record.READ + 8 * place)
        is_own = read != 0 and (read >> BLOCK_SHIFT) & BLOCK_MASK == load64(state + RaceBlock.BLOCK)
        if is_own and (read & TIME_MASK) <= (acquirer & TIME_MASK):
            return 1
    return 0


def new_stamp(state: int, own: int, info: int) -> int:
    stamp = load64(state + RaceBlock.NOW) | (own << TIME_BITS) | (load64(state + RaceBlock.BLOCK) << BLOCK_SHIFT)
    if (info & Info.IN_BLOCK) != 0:
        stamp |= IN_BLOCK
    if (info & Info.BULK) != 0:
        stamp |= BULK
    if (info & Info.LATE_USE) != 0:
        stamp |= LATE_USE
    return stamp | (STRONG if (info & Info.STRONG) != 0 else 0)


def put_site(record: int, nth: int, info: int) -> int:
    shift = SITE_BITS * nth
    sites = load64(record + Record.SITES) & ~(STAMP_SITE_MASK << shift)
    store64(record + Record.SITES, sites | ((info & STAMP_SITE_MASK) << shift))
    return 0


def blame(state: int, record: int, place: int) -> int:
    """Record the owner of the unordered access. Returns the kind of fault."""
    last = load64(record + place)
    nth = place // 8 if place < Record.SAME_WRITERS else 0
    store64(state + RaceBlock.OTHER_STAMP, last)
    store64(state + RaceBlock.OTHER_SITE, (load64(record + Record.SITES) >> (SITE_BITS * nth)) & STAMP_SITE_MASK)
    store64(state + RaceBlock.OTHER_IS_READ, nth != 0)
    store64(state + RaceBlock.SEES_SIGNAL, covering_entry(load64(state + RaceBlock.PENDING), last) != 0)
    if (last >> BLOCK_SHIFT) & BLOCK_MASK == load64(state + RaceBlock.BLOCK):
        return FaultKind.RACE_OF_THREADS
    return FaultKind.RACE_OF_BLOCKS


def keep_last(state: int, own: int, info: int, record: int) -> int:
    """Prepare a strong write: keep the previous write in the record if others need to be ordered with it."""
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
