"""Compute the resident blocks per multiprocessor by the rules of NVIDIA's CUDA Occupancy Calculator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernel_lsp.gpu.specs import Architecture

WARP_SIZE = 32
WARP_ALLOCATION_GRANULARITY = 4
"""Warps are rounded up to multiples of four: registers are split evenly over the four schedulers."""
REGISTER_ALLOCATION_UNIT = 256
"""Registers are allocated to a warp in multiples of this, on all architectures since 3.0."""
LimitingFactor = Literal["threads", "blocks", "registers", "shared memory"]


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks and warps per SM. `fraction` is of the SM's maximum warps. `n_blocks` is 0 when not even one
    block fits; `limited_by` then names the exceeded limit."""

    n_blocks: int
    n_warps: int
    fraction: float
    limited_by: LimitingFactor


def occupancy(
    architecture: Architecture, *, n_threads_per_block: int, n_registers: int, shared_bytes: int
) -> Occupancy:
    """Compute the occupancy for blocks of `n_threads_per_block` threads with `n_registers` registers each and
    `shared_bytes` of shared memory, static and dynamic together.

    Raises ValueError for a block without threads.
    """
    if n_threads_per_block < 1:
        raise ValueError("a block has at least one thread")
    n_warps = _ceil_div(n_threads_per_block, WARP_SIZE)
    limits: dict[LimitingFactor, int] = {
        "threads": _blocks_by_threads(architecture, n_threads_per_block, n_warps),
        "registers": _blocks_by_registers(architecture, n_registers, n_warps),
        "shared memory": _blocks_by_shared(architecture, shared_bytes),
        "blocks": architecture.max_blocks_per_sm,
    }
    limited_by = min(limits, key=lambda name: limits[name])
    n_blocks = limits[limited_by]
    resident = n_blocks * n_warps
    return Occupancy(n_blocks, resident, resident * WARP_SIZE / architecture.max_threads_per_sm, limited_by)


def _blocks_by_threads(architecture: Architecture, n_threads: int, n_warps: int) -> int:
    if n_threads > architecture.max_threads_per_block:
        return 0
    return architecture.max_threads_per_sm // WARP_SIZE // n_warps


def _blocks_by_registers(architecture: Architecture, n_registers: int, n_warps: int) -> int:
    if n_registers > architecture.max_registers_per_thread:
        return 0
    if n_registers == 0:
        return architecture.max_blocks_per_sm
    per_warp = _round_up(n_registers * WARP_SIZE, REGISTER_ALLOCATION_UNIT)
    warps = architecture.registers_per_sm // per_warp // WARP_ALLOCATION_GRANULARITY * WARP_ALLOCATION_GRANULARITY
    return warps // n_warps


def _blocks_by_shared(architecture: Architecture, shared_bytes: int) -> int:
    if shared_bytes > architecture.max_shared_bytes_per_block:
        return 0
    unit = 128 if architecture.capability >= (8, 0) else 256  # Occupancy Calculator, shared memory allocation unit
    needed = _round_up(shared_bytes + architecture.reserved_shared_bytes_per_block, unit)
    return architecture.shared_bytes_per_sm // needed if needed else architecture.max_blocks_per_sm


def _ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def _round_up(value: int, unit: int) -> int:
    return _ceil_div(value, unit) * unit
