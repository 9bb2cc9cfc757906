"""Track happens-before through signals: a write after a fence, and a read that observes it.

Written in the subset that `ptx.compile.native` translates. A *vector* is a vector clock: per thread of one block, the
time up to which its accesses are known. A *table* has vectors by block. Vectors are immutable, so several owners may
share one.
"""

from __future__ import annotations

from kernel_lsp.ptx.compile.native import fill, load64, store64
from kernel_lsp.ptx.races.layout import (
    ANYBODY,
    BLOCK_MASK,
    BLOCK_SHIFT,
    N_WARPS,
    THREAD_MASK,
    TIME_BITS,
    TIME_MASK,
    Fence,
    Known,
    Peer,
    RaceBlock,
    RaceLaunch,
    RaceThread,
    Record,
    Sync,
)
from kernel_lsp.ptx.races.order import known_time, later, note_fence, race_thread, raise_to, tick
from kernel_lsp.ptx.run.layout import WARP_SIZE


def pass_fence(state: int, own: int, is_of_device: int) -> int:
    """Apply a fence: observed signals order later accesses, and later writes may be signals."""
    note_fence(state, own, is_of_device)
    if is_of_device and load64(state + RaceBlock.HAS_NEW_PEERS) != 0:
        learn_peers(state)
    pending = load64(state + RaceBlock.PENDING)
    thread = race_thread(state, own)
    if is_of_device == 0 or pending == 0 or load64(thread + RaceThread.PROMOTED) == load64(state + RaceBlock.N_SEEN):
        return 0
    store64(thread + RaceThread.PROMOTED, load64(state + RaceBlock.N_SEEN))
    for block in range(load64(load64(state + RaceBlock.LAUNCH) + RaceLaunch.N_BLOCKS)):
        entry = pending + Known.N_BYTES * block
        vector = load64(entry + Known.VECTOR)
        if vector != 0 and is_acquired(state, own, load64(entry + Known.ACQUIRER)):
            learn(state, own, RaceBlock.TABLE, block, vector)
    return 0


def publish(state: int, own: int, record: int, stamp: int, is_update: int) -> int:
    """Write a word that may serve as a signal. It publishes the times that the thread's fences cover. An atomic update
    also publishes those of earlier updates."""
    sync = load64(record + Record.SYNC)
    is_read = is_update != 0 or load64(load64(state + RaceBlock.LAUNCH) + RaceLaunch.HAS_POLLS) != 0
    if load64(state + RaceBlock.HAS_FENCES) == 0 or is_read == 0:
        if is_update == 0 and sync != 0:
            store64(record + Record.SYNC, 0)
        return 0
    vector = fenced_vector(state, own, RaceThread.FENCE)
    block_vector = fenced_vector(state, own, RaceThread.BLOCK_FENCE)
    if is_update == 0 or sync == 0:
        sync = new_sync(state, sync, block_vector)
    elif block_vector != 0:
        sync = copy_sync(state, sync)
    store64(record + Record.SYNC, sync)
    if sync == 0 or block_vector == 0:
        return 0
    vector = join_vectors(state, vector, load64(sync + Sync.VECTOR))
    store64(sync + Sync.VECTOR, vector)
    store64(sync + Sync.BLOCK_VECTOR, join_vectors(state, block_vector, load64(sync + Sync.BLOCK_VECTOR)))
    store64(sync + Sync.TABLE, load64(state + RaceBlock.TABLE))
    store64(sync + Sync.WRITER, stamp)
    store64(sync + Sync.VERSION, next_version(state))
    return 0


def see_signal(state: int, own: int, sync: int, is_acquire: int) -> int:
    """Let a strong read observe what a signal published: at once for an acquire, otherwise at the next fence."""
    thread = race_thread(state, own)
    version = load64(sync + Sync.VERSION) * 2 + is_acquire
    running = load64(state + RaceBlock.BLOCK)
    is_last = load64(thread + RaceThread.LAST_SYNC) == sync and load64(thread + RaceThread.LAST_BLOCK) == running
    if is_last and load64(thread + RaceThread.LAST_VERSION) == version:
        return 0
    store64(thread + RaceThread.LAST_SYNC, sync)
    store64(thread + RaceThread.LAST_VERSION, version)
    store64(thread + RaceThread.LAST_BLOCK, running)
    store64(state + RaceBlock.N_SEEN, load64(state + RaceBlock.N_SEEN) + 1)
    place = RaceBlock.TABLE if is_acquire else RaceBlock.PENDING
    owner = load64(sync + Sync.OWNER)
    if owner == running:
        learn_own(state, own, load64(sync + Sync.BLOCK_VECTOR))
    else:
        learn(state, own, place, owner, load64(sync + Sync.VECTOR))
    table = load64(sync + Sync.TABLE)
    others = load64(sync + Sync.OTHERS)
    for block in range(load64(load64(state + RaceBlock.LAUNCH) + RaceLaunch.N_BLOCKS) if table + others != 0 else 0):
        if table != 0:
            learn(state, own, place, block, load64(table + Known.N_BYTES * block + Known.VECTOR))
        if others != 0:
            learn(state, own, place, block, load64(others + 8 * block))
    tick(state)
    return 0


