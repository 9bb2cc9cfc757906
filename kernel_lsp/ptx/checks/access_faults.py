"""Record access faults: an error, which ends the block, or a warning.

Written in the subset that `kernel_lsp.ptx.compile.native` translates. `info` has the layout of `Info`.
"""

from __future__ import annotations

from kernel_lsp.ptx.compile.native import load64, store64
from kernel_lsp.ptx.run.layout import Context, Info, Thread


def fault(context: int, thread: int, info: int, address: int, kind: int) -> int:
    store64(context + Context.FAULT_INFO, info)
    store64(context + Context.FAULT_KIND, kind)
    store64(context + Context.FAULT_ADDRESS, address)
    store64(context + Context.FAULT_THREAD, thread)
    return 1


def warn(context: int, thread: int, info: int) -> int:
    """Record a read of uninitialised shared memory."""
    site = 8 * (info & Info.SITE_MASK)
    counts = load64(context + Context.WARNING_COUNTS) + site
    if load64(counts) == 0:
        place = (load64(context + Context.BLOCK) << 16) | load64(thread + Thread.INDEX)
        store64(load64(context + Context.WARNING_PLACES) + site, place)
    store64(counts, load64(counts) + 1)
    return 0
