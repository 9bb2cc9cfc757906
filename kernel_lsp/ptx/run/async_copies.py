"""Track asynchronous copies of a block and of its threads until they are waited for.

`cp.async`: the bytes are written to shared memory at once, but marked. Bulk copies to shared memory: the bytes are
absent until the barrier object of the copy reports them; until then they are marked and hold other values. They arrive
when all runnable threads have polled for them twice in vain, starting with those of the oldest copy's object. Bulk
copies from shared memory may read their source late: each is performed when it is issued, so that its accesses are
checked there, and again when its thread waits for its group. Shared memory overwritten in between is therefore visible
in the tensor.

Written in the subset that `ptx.compile.native` translates. Each thread has its own *queue*: its number of committed
groups, and its copies in order, with the group of each.
"""

from __future__ import annotations

from kernel_lsp.ptx.checks.access_faults import fault
from kernel_lsp.ptx.compile.native import fill, load64, store64
from kernel_lsp.ptx.races.proxies import note_bulk_store, note_bulk_wait
from kernel_lsp.ptx.run.barrier_objects import change_object, is_barrier
from kernel_lsp.ptx.run.layout import (
    IN_FLIGHT,
    SHADOW_STORE,
    Arrivals,
    Context,
    CopyQueue,
    FaultKind,
    Launch,
    StoreQueue,
)

SIZE_SHIFT = 32
GROUP_SHIFT = 40


def copy_started(context: int, queue: int, offset: int, n_bytes: int) -> int:
    """Record a copy to an offset of shared memory. When the queue is full, the oldest copy counts as complete."""
    tail = load64(queue + CopyQueue.TAIL)
    if tail - load64(queue + CopyQueue.HEAD) == CopyQueue.N_COPIES:
        end_copy(context, queue)
    fill(load64(load64(context + Context.LAUNCH) + Launch.SHARED_SHADOW) + offset, SHADOW_STORE | IN_FLIGHT, n_bytes)
    copy = offset | (n_bytes << SIZE_SHIFT) | (load64(queue + CopyQueue.N_GROUPS) << GROUP_SHIFT)
    store64(queue + CopyQueue.COPIES + 8 * (tail % CopyQueue.N_COPIES), copy)
    store64(queue + CopyQueue.TAIL, tail + 1)
    return 0


def copies_waited(context: int, queue: int, n_pending: int) -> int:
    """Complete all groups but the last `n_pending`; with -1, also uncommitted copies."""
    limit = load64(queue + CopyQueue.N_GROUPS) - n_pending
    while load64(queue + CopyQueue.HEAD) < load64(queue + CopyQueue.TAIL) and oldest_group(queue) < limit:
        end_copy(context, queue)
    return 0


def oldest_group(queue: int) -> int:
    return load64(queue + CopyQueue.COPIES + 8 * (load64(queue + CopyQueue.HEAD) % CopyQueue.N_COPIES)) >> GROUP_SHIFT


def end_copy(context: int, queue: int) -> int:
    """Complete the oldest copy."""
    head = load64(queue + CopyQueue.HEAD)
    copy = load64(queue + CopyQueue.COPIES + 8 * (head % CopyQueue.N_COPIES))
    offset = copy & ((1 << SIZE_SHIFT) - 1)
    n_bytes = (copy >> SIZE_SHIFT) & ((1 << (GROUP_SHIFT - SIZE_SHIFT)) - 1)
    fill(load64(load64(context + Context.LAUNCH) + Launch.SHARED_SHADOW) + offset, SHADOW_STORE, n_bytes)
    store64(queue + CopyQueue.HEAD, head + 1)
    return 0


N_LOOKS_IN_VAIN = 2
"""Unsuccessful polls before copies arrive.
The first may come from a thread that polls in the turn in which the copy is issued."""


def bulk_started(context: int, thread: int, info: int, place: int, source: int, target: int, n_bytes: int) -> int:
    """Issue a copy between host addresses that completes on the object at `place`.
    When the queue is full, some copies arrive."""
    if is_barrier(load64(place)) == 0:
        return fault(context, thread, info, 0, FaultKind.BARRIER_MISSING)
    arrivals = load64(context + Context.ARRIVALS)
    if load64(arrivals + Arrivals.N_COPIES) == Arrivals.MAX_COPIES and let_arrive(context) != 0:
        return 1
    n_before = load64(arrivals + Arrivals.N_COPIES)
    if n_before == 0:
        store64(arrivals + Arrivals.N_LOOKS, 0)
    copy = arrivals + Arrivals.COPIES + Arrivals.COPY_BYTES * n_before
    store64(copy + Arrivals.PLACE, place)
    store64(copy + Arrivals.SOURCE, source)
    store64(copy + Arrivals.TARGET, target)
    store64(copy + Arrivals.SIZE, n_bytes)
    store64(copy + Arrivals.INFO, info)
    store64(copy + Arrivals.THREAD, thread)
    store64(arrivals + Arrivals.N_COPIES, n_before + 1)
    fill(target, load64(context + Context.SHARED_POISON), n_bytes)
    fill(shadow_of(context, target), SHADOW_STORE | IN_FLIGHT, n_bytes)
    return 0


