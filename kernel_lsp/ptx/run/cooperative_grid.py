"""What a cooperative launch is given, and what it must fit into: its blocks run at once and wait for each other by a
word that the driver keeps for them."""

from __future__ import annotations

from kernel_lsp.gpu.occupancy import occupancy
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.ptx.races.memory import LaunchRaces
from kernel_lsp.ptx.run.buffers import AddressTable, Region
from kernel_lsp.ptx.run.layout import GRID_WORKSPACE_WINDOW, window_base

WORKSPACE_BYTES = 8
"""Of `struct grid_workspace` (cooperative_groups/details/driver_abi.h): its size, and the barrier's word."""
GPU = "H200"
"""Whose multiprocessors the blocks must fit on."""


class GridWorkspace:
    """The driver's memory for one launch, which starts with zeros; none for one that is not cooperative. What it lacks
    is out of bounds. Its word is watched like a tensor's: signals through it are what orders the blocks' accesses."""

    def __init__(self, table: AddressTable, races: LaunchRaces | None, n_bytes: int) -> None:
        self.data, self._shadow = Region(n_bytes), Region(n_bytes)
        self._records = Region(races.record_bytes(n_bytes) if races else 0)
        base, records = window_base(GRID_WORKSPACE_WINDOW), self._records.address if races else 0
        self.address = base if n_bytes else 0
        """As kernels see it; 0 tells them that there is none."""
        table.set(GRID_WORKSPACE_WINDOW, base, self.data.address, self._shadow.address, n_bytes, 0, records)

    def close(self) -> None:
        for region in (self.data, self._shadow, self._records):
            region.close()


def invalid_cooperation(n_blocks: int, n_threads: int, n_shared_bytes: int) -> str:
    """Why a GPU would refuse a cooperative launch of blocks of so many threads and bytes of shared memory, or nothing.
    PTX does not say how many registers a thread has: a launch that they alone keep from fitting passes."""
    gpu = find_gpu(GPU)
    resident = occupancy(
        gpu.architecture, n_threads_per_block=n_threads, n_registers=0, shared_bytes=n_shared_bytes
    ).n_blocks
    if n_blocks <= resident * gpu.n_sms:
        return ""
    return (
        f"a cooperative launch of {n_blocks} blocks, which must all run at once; of this size an {GPU} holds "
        f"{resident * gpu.n_sms}: launch fewer, each with more to do"
    )
