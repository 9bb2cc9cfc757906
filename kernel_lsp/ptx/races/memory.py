"""Allocate the memory of the race check: per launch and per resident block."""

from __future__ import annotations

from collections.abc import Iterable

from kernel_lsp.ptx.compile.emitter import EmittedKernel, Site
from kernel_lsp.ptx.compile.native import store64
from kernel_lsp.ptx.races.layout import BLOCK_MASK, RaceBlock, RaceLaunch, RaceThread, Record
from kernel_lsp.ptx.races.sites import may_signal
from kernel_lsp.ptx.run.buffers import Region

MAX_GRAIN_BYTES = 4
"""Maximum bytes per record; fewer if a kernel has narrower accesses."""
MAX_FOLLOWED_BLOCKS = 1024
"""Maximum blocks per grid whose signals are tracked.
In larger grids with signals, accesses of other blocks count as ordered."""
MAX_STEPS = 500_000
"""Maximum words checked per launch, at about 50 ns each. Beyond it the check gives up."""
ROOM_BYTES = 64 << 20
"""Bytes reserved for vectors and tables. Untouched memory costs nothing."""


class LaunchRaces:
    """Hold the race records of one watched launch."""

    def __init__(self, kernel: EmittedKernel, n_blocks: int, n_threads: int) -> None:
        self.n_threads = n_threads
        self.shared_shift = _grain_shift(kernel.sites, ("shared", "cluster"))
        self.shift = _grain_shift(kernel.sites, ("global",))
        self.regions = [Region(RaceLaunch.N_BYTES), Region(ROOM_BYTES)]
        launch, room = self.regions
        values = {
            RaceLaunch.IS_ON: int(n_blocks <= BLOCK_MASK),
            RaceLaunch.BUDGET: MAX_STEPS,
            RaceLaunch.NEXT: room.address,
            RaceLaunch.END: room.address + room.n_bytes,
            RaceLaunch.N_BLOCKS: n_blocks,
            RaceLaunch.FOLLOWS_BLOCKS: int(n_blocks <= MAX_FOLLOWED_BLOCKS or not may_signal(kernel.blocks)),
            RaceLaunch.SHARED_GRAIN_SHIFT: self.shared_shift,
            RaceLaunch.GRAIN_SHIFT: self.shift,
        }
        for place, value in values.items():
            store64(launch.address + place, value)

    def new_block(self, n_shared_bytes: int) -> int:
        """Allocate empty race records for a new arena, and return their address."""
        n_record_bytes = Record.N_BYTES * ((n_shared_bytes >> self.shared_shift) + 1)
        n_thread_bytes = RaceThread.N_BYTES * self.n_threads
        region = Region(RaceBlock.N_BYTES + n_thread_bytes + n_record_bytes)
        self.regions.append(region)
        state = region.address
        values = {
            RaceBlock.LAUNCH: self.regions[0].address,
            RaceBlock.NOW: 1,
            RaceBlock.N_THREADS: self.n_threads,
            RaceBlock.THREADS: state + RaceBlock.N_BYTES,
            RaceBlock.SHARED_RECORDS: state + RaceBlock.N_BYTES + n_thread_bytes,
            RaceBlock.SHARED_RECORD_BYTES: n_record_bytes,
        }
        for place, value in values.items():
            store64(state + place, value)
        return state

    def record_bytes(self, n_bytes: int) -> int:
        """Return the bytes of memory that the records of a tensor take."""
        return Record.N_BYTES * -(-n_bytes >> self.shift)

    def close(self) -> None:
        for region in self.regions:
            region.close()


# --- below


def _grain_shift(sites: Iterable[Site], spaces: tuple[str, ...]) -> int:
    """Return the base-2 logarithm of the bytes per record: the width of the narrowest access."""
    sizes = (site.n_bytes for site in sites if site.n_bytes and site.space in (*spaces, "generic"))
    return min(MAX_GRAIN_BYTES, *sizes, MAX_GRAIN_BYTES).bit_length() - 1
