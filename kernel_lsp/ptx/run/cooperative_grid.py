"""Provide the grid workspace of a cooperative launch, and check that its blocks can be co-resident. Blocks wait for
each other through a word in this workspace, which the driver provides."""

from __future__ import annotations

from kernel_lsp.gpu.occupancy import occupancy
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.ptx.races.memory import LaunchRaces
from kernel_lsp.ptx.run.buffers import AddressTable, Region
from kernel_lsp.ptx.run.layout import GRID_WORKSPACE_WINDOW, window_base

WORKSPACE_BYTES = 8
"""Bytes of `struct grid_workspace` (cooperative_groups/details/driver_abi.h), and the offset of the barrier's word."""
GPU = "H200"
"""GPU whose multiprocessors must hold all blocks."""


class GridWorkspace:
    """Hold the driver's memory for one launch, initialised to zero; empty unless the launch is cooperative. Fields that
    it lacks are out of bounds. Its word is watched like a tensor's: signals through it order the blocks' accesses."""

    def __init__(self, table: AddressTable, races: LaunchRaces | None, n_bytes: int) -> None:
        self.data, self._shadow = Region(n_bytes), Region(n_bytes)
        self._records = Region(races.record_bytes(n_bytes) if races else 0)
        base, records = window_base(GRID_WORKSPACE_WINDOW), self._records.address if races else 0
        self.address = base if n_bytes else 0
        """Generic address of the workspace; 0 means that there is none."""
        table.set(GRID_WORKSPACE_WINDOW, base, self.data.address, self._shadow.address, n_bytes, 0, records)

    def close(self) -> None:
        for region in (self.data, self._shadow, self._records):
            region.close()


def invalid_cooperation(n_blocks: int, n_threads: int, n_shared_bytes: int) -> str:
    """Return why a GPU would refuse a cooperative launch of blocks with that many threads and bytes of shared memory,
    or an empty string. PTX does not give registers per thread, so a launch that only registers prevent from fitting
    passes."""
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