def is_acquired(state: int, own: int, acquirer: int) -> int:
    """Check whether an acquisition by another thread of the block is known to this thread."""
    if acquirer == ANYBODY:
        return 1
    other = acquirer >> TIME_BITS
    return other == own or known_time(state, own, other) >= acquirer & TIME_MASK


def is_waited_since(state: int, own: int, acquirer: int) -> int:
    """Check whether the thread has synchronised since the acquisition, or acquired the signal itself."""
    return acquirer == ANYBODY or known_time(state, own, acquirer >> TIME_BITS) >= acquirer & TIME_MASK


def covering_entry(table: int, stamp: int) -> int:
    """Return the table entry that orders an access of another block, or 0."""
    if table == 0:
        return 0
    entry = table + Known.N_BYTES * ((stamp >> BLOCK_SHIFT) & BLOCK_MASK)
    vector = load64(entry + Known.VECTOR)
    if vector == 0 or load64(vector + 8 * ((stamp >> TIME_BITS) & THREAD_MASK)) < stamp & TIME_MASK:
        return 0
    return entry


def learn(state: int, own: int, place: int, block: int, vector: int) -> int:
    """Record in a table that a thread acquired the times of another block."""
    if vector == 0 or block == load64(state + RaceBlock.BLOCK):
        return 0
    table = table_at(state, place)
    if table == 0:
        return 0
    entry = table + Known.N_BYTES * block
    old = load64(entry + Known.VECTOR)
    acquirer = load64(entry + Known.ACQUIRER)
    joined = join_vectors(state, vector, old)
    is_known = old == 0 or is_acquired(state, own, acquirer)
    if joined == old and is_known:
        return 0
    store64(entry + Known.VECTOR, joined)
    mine = (own << TIME_BITS) | load64(state + RaceBlock.NOW)
    store64(entry + Known.ACQUIRER, mine if is_known else ANYBODY)
    return 0


def learn_together(state: int, place: int, block: int, vector: int) -> int:
    """Record in a table that all threads of this block acquired the times of another."""
    if vector == 0 or block == load64(state + RaceBlock.BLOCK):
        return 0
    table = table_at(state, place)
    if table == 0:
        return 0
    entry = table + Known.N_BYTES * block
    store64(entry + Known.VECTOR, join_vectors(state, vector, load64(entry + Known.VECTOR)))
    store64(entry + Known.ACQUIRER, ANYBODY)
    return 0


def learn_peers(state: int) -> int:
    """Make the times of the cluster barrier publishable by signals, after a fence."""
    store64(state + RaceBlock.HAS_NEW_PEERS, 0)
    for nth in range(load64(state + RaceBlock.N_PEERS)):
        peer = state + RaceBlock.PEERS + Peer.N_BYTES * nth
        learn_together(state, RaceBlock.TABLE, load64(peer + Peer.BLOCK), load64(peer + Peer.VECTOR))
    return 0


def table_at(state: int, place: int) -> int:
    """Return the table of other blocks, allocated on first use; 0 where blocks are not tracked."""
    table = load64(state + place)
    launch = load64(state + RaceBlock.LAUNCH)
    if table == 0 and load64(launch + RaceLaunch.FOLLOWS_BLOCKS) != 0:
        table = take_room(state, Known.N_BYTES * load64(launch + RaceLaunch.N_BLOCKS))
        store64(state + place, table)
    return table


