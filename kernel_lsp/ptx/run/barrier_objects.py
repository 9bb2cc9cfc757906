"""Implement `mbarrier` objects in shared memory: they count arrivals and bytes, and advance from phase to phase.

Written in the subset that `ptx.compile.native` translates. An object is one 64-bit word in a layout of our own: PTX
leaves it opaque. Kernels call each function with the host address of the word; it returns 1 after it recorded a fault.
"""

from __future__ import annotations

from kernel_lsp.ptx.checks.access_faults import fault
from kernel_lsp.ptx.compile.native import load64, shift_right, store64
from kernel_lsp.ptx.run.layout import Context, FaultKind, Thread

MAX_COUNT = (1 << 20) - 1
"""Maximum pending arrivals, and maximum pending bytes (PTX ISA, "Contents of the mbarrier object")."""
PENDING_SHIFT = 20
BYTES_SHIFT = 40
BYTES_MASK = (1 << 21) - 1
PHASE_SHIFT = 61
MARK_SHIFT = 62
MARK = 2
"""Tag in the two upper bits of an object. Zeros and uninitialised memory have a different tag."""


def barrier_init(context: int, thread: int, info: int, place: int, count: int) -> int:
    """Implement ``mbarrier.init``: a first phase that ends after `count` arrivals."""
    if count < 1 or count > MAX_COUNT:
        return fault(context, thread, info, count, FaultKind.BARRIER_COUNT)
    store64(place, make_object(count, count, 0, 0))
    return 0


def barrier_arrive(context: int, thread: int, info: int, place: int, count: int, n_leaving: int, n_bytes: int) -> int:
    """Implement ``mbarrier.arrive`` by `count`, after `n_bytes` more are expected. `n_leaving` of the arrivals take no
    part in later phases. `Thread.RESULT` becomes the state before. A count of 0 only expects or delivers bytes."""
    word = load64(place)
    if is_barrier(word) == 0:
        return fault(context, thread, info, 0, FaultKind.BARRIER_MISSING)
    store64(thread + Thread.RESULT, word)
    return change_object(context, thread, info, place, count, n_leaving, n_bytes)


def change_object(context: int, thread: int, info: int, place: int, count: int, n_leaving: int, n_bytes: int) -> int:
    """Update the object like `barrier_arrive`, but for arrived bytes, without a thread that requests the state."""
    word = load64(place)
    if is_barrier(word) == 0:
        return fault(context, thread, info, 0, FaultKind.BARRIER_MISSING)
    expected = (word & MAX_COUNT) - n_leaving
    pending = ((word >> PENDING_SHIFT) & MAX_COUNT) - count
    left = ((word >> BYTES_SHIFT) & BYTES_MASK) - MAX_COUNT + n_bytes
    phase = shift_right(word, PHASE_SHIFT) & 1
    if pending < 0 or expected < 0:
        return fault(context, thread, info, count, FaultKind.BARRIER_ARRIVALS)
    if left > MAX_COUNT or left < -MAX_COUNT:
        return fault(context, thread, info, left, FaultKind.BARRIER_BYTES)
    if pending == 0 and left == 0:
        phase = 1 - phase
        pending = expected
        store64(context + Context.N_STALLED, 0)
    store64(place, make_object(expected, pending, left, phase))
    return 0


def barrier_test(context: int, thread: int, info: int, place: int, phase: int) -> int:
    """Implement ``mbarrier.test_wait``: `Thread.RESULT` becomes 1 if the phase of that parity is complete."""
    word = load64(place)
    if is_barrier(word) == 0:
        return fault(context, thread, info, 0, FaultKind.BARRIER_MISSING)
    store64(thread + Thread.RESULT, (shift_right(word, PHASE_SHIFT) & 1) != (phase & 1))
    return 0


def is_barrier(word: int) -> int:
    return shift_right(word, MARK_SHIFT) == MARK


def make_object(expected: int, pending: int, n_bytes: int, phase: int) -> int:
    counts = expected | (pending << PENDING_SHIFT) | ((n_bytes + MAX_COUNT) << BYTES_SHIFT)
    return counts | (phase << PHASE_SHIFT) | (MARK << MARK_SHIFT)
