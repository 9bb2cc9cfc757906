"""Schedules of contractions that threads and clusters share: tiles of a block and of a thread, and their limits."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.core.dtype import DType

QUAD = 4
"""Products that a thread takes at once: 16 bytes of f32."""
MAX_SHARED_BYTES = 48 << 10
"""Maximum static shared memory of a block, in bytes."""


@dataclass(frozen=True)
class SplitSchedule:
    """A block of `threads` computes `tile_m` x `tile_n` results from `tile_k` products staged at a time; each thread
    keeps `thread_m` x `thread_n` sums, and `cluster` blocks share the products of a tile."""

    tile_m: int
    tile_n: int
    tile_k: int
    thread_m: int
    thread_n: int
    threads: int
    cluster: int

    @property
    def n_lanes(self) -> int:
        """Threads that cover the tile once."""
        return (self.tile_m // self.thread_m) * (self.tile_n // self.thread_n)

    @property
    def n_groups(self) -> int:
        """Return the number of thread groups that share the products."""
        return self.threads // self.n_lanes

    def row_stride(self) -> int:
        """Return the elements between rows of a tile along k: an odd number of quads, so that rows differ in banks."""
        return self.tile_k + (QUAD if self.tile_k // QUAD % 2 == 0 else 2 * QUAD)


def is_valid_split_schedule(schedule: SplitSchedule, dtype: DType, n_bytes: int = MAX_SHARED_BYTES) -> bool:
    """Check that a block fits: groups that divide its threads, and tiles and sums within `n_bytes` of shared memory."""
    if schedule.tile_m % schedule.thread_m or schedule.tile_n % schedule.thread_n or schedule.tile_k % QUAD:
        return False
    if schedule.n_lanes < 8 or schedule.threads % schedule.n_lanes:
        return False
    return n_shared_elements(schedule) * max(4, dtype.itemsize) <= n_bytes


def n_shared_elements(schedule: SplitSchedule) -> int:
    """Return the shared elements of a block: the larger of the tiles, each in either layout, and the sums of all
    groups."""
    rows, columns = schedule.tile_m, schedule.tile_n
    tiles = sum(max(n * schedule.row_stride(), (n + QUAD) * schedule.tile_k) for n in (rows, columns))
    return max(tiles, (schedule.n_groups + 1) * rows * columns)
