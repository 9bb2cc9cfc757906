"""What the PTX executor counted while it ran a launch."""

from __future__ import annotations

from kernel_lsp.core.model import Noun

SECTOR_BYTES = 32


class LineCounters(Noun):
    """What one line of the `.cu` file did, inlined calls included. `line` is 1-based.

    `n_instructions` are per thread, over the blocks that ran. The rest covers the traced blocks: `n_global_requests` of
    warps touched `n_global_sectors` of 32 bytes, in `n_global_accesses` by single threads of `n_global_bytes` in all.
    """

    line: int
    n_instructions: int
    n_global_requests: int = 0
    n_global_sectors: int = 0
    n_global_accesses: int = 0
    n_global_bytes: int = 0

    @property
    def sectors_per_request(self) -> float:
        """4 for 32 threads that access neighbouring floats, 32 when each is in a sector of its own. 0 without any."""
        return self.n_global_sectors / self.n_global_requests if self.n_global_requests else 0.0

    @property
    def threads_per_request(self) -> float:
        """Of a warp's 32, how many took part: fewer where the warp has diverged. 0 without any request."""
        return self.n_global_accesses / self.n_global_requests if self.n_global_requests else 0.0

    @property
    def sector_efficiency(self) -> float:
        """Which part of the sectors' bytes was asked for; above 1 where threads share elements. 1 without any."""
        return self.n_global_bytes / (self.n_global_sectors * SECTOR_BYTES) if self.n_global_sectors else 1.0


class LaunchCounters(Noun):
    """Totals over the `n_blocks_run` blocks that ran, of `n_blocks`; scale by their ratio for the whole launch.

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
    """Adds, multiplies and so on in f16, f32 and f64; a fused multiply-add is two."""
    n_special_operations: int
    """Approximate functions: ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh, and divisions."""
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
    n_matrix_operations: int = 0
    """Multiplications and additions of tensor cores, a thread's share of each instruction: an `mma` of m16n8k16 is 4096
    of a warp. They are not among the floating operations."""
    lines: tuple[LineCounters, ...] = ()
    """By line, where blocks were traced."""
