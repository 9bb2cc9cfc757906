"""Track happens-before between the threads of a block: barriers, warp operations and fences.

Written in the subset that `ptx.compile.native` translates. `state` is a `RaceBlock`, `own` and `other` are thread
indices. A thread *knows* another up to a time when all accesses of the other until then happen before its own next one.
"""

from __future__ import annotations

from kernel_lsp.ptx.compile.native import count_trailing_zeros, fill, load64, store64
from kernel_lsp.ptx.races.layout import N_WARPS, TIME_MASK, Fence, RaceBlock, RaceLaunch, RaceThread
from kernel_lsp.ptx.run.layout import WARP_SIZE, Context, Operation, Status, Thread


def start_races(context: int) -> int:
    """Start a block: it knows nothing, and earlier accesses in its arena belong to no thread."""
    state = load64(context + Context.RACES)
    now = load64(state + RaceBlock.NOW)
    store64(state + RaceBlock.START, now)
    store64(state + RaceBlock.FLOOR, now)
    store64(state + RaceBlock.NOW, now + 1)
    store64(state + RaceBlock.BLOCK, load64(context + Context.BLOCK))
    store64(state + RaceBlock.TABLE, 0)
    store64(state + RaceBlock.PENDING, 0)
    store64(state + RaceBlock.HAS_FENCES, 0)
    store64(state + RaceBlock.CACHED_TIME, 0)
    store64(state + RaceBlock.STORE_THREAD, 0)
    fill(state + RaceBlock.CLUSTER_VECTOR, 0, RaceBlock.N_PEERS - RaceBlock.CLUSTER_VECTOR)
    return 0


def known_time(state: int, own: int, other: int) -> int:
    """Return the time up to which a thread knows another of its block, or itself through others."""
    known = load64(state + RaceBlock.FLOOR)
    warp = other // WARP_SIZE
    thread = race_thread(state, own)
    if load64(state + RaceBlock.CLUSTER_VECTOR) != 0:
        known = later(known, load64(load64(state + RaceBlock.CLUSTER_VECTOR) + 8 * other))
    if load64(state + RaceBlock.HAS_WARPS) != 0:
        known = later(known, load64(thread + RaceThread.WARPS + 8 * warp))
    if own // WARP_SIZE == warp:
        known = later(known, load64(state + RaceBlock.WARP_FLOORS + 8 * warp))
        if load64(state + RaceBlock.HAS_LANES) != 0:
            known = later(known, load64(thread + RaceThread.LANES + 8 * (other % WARP_SIZE)))
    return known


def race_thread(state: int, index: int) -> int:
    return load64(state + RaceBlock.THREADS) + RaceThread.N_BYTES * index


def later(a: int, b: int) -> int:
    return a if a > b else b


def raise_to(place: int, time: int) -> int:
    if time > load64(place):
        store64(place, time)
    return 0


def tick(state: int) -> int:
    """Advance the clock and return the previous time. A clock overflow ends the check."""
    now = load64(state + RaceBlock.NOW)
    store64(state + RaceBlock.NOW, now + 1)
    if now + 1 >= TIME_MASK:
        store64(load64(state + RaceBlock.LAUNCH) + RaceLaunch.IS_ON, 0)
    return now


