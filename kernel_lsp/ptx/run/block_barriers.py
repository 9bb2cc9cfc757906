"""Implement the barriers of a block: count the waiting threads and release them.

Written in the subset that `kernel_lsp.ptx.compile.native` translates.
"""

from __future__ import annotations

from kernel_lsp.ptx.checks.access_faults import fault
from kernel_lsp.ptx.compile.native import fill, load64, store64
from kernel_lsp.ptx.races.order import order_arrival, order_barrier, tick
from kernel_lsp.ptx.run.layout import N_BARRIERS, WARP_SIZE, Context, FaultKind, Operation, Status, Thread


def release_barriers(context: int) -> int:
    """Release the threads of every complete barrier. Returns how many can run again, or -1 after a fault."""
    fill(context + Context.BARRIER_WAITING, 0, 8 * 3 * N_BARRIERS)
    n_live = count_waiting(context)
    store64(context + Context.N_LIVE, n_live)
    n_released = 0
    for barrier in range(N_BARRIERS):
        n_waiting = load64(context + Context.BARRIER_WAITING + 8 * barrier)
        n_arrived = n_waiting + load64(context + Context.BARRIER_ARRIVED + 8 * barrier)
        n_expected = load64(context + Context.BARRIER_EXPECTED + 8 * barrier)
        if n_expected == 0 and n_waiting > 0:
            n_expected = n_live
        elif n_expected == 0:
            n_arrived = 0  # earlier arrivals, which threads that are still elsewhere will count
        if n_arrived > 0 and n_arrived >= n_expected:
            store64(context + Context.BARRIER_ARRIVED + 8 * barrier, 0)
            if load64(context + Context.RACES) != 0:
                order_barrier(context, barrier)
            n_of_barrier = release(context, barrier, n_arrived)
            if n_of_barrier < 0:
                return -1
            n_released += n_of_barrier
    return n_released + let_arrivers_go(context)


def count_waiting(context: int) -> int:
    """Count the threads at each barrier. Returns how many threads have not exited."""
    thread = load64(context + Context.THREADS)
    stride = load64(context + Context.THREAD_STRIDE)
    n_live = 0
    for index in range(load64(context + Context.N_THREADS)):
        status = load64(thread + Thread.STATUS)
        if status != Status.EXITED:
            n_live += 1
        if status == Status.BARRIER:
            barrier = context + 8 * load64(thread + Thread.MASK)
            if load64(thread + Thread.A) > 0:
                store64(barrier + Context.BARRIER_EXPECTED, load64(thread + Thread.A))
            if load64(thread + Thread.OPERATION) == Operation.BARRIER_ARRIVE:
                store64(barrier + Context.BARRIER_ARRIVED, load64(barrier + Context.BARRIER_ARRIVED) + 1)
                if load64(context + Context.RACES) != 0:
                    order_arrival(context, load64(thread + Thread.MASK), index)
            else:
                store64(barrier + Context.BARRIER_WAITING, load64(barrier + Context.BARRIER_WAITING) + 1)
                if load64(thread + Thread.B) != 0:
                    store64(barrier + Context.BARRIER_TRUE, load64(barrier + Context.BARRIER_TRUE) + 1)
        thread = thread + stride
    return n_live


def release(context: int, barrier: int, n_arrived: int) -> int:
    """Release the threads of a barrier. All threads of a warp must wait at the same instruction (PTX ISA, `barrier`:
    `.aligned`). Otherwise a GPU may hang, or release threads of one warp at different times."""
    n_true = load64(context + Context.BARRIER_TRUE + 8 * barrier)
    thread = load64(context + Context.THREADS)
    stride = load64(context + Context.THREAD_STRIDE)
    n_released = 0
    place = 0
    for index in range(load64(context + Context.N_THREADS)):
        if index % WARP_SIZE == 0:
            place = 0
        if load64(thread + Thread.STATUS) == Status.BARRIER and load64(thread + Thread.MASK) == barrier:
            operation = load64(thread + Thread.OPERATION)
            if operation != Operation.BARRIER_ARRIVE:
                own_place = load64(thread + Thread.C)
                if place != 0 and own_place != 0 and own_place != place:
                    fault(context, thread, own_place - 1, 0, FaultKind.BARRIER_DIVERGES)
                    return -1
                if own_place != 0:
                    place = own_place
                result = n_true
                if operation == Operation.BARRIER_AND:
                    result = n_true == n_arrived
                elif operation == Operation.BARRIER_OR:
                    result = n_true != 0
                store64(thread + Thread.RESULT, result)
                store64(thread + Thread.STATUS, Status.RUNNABLE)
                store64(thread + Thread.WAY, 0)
                n_released += 1
        thread = thread + stride
    return n_released


def let_arrivers_go(context: int) -> int:
    """Resume the threads at `bar.arrive`, which does not wait: they are already counted."""
    thread = load64(context + Context.THREADS)
    stride = load64(context + Context.THREAD_STRIDE)
    n_released = 0
    for _ in range(load64(context + Context.N_THREADS)):
        is_waiting = load64(thread + Thread.STATUS) == Status.BARRIER
        if is_waiting and load64(thread + Thread.OPERATION) == Operation.BARRIER_ARRIVE:
            store64(thread + Thread.STATUS, Status.RUNNABLE)
            n_released += 1
        thread = thread + stride
    if n_released > 0 and load64(context + Context.RACES) != 0:
        tick(load64(context + Context.RACES))
    return n_released
