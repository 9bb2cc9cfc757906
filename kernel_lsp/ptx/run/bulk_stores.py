"""Bulk copies from shared memory to a tensor that a thread has not waited for: they may read what is there only later.

Each is done when it is asked for, so that its accesses are looked at there, and once more when its thread waits for its
group: what has been written to shared memory meanwhile shows in the tensor. In the subset that
`kernel_lsp.ptx.compile.native` translates. A *queue* is a thread's own.
"""

from __future__ import annotations

from collections.abc import Callable

from kernel_lsp.ptx.checks.access_faults import fault
from kernel_lsp.ptx.compile.native import load64, store64
from kernel_lsp.ptx.run.bulk_arrivals import move
from kernel_lsp.ptx.run.layout import FaultKind, StoreQueue


def bulk_store_started(context: int, thread: int, info: int, queue: int, source: int, target: int, n_bytes: int) -> int:
    """A copy between host addresses. The oldest counts as done where the queue is full."""
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
    """All groups but the last `n_pending` have been read."""
    return end_stores(queue, load64(queue + StoreQueue.N_GROUPS) - n_pending)


def end_stores(queue: int, limit: int) -> int:
    """Those of groups below the limit are done, in order."""
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
    """A thread ends: its block's shared memory may go with it."""
    first = queue + StoreQueue.COPIES
    if load64(queue + StoreQueue.N_COPIES) == 0:
        return 0
    return fault(context, thread, load64(first + StoreQueue.INFO), load64(first + StoreQueue.SIZE), FaultKind.COPY_LEFT)


FUNCTIONS: tuple[Callable[..., int], ...] = (
    bulk_store_started,
    bulk_stores_committed,
    bulk_stores_waited,
    end_stores,
    check_stores_ended,
)
CALLED_BY_KERNELS = {
    "bulk_store_started": 7,
    "bulk_stores_committed": 1,
    "bulk_stores_waited": 2,
    "check_stores_ended": 4,
}
"""With how many arguments."""
