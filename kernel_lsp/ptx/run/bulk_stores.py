"""Queue bulk copies from shared memory to a tensor that a thread has not waited for. They may read their source late.

Each copy is performed when it is issued, so that its accesses are checked there, and again when its thread waits for
its group. Shared memory overwritten in between is therefore visible in the tensor. Written in the subset that
`kernel_lsp.ptx.compile.native` translates. Each thread has its own *queue*.
"""

from __future__ import annotations

from kernel_lsp.ptx.checks.access_faults import fault
from kernel_lsp.ptx.compile.native import load64, store64
from kernel_lsp.ptx.run.bulk_arrivals import move
from kernel_lsp.ptx.run.layout import FaultKind, StoreQueue


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
    store64(queue + StoreQueue.N_COPIES, n_before + 1)
    return 0


def bulk_stores_committed(queue: int) -> int:
    store64(queue + StoreQueue.N_GROUPS, load64(queue + StoreQueue.N_GROUPS) + 1)
    return 0


def bulk_stores_waited(queue: int, n_pending: int) -> int:
    """Complete all groups but the last `n_pending`: their sources have been read."""
    return end_stores(queue, load64(queue + StoreQueue.N_GROUPS) - n_pending)


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
