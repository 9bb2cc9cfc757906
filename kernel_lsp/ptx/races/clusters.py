"""Track happens-before between the blocks of a cluster, through the cluster barrier, and the owner of a shared word.

Written in the subset that `ptx.compile.native` translates. `lead` is the context of the cluster's first block, `state`
a `RaceBlock`, `peer` the `RaceBlock` of another block of the cluster, `last` the stamp of an access.
"""

from __future__ import annotations

from kernel_lsp.ptx.compile.native import load64, store64
from kernel_lsp.ptx.races.layout import (
    BLOCK_MASK,
    BLOCK_SHIFT,
    THREAD_MASK,
    TIME_BITS,
    TIME_MASK,
    Fence,
    Known,
    Peer,
    RaceBlock,
    RaceLaunch,
    RaceThread,
)
from kernel_lsp.ptx.races.order import later, race_thread, raise_to, tick
from kernel_lsp.ptx.races.signals import fenced_vector, learn_together, take_room
from kernel_lsp.ptx.run.layout import Context, Status, Thread


def start_cluster_races(lead: int) -> int:
    """Start the blocks of a cluster; none knows another."""
    contexts = load64(lead + Context.CLUSTER_CONTEXTS)
    n_blocks = load64(lead + Context.CLUSTER_N_BLOCKS)
    for rank in range(n_blocks):
        state = load64(load64(contexts + 8 * rank) + Context.RACES)
        store64(state + RaceBlock.N_PEERS, n_blocks)
        for nth in range(n_blocks):
            peer = load64(load64(contexts + 8 * nth) + Context.RACES)
            entry = state + RaceBlock.PEERS + Peer.N_BYTES * nth
            store64(entry + Peer.BLOCK, load64(peer + RaceBlock.BLOCK))
            store64(entry + Peer.STATE, peer)
            store64(entry + Peer.VECTOR, 0)
    return 0


def watch_cluster_arrival(context: int, thread: int, info: int, is_release: int) -> int:
    """Record a thread's arrival at the cluster barrier. It publishes what the thread did before, or, for a relaxed
    arrival, what it did before its last fence. Never a fault."""
    state = load64(context + Context.RACES)
    if state == 0:
        return 0
    own = race_thread(state, load64(thread + Thread.INDEX))
    time = tick(state)
    known = load64(state + RaceBlock.FLOOR)
    if is_release == 0:
        time = load64(own + RaceThread.FENCE + Fence.TIME)
        known = load64(own + RaceThread.FENCE + Fence.REST)
    store64(own + RaceThread.CLUSTER_TIME, time)
    raise_to(state + RaceBlock.CLUSTER_FENCED, known)
    return 0


def order_cluster(lead: int) -> int:
    """Order the blocks after a complete cluster barrier.
    Threads that have yet to wait are ordered too early, which affects few kernels."""
    contexts = load64(lead + Context.CLUSTER_CONTEXTS)
    n_blocks = load64(lead + Context.CLUSTER_N_BLOCKS)
    for rank in range(n_blocks):
        note_arrivals(load64(contexts + 8 * rank))
    for rank in range(n_blocks):
        state = load64(load64(contexts + 8 * rank) + Context.RACES)
        store64(state + RaceBlock.HAS_NEW_PEERS, 1)
        for nth in range(n_blocks):
            if nth != rank:
                meet_peer(state, nth)
    return 0


def note_arrivals(context: int) -> int:
    """Record the time up to which each thread of a block is known from now on. Exited threads are known entirely."""
    state = load64(context + Context.RACES)
    now = tick(state)
    n_threads = load64(state + RaceBlock.N_THREADS)
    vector = take_room(state, 8 * n_threads)
    before = load64(state + RaceBlock.CLUSTER_VECTOR)
    thread = load64(context + Context.THREADS)
    for index in range(n_threads if vector != 0 else 0):
        time = load64(race_thread(state, index) + RaceThread.CLUSTER_TIME)
        if load64(thread + Thread.STATUS) == Status.EXITED:
            time = now
        if before != 0:
            time = later(time, load64(before + 8 * index))
        time = later(time, load64(state + RaceBlock.CLUSTER_FENCED))
        store64(vector + 8 * index, time)
        raise_to(state + RaceBlock.CLUSTER_LATEST, time)
        thread = thread + load64(context + Context.THREAD_STRIDE)
    store64(state + RaceBlock.CLUSTER_VECTOR, vector)
    return 0


def meet_peer(state: int, nth: int) -> int:
    """Order a block after another block of its cluster, and after the signals which that block has seen. The times that
    the other block's fences cover may be passed on at once: a thread may rely on a fence that another thread had before
    they synchronised."""
    entry = state + RaceBlock.PEERS + Peer.N_BYTES * nth
    peer = load64(entry + Peer.STATE)
    store64(entry + Peer.VECTOR, load64(peer + RaceBlock.CLUSTER_VECTOR))
    if load64(peer + RaceBlock.HAS_FENCES) != 0:
        learn_together(state, RaceBlock.TABLE, load64(entry + Peer.BLOCK), fenced_vector(peer, 0, RaceThread.FENCE))
    if load64(peer + RaceBlock.N_SEEN) != 0:
        pass_on(state, peer, RaceBlock.TABLE)
        pass_on(state, peer, RaceBlock.PENDING)
    return 0


def pass_on(state: int, peer: int, place: int) -> int:
    """Merge the table of another block into the block's own."""
    table = load64(peer + place)
    if table == 0:
        return 0
    launch = load64(state + RaceBlock.LAUNCH)
    n_blocks = load64(launch + RaceLaunch.N_BLOCKS)
    store64(launch + RaceLaunch.BUDGET, load64(launch + RaceLaunch.BUDGET) - n_blocks)
    for block in range(n_blocks):
        learn_together(state, place, block, load64(table + Known.N_BYTES * block + Known.VECTOR))
    return 0


def knows_peer(state: int, last: int) -> int:
    """Check whether an access was made by a block of the cluster before the last cluster barrier."""
    peer = find_peer(state, (last >> BLOCK_SHIFT) & BLOCK_MASK)
    if peer == 0 or load64(peer + Peer.VECTOR) == 0:
        return 0
    return load64(load64(peer + Peer.VECTOR) + 8 * ((last >> TIME_BITS) & THREAD_MASK)) >= last & TIME_MASK


def find_peer(state: int, block: int) -> int:
    """Return the entry of a block of the cluster, or 0."""
    for nth in range(load64(state + RaceBlock.N_PEERS)):
        peer = state + RaceBlock.PEERS + Peer.N_BYTES * nth
        if load64(peer + Peer.BLOCK) == block:
            return peer
    return 0


def is_left_over(state: int, record: int, block: int) -> int:
    """Check whether a word of shared memory was last used by another block, `block`, before this block or its cluster
    began. Such an access is no evidence of a race."""
    if load64(state + RaceBlock.N_PEERS) == 0:
        return is_in_shared_memory(state, record)
    if find_peer(state, block) != 0:
        return 0
    for nth in range(load64(state + RaceBlock.N_PEERS)):
        if is_in_shared_memory(load64(state + RaceBlock.PEERS + Peer.N_BYTES * nth + Peer.STATE), record):
            return 1
    return 0


def is_in_shared_memory(state: int, record: int) -> int:
    """Check whether a word is in the shared memory of the block of `state`."""
    offset = record - load64(state + RaceBlock.SHARED_RECORDS)
    return offset >= 0 and offset < load64(state + RaceBlock.SHARED_RECORD_BYTES)