def learn_own(state: int, own: int, vector: int) -> int:
    """Order a thread after others of its block: lanes of its warp, and all that a thread of another warp knows."""
    if vector == 0:
        return 0
    thread = race_thread(state, own)
    for other in range(load64(state + RaceBlock.N_THREADS)):
        time = load64(vector + 8 * other)
        if time > known_time(state, own, other):
            if other // WARP_SIZE == own // WARP_SIZE:
                store64(state + RaceBlock.HAS_LANES, 1)
                raise_to(thread + RaceThread.LANES + 8 * (other % WARP_SIZE), time)
            else:
                store64(state + RaceBlock.HAS_WARPS, 1)
                raise_to(thread + RaceThread.WARPS + 8 * (other // WARP_SIZE), time)
    return 0


def fenced_vector(state: int, own: int, place: int) -> int:
    """Return the vector that a thread's known fences cover, with those of threads it waited for; 0 for none."""
    now = load64(state + RaceBlock.NOW)
    is_cached = load64(state + RaceBlock.CACHED_TIME) == now and load64(state + RaceBlock.CACHED_THREAD) == own
    if is_cached and load64(state + RaceBlock.CACHED_PLACE) == place:
        return load64(state + RaceBlock.CACHED_VECTOR)
    n_threads = load64(state + RaceBlock.N_THREADS)
    vector = take_room(state, 8 * n_threads)
    if vector != 0 and fill_vector(state, own, place, vector) == 0:
        store64(load64(state + RaceBlock.LAUNCH) + RaceLaunch.NEXT, vector)
        vector = 0
    store64(state + RaceBlock.CACHED_TIME, now)
    store64(state + RaceBlock.CACHED_THREAD, own)
    store64(state + RaceBlock.CACHED_PLACE, place)
    store64(state + RaceBlock.CACHED_VECTOR, vector)
    return vector


def fill_vector(state: int, own: int, place: int, vector: int) -> int:
    """Fill the vector and return the number of fences."""
    n_threads = load64(state + RaceBlock.N_THREADS)
    warps = state + RaceBlock.JOINED
    fill(warps, 0, 8 * N_WARPS)
    n_fences = 0
    rest = 0
    for other in range(n_threads):
        for nth in range(2):
            fence = race_thread(state, other) + place + Fence.N_BYTES * nth
            time = load64(fence + Fence.TIME)
            if time > load64(state + RaceBlock.START) and (other == own or known_time(state, own, other) >= time):
                n_fences += 1
                raise_to(vector + 8 * other, time)
                raise_to(warps + 8 * (other // WARP_SIZE), load64(fence + Fence.WARP))
                rest = later(rest, load64(fence + Fence.REST))
    for other in range(n_threads):
        raise_to(vector + 8 * other, later(rest, load64(warps + 8 * (other // WARP_SIZE))))
    return n_fences


def join_vectors(state: int, a: int, b: int) -> int:
    """Return the elementwise maximum: one of the two vectors if it dominates, otherwise a new one."""
    if a == b or b == 0:
        return a
    if a == 0 or is_later_throughout(state, b, a):
        return b
    if is_later_throughout(state, a, b):
        return a
    n_threads = load64(state + RaceBlock.N_THREADS)
    joined = take_room(state, 8 * n_threads)
    for index in range(n_threads if joined != 0 else 0):
        store64(joined + 8 * index, later(load64(a + 8 * index), load64(b + 8 * index)))
    return joined


def is_later_throughout(state: int, a: int, b: int) -> int:
    for index in range(load64(state + RaceBlock.N_THREADS)):
        if load64(a + 8 * index) < load64(b + 8 * index):
            return 0
    return 1


def new_sync(state: int, old: int, block_vector: int) -> int:
    """Allocate a signal in place of an old one, if any; 0 where no fence precedes it."""
    if block_vector == 0:
        return 0
    sync = old
    if sync == 0:
        sync = take_room(state, Sync.N_BYTES)
    if sync != 0:
        fill(sync, 0, Sync.N_BYTES)
        store64(sync + Sync.OWNER, load64(state + RaceBlock.BLOCK))
    return sync


def copy_sync(state: int, old: int) -> int:
    """Copy a signal for an atomic update, whose block owns the copy. It keeps what other blocks published before."""
    owner = load64(old + Sync.OWNER)
    block = load64(state + RaceBlock.BLOCK)
    launch = load64(state + RaceBlock.LAUNCH)
    if owner == block:
        return old
    sync = take_room(state, Sync.N_BYTES)
    if sync == 0 or load64(launch + RaceLaunch.FOLLOWS_BLOCKS) == 0:
        return 0
    store64(sync + Sync.OWNER, block)
    others = load64(old + Sync.OTHERS)
    if others == 0:
        others = take_room(state, 8 * load64(launch + RaceLaunch.N_BLOCKS))
    store64(sync + Sync.OTHERS, others)
    if others == 0:
        return sync
    put_vector(state, others, owner, load64(old + Sync.VECTOR))
    store64(sync + Sync.VECTOR, load64(others + 8 * block))
    table = load64(old + Sync.TABLE)
    n_blocks = load64(launch + RaceLaunch.N_BLOCKS)
    store64(launch + RaceLaunch.BUDGET, load64(launch + RaceLaunch.BUDGET) - n_blocks)
    for other in range(n_blocks if table != 0 else 0):
        put_vector(state, others, other, load64(table + Known.N_BYTES * other + Known.VECTOR))
    return sync


def put_vector(state: int, others: int, block: int, vector: int) -> int:
    place = others + 8 * block
    store64(place, join_vectors(state, vector, load64(place)))
    return 0


def next_version(state: int) -> int:
    launch = load64(state + RaceBlock.LAUNCH)
    version = load64(launch + RaceLaunch.VERSION) + 1
    store64(launch + RaceLaunch.VERSION, version)
    return version


def take_room(state: int, n_bytes: int) -> int:
    """Allocate zeroed memory, charging the budget for the fill. Exhausted memory ends the check."""
    launch = load64(state + RaceBlock.LAUNCH)
    room = load64(launch + RaceLaunch.NEXT)
    store64(launch + RaceLaunch.BUDGET, load64(launch + RaceLaunch.BUDGET) - n_bytes // 8)
    if room + n_bytes > load64(launch + RaceLaunch.END):
        store64(launch + RaceLaunch.IS_ON, 0)
        return 0
    store64(launch + RaceLaunch.NEXT, room + n_bytes)
    return room