def order_warp(context: int, first: int, group: int, live: int) -> int:
    """Order the lanes of a group that have synchronised. `first` is the record of lane 0."""
    state = load64(context + Context.RACES)
    base = load64(first + Thread.INDEX)
    now = tick(state)
    if load64(state + RaceBlock.HAS_WARPS) != 0:
        join_rows(state, base, group, RaceThread.WARPS)
    if group == live:
        store64(state + RaceBlock.WARP_FLOORS + 8 * (base // WARP_SIZE), now)
        return 0
    store64(state + RaceBlock.HAS_LANES, 1)
    rest = group
    while rest != 0:
        lane = count_trailing_zeros(rest)
        store64(race_thread(state, base + lane) + RaceThread.LANES + 8 * lane, now)
        rest &= rest - 1
    join_rows(state, base, group, RaceThread.LANES)
    return 0


def join_rows(state: int, base: int, group: int, row: int) -> int:
    """Give each lane of the group the elementwise maximum of all their times."""
    joined = state + RaceBlock.JOINED
    for index in range(N_WARPS):
        store64(joined + 8 * index, 0)
    rest = group
    while rest != 0:
        join_row(joined, race_thread(state, base + count_trailing_zeros(rest)) + row)
        rest &= rest - 1
    rest = group
    while rest != 0:
        join_row(race_thread(state, base + count_trailing_zeros(rest)) + row, joined)
        rest &= rest - 1
    return 0


def join_row(target: int, source: int) -> int:
    for index in range(N_WARPS):
        raise_to(target + 8 * index, load64(source + 8 * index))
    return 0


def order_arrival(context: int, barrier: int, index: int) -> int:
    """Record the arrival of a thread at a barrier at which it does not wait."""
    state = load64(context + Context.RACES)
    row = state + RaceBlock.BARRIERS + 8 * N_WARPS * barrier
    join_row(row, race_thread(state, index) + RaceThread.WARPS)
    raise_to(row + 8 * (index // WARP_SIZE), load64(state + RaceBlock.NOW))
    return 0


def order_barrier(context: int, barrier: int) -> int:
    """Order the threads that are released from a barrier."""
    state = load64(context + Context.RACES)
    if load64(context + Context.BARRIER_WAITING + 8 * barrier) == load64(context + Context.N_LIVE):
        store64(state + RaceBlock.FLOOR, tick(state))
        return 0
    store64(state + RaceBlock.HAS_WARPS, 1)
    row = state + RaceBlock.BARRIERS + 8 * N_WARPS * barrier
    for sweep in range(2):
        thread = load64(context + Context.THREADS)
        for index in range(load64(context + Context.N_THREADS)):
            waits = load64(thread + Thread.STATUS) == Status.BARRIER and load64(thread + Thread.MASK) == barrier
            if waits and load64(thread + Thread.OPERATION) != Operation.BARRIER_ARRIVE:
                if sweep == 0:
                    order_arrival(context, barrier, index)
                else:
                    join_row(race_thread(state, index) + RaceThread.WARPS, row)
            thread = thread + load64(context + Context.THREAD_STRIDE)
    for index in range(N_WARPS):
        store64(row + 8 * index, 0)
    tick(state)
    return 0


def note_fence(state: int, own: int, is_of_device: int) -> int:
    """Record a fence: the thread's knowledge may be published from now on."""
    now = tick(state)
    store64(state + RaceBlock.HAS_FENCES, 1)
    thread = race_thread(state, own)
    store_fence(state, own, thread + RaceThread.BLOCK_FENCE, now)
    if is_of_device:
        store_fence(state, own, thread + RaceThread.FENCE, now)
    return 0


def store_fence(state: int, own: int, place: int, now: int) -> int:
    """Replace the last fence. The old one becomes the one before, if others may have waited since and know it."""
    last = load64(place + Fence.TIME)
    if last > load64(state + RaceBlock.START) and is_waited_for(state, own, last):
        for field in range(3):
            store64(place + Fence.N_BYTES + 8 * field, load64(place + 8 * field))
    warp = own // WARP_SIZE
    store64(place + Fence.TIME, now)
    store64(place + Fence.WARP, known_of_warp(state, own, warp))
    rest = later(load64(state + RaceBlock.FLOOR), load64(state + RaceBlock.CLUSTER_LATEST))
    if load64(state + RaceBlock.HAS_WARPS) != 0:
        for index in range(N_WARPS):
            if index != warp:
                rest = later(rest, load64(race_thread(state, own) + RaceThread.WARPS + 8 * index))
    store64(place + Fence.REST, rest)
    return 0


def is_waited_for(state: int, own: int, time: int) -> int:
    """Check whether another thread may know this one up to a time."""
    if load64(state + RaceBlock.HAS_WARPS) != 0:
        return 1
    return known_time(state, own, own) >= time


def known_of_warp(state: int, own: int, warp: int) -> int:
    """Return the time up to which a thread knows every lane of its warp."""
    thread = race_thread(state, own)
    known = load64(state + RaceBlock.WARP_FLOORS + 8 * warp)
    known = later(known, load64(thread + RaceThread.WARPS + 8 * warp))
    if load64(state + RaceBlock.HAS_LANES) != 0:
        for lane in range(WARP_SIZE):
            if lane != own % WARP_SIZE:
                known = later(known, load64(thread + RaceThread.LANES + 8 * lane))
    return known
