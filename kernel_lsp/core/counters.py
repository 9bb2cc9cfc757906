"""What the PTX executor counted while it ran a launch."""

from __future__ import annotations

from kernel_lsp.core.model import Noun


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
