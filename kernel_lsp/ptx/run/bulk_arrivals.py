"""Queue a block's asynchronous copies between shared memory and tensors, and track those in flight.

The bytes of a copy are absent until its barrier object reports them; until then they are marked and hold other values.
Copies arrive when all runnable threads have polled for them twice in vain, starting with those of the oldest copy's
object. Written in the subset that `kernel_lsp.ptx.compile.native` translates.
"""

from __future__ import annotations

from kernel_lsp.ptx.checks.access_faults import fault
from kernel_lsp.ptx.compile.native import fill, load64, store64
from kernel_lsp.ptx.run.barrier_objects import change_object, is_barrier
from kernel_lsp.ptx.run.layout import IN_FLIGHT, SHADOW_STORE, Arrivals, Context, FaultKind, Launch

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