def look_for_copies(context: int) -> int:
    """Count an unsuccessful poll and deliver copies when due. Returns 1 if an arrival was a fault."""
    arrivals = load64(context + Context.ARRIVALS)
    if load64(arrivals + Arrivals.N_COPIES) == 0:
        return 0
    n_looks = load64(arrivals + Arrivals.N_LOOKS) + 1
    store64(arrivals + Arrivals.N_LOOKS, n_looks)
    if n_looks < N_LOOKS_IN_VAIN:
        return 0
    return let_arrive(context)


def let_arrive(context: int) -> int:
    """Deliver the copies that complete on the oldest copy's object."""
    arrivals = load64(context + Context.ARRIVALS)
    copy = arrivals + Arrivals.COPIES
    place = load64(copy + Arrivals.PLACE)
    n_kept = 0
    for _ in range(load64(arrivals + Arrivals.N_COPIES)):
        if load64(copy + Arrivals.PLACE) == place:
            if arrive(context, copy) != 0:
                return 1
        else:
            move(copy, arrivals + Arrivals.COPIES + Arrivals.COPY_BYTES * n_kept, Arrivals.COPY_BYTES)
            n_kept += 1
        copy = copy + Arrivals.COPY_BYTES
    store64(arrivals + Arrivals.N_COPIES, n_kept)
    store64(arrivals + Arrivals.N_LOOKS, 0)
    return 0


def arrive(context: int, copy: int) -> int:
    n_bytes = load64(copy + Arrivals.SIZE)
    target = load64(copy + Arrivals.TARGET)
    move(load64(copy + Arrivals.SOURCE), target, n_bytes)
    fill(shadow_of(context, target), SHADOW_STORE, n_bytes)
    thread = load64(copy + Arrivals.THREAD)
    return change_object(context, thread, load64(copy + Arrivals.INFO), load64(copy + Arrivals.PLACE), 0, 0, -n_bytes)


def shadow_of(context: int, target: int) -> int:
    launch = load64(context + Context.LAUNCH)
    return target - load64(launch + Launch.SHARED_HOST) + load64(launch + Launch.SHARED_SHADOW)


def move(source: int, target: int, n_bytes: int) -> int:
    """Copy a multiple of 8 bytes between host addresses."""
    for index in range(n_bytes // 8):
        store64(target + 8 * index, load64(source + 8 * index))
    return 0


def bulk_store_started(context: int, thread: int, info: int, queue: int, source: int, target: int, n_bytes: int) -> int:
    """Issue a copy between host addresses. When the queue is full, the oldest copy counts as complete."""
    if load64(queue + StoreQueue.N_COPIES) == StoreQueue.MAX_COPIES:
        end_stores(queue, load64(queue + StoreQueue.COPIES + StoreQueue.GROUP) + 1)
    n_before = load64(queue + StoreQueue.N_COPIES)
    copy = queue + StoreQueue.COPIES + StoreQueue.COPY_BYTES * n_before
    store64(copy + StoreQueue.SOURCE, source)
    store64(copy + StoreQueue.TARGET, target)
    store64(copy + StoreQueue.SIZE, n_bytes)
    store64(copy + StoreQueue.GROUP, load64(queue + StoreQueue.N_GROUPS))
    store64(copy + StoreQueue.INFO, info)
    store64(copy + StoreQueue.TIME, note_bulk_store(context))
    store64(queue + StoreQueue.N_COPIES, n_before + 1)
    return 0


def bulk_stores_committed(queue: int) -> int:
    store64(queue + StoreQueue.N_GROUPS, load64(queue + StoreQueue.N_GROUPS) + 1)
    return 0


def bulk_stores_waited(context: int, thread: int, queue: int, n_pending: int) -> int:
    """Complete all groups but the last `n_pending`: their sources have been read."""
    end_stores(queue, load64(queue + StoreQueue.N_GROUPS) - n_pending)
    is_left = load64(queue + StoreQueue.N_COPIES) != 0
    return note_bulk_wait(context, thread, load64(queue + StoreQueue.COPIES + StoreQueue.TIME) if is_left else 0)


def end_stores(queue: int, limit: int) -> int:
    """Complete the groups below the limit, in order."""
    copy = queue + StoreQueue.COPIES
    n_kept = 0
    for _ in range(load64(queue + StoreQueue.N_COPIES)):
        if load64(copy + StoreQueue.GROUP) < limit:
            move(load64(copy + StoreQueue.SOURCE), load64(copy + StoreQueue.TARGET), load64(copy + StoreQueue.SIZE))
        else:
            move(copy, queue + StoreQueue.COPIES + StoreQueue.COPY_BYTES * n_kept, StoreQueue.COPY_BYTES)
            n_kept += 1
        copy = copy + StoreQueue.COPY_BYTES
    store64(queue + StoreQueue.N_COPIES, n_kept)
    return 0


def check_stores_ended(context: int, thread: int, _: int, queue: int) -> int:
    """Check a thread that exits: its pending copies may outlive its block's shared memory."""
    first = queue + StoreQueue.COPIES
    if load64(queue + StoreQueue.N_COPIES) == 0:
        return 0
    return fault(context, thread, load64(first + StoreQueue.INFO), load64(first + StoreQueue.SIZE), FaultKind.COPY_LEFT)
