"""Which bytes of shared memory `cp.async` may not have brought yet, because the thread has not waited for its copies.

The bytes are there at once, but marked. In the subset that `ptx.compile.native` translates. A *queue* is a thread's
own: how many groups it has committed, and its copies in order, with the group of each.
"""

from __future__ import annotations

from collections.abc import Callable

from kernel_lsp.ptx.compile.native import fill, load64, store64
from kernel_lsp.ptx.run.layout import IN_FLIGHT, SHADOW_STORE, Context, CopyQueue, Launch

SIZE_SHIFT = 32
GROUP_SHIFT = 40


def copy_started(context: int, queue: int, offset: int, n_bytes: int) -> int:
    """A copy to an offset of shared memory. The oldest copy counts as done where the queue is full."""
    tail = load64(queue + CopyQueue.TAIL)
    if tail - load64(queue + CopyQueue.HEAD) == CopyQueue.N_COPIES:
        end_copy(context, queue)
    fill(load64(load64(context + Context.LAUNCH) + Launch.SHARED_SHADOW) + offset, SHADOW_STORE | IN_FLIGHT, n_bytes)
    copy = offset | (n_bytes << SIZE_SHIFT) | (load64(queue + CopyQueue.N_GROUPS) << GROUP_SHIFT)
    store64(queue + CopyQueue.COPIES + 8 * (tail % CopyQueue.N_COPIES), copy)
    store64(queue + CopyQueue.TAIL, tail + 1)
    return 0


def copies_waited(context: int, queue: int, n_pending: int) -> int:
    """All groups but the last `n_pending` are done; with -1 also what is in no group yet."""
    limit = load64(queue + CopyQueue.N_GROUPS) - n_pending
    while load64(queue + CopyQueue.HEAD) < load64(queue + CopyQueue.TAIL) and oldest_group(queue) < limit:
        end_copy(context, queue)
    return 0


def oldest_group(queue: int) -> int:
    return load64(queue + CopyQueue.COPIES + 8 * (load64(queue + CopyQueue.HEAD) % CopyQueue.N_COPIES)) >> GROUP_SHIFT


def end_copy(context: int, queue: int) -> int:
    """The oldest copy is done."""
    head = load64(queue + CopyQueue.HEAD)
    copy = load64(queue + CopyQueue.COPIES + 8 * (head % CopyQueue.N_COPIES))
    offset = copy & ((1 << SIZE_SHIFT) - 1)
    n_bytes = (copy >> SIZE_SHIFT) & ((1 << (GROUP_SHIFT - SIZE_SHIFT)) - 1)
    fill(load64(load64(context + Context.LAUNCH) + Launch.SHARED_SHADOW) + offset, SHADOW_STORE, n_bytes)
    store64(queue + CopyQueue.HEAD, head + 1)
    return 0


FUNCTIONS: tuple[Callable[..., int], ...] = (copy_started, copies_waited, oldest_group, end_copy)
CALLED_BY_KERNELS = {"copy_started": 4, "copies_waited": 3}
"""With how many arguments."""
