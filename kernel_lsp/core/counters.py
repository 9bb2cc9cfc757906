"""Performance counters of a launch on the PTX executor."""

from __future__ import annotations

from kernel_lsp.core.model import Noun

SECTOR_BYTES = 32


class LineCounters(Noun):
    """Counters of one line of the `.cu` file, inlined calls included. `line` is 1-based.

    `n_instructions` is per thread, over the blocks that ran. The others cover the traced blocks: `n_global_requests`
    warp requests touched `n_global_sectors` sectors of 32 bytes, through `n_global_accesses` accesses by single threads
    of `n_global_bytes` bytes in total.
    """

    line: int
    n_instructions: int
    n_global_requests: int = 0
    n_global_sectors: int = 0
    n_global_accesses: int = 0
    n_global_bytes: int = 0

    @property
    def sectors_per_request(self) -> float:
        """Return sectors per warp request: 4 for coalesced floats, 32 when each thread touches its own sector, 0
        without requests."""
        return self.n_global_sectors / self.n_global_requests if self.n_global_requests else 0.0

    @property
    def threads_per_request(self) -> float:
        """Return the active threads per request, at most 32; divergence lowers it. 0 without requests."""
        return self.n_global_accesses / self.n_global_requests if self.n_global_requests else 0.0

    @property
    def sector_efficiency(self) -> float:
        """Return the used fraction of the sectors' bytes; above 1 when threads share elements. 1 without requests."""
        return self.n_global_bytes / (self.n_global_sectors * SECTOR_BYTES) if self.n_global_sectors else 1.0


class LaunchCounters(Noun):
    """Totals over the `n_blocks_run` of `n_blocks` blocks that ran; scale by their ratio for the whole launch.

    Counts are per thread unless the name says warp. `n_global_sectors` counts 32-byte sectors per warp request, as
    Nsight Compute's ``l1tex__t_sectors`` does; it and `n_global_requests` cover the `n_blocks_traced` traced blocks.
    """

    kernel: str
    n_blocks: int
    n_blocks_run: int
    n_blocks_traced: int
    n_threads_per_block: int
    n_instructions: int
    n_floating_operations: int
    """Arithmetic operations in f16, f32 and f64; a fused multiply-add counts as two."""
    n_special_operations: int
    """Approximate functions (ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh) and divisions."""
    n_f64_operations: int
    global_load_bytes: int
    global_store_bytes: int
    shared_load_bytes: int
    shared_store_bytes: int
    n_global_requests: int
    n_global_sectors: int
    n_atomics: int
    n_barriers: int
    n_shuffles: int
    max_instructions_per_thread: int
    n_polled_instructions: int = 0
    """Instructions of loops that only wait for another thread, in no other count: their number depends on the order in
    which the executor runs threads."""
    n_matrix_operations: int = 0
    """Multiplications and additions on tensor cores, per thread: an `mma` of m16n8k16 counts 4096 for a warp. They are
    not included in the floating-point operations."""
    lines: tuple[LineCounters, ...] = ()
    """Counters by line, if blocks were traced."""
