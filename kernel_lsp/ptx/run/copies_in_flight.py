"""Track bytes of shared memory that `cp.async` may not have written yet, because the thread has not waited for its
copies.

The bytes are written at once, but marked. Written in the subset that `ptx.compile.native` translates. Each thread has
its own *queue*: its number of committed groups, and its copies in order, with the group of each.
"""

from __future__ import annotations

from kernel_lsp.ptx.compile.native import fill, load64, store64
from kernel_lsp.ptx.run.layout import IN_FLIGHT, SHADOW_STORE, Context, CopyQueue, Launch

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
