"""Estimate the time of one launch of our kernels from the executor's counters and its resident blocks.

The bottleneck may be device memory, L2, L1, the issue slots, the arithmetic pipes, or the longest thread times the
waves of blocks. They overlap imperfectly, so the time is a smooth maximum of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernel_lsp.core.measurement import Bound
from kernel_lsp.core.profile import LaunchCounters
from kernel_lsp.gpu.floor import US_PER_S
from kernel_lsp.gpu.specs import N_SCHEDULERS_PER_SM, Architecture, GpuSpec

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


SECTOR_BYTES = 32
STREAM_EFFICIENCY = 0.93
"""Fraction of the copy bandwidth: compile's RMSNorm kernel reaches 125 us / 128 us of it (H200, measured), plain ones
less."""
MEMORY_LATENCY_S = 600e-9
"""Latency of a miss to device memory under low load, in seconds: 535 ns with 8 blocks on one H200, 670 ns with 132
(measured)."""
ROUND_TRIPS_PER_WAIT = 2.0
"""Round trips to memory per block at a grid barrier: 1 to 2 us in all (H200, measured)."""
CACHE_LATENCY_S = 40e-9
"""Latency of a cache hit in seconds, between L1's 33 cycles and L2's 260 (published microbenchmarks)."""
SM_BYTES_PER_CYCLE = 64.0
"""Bytes per cycle from L2 into one SM (Ampere and Hopper architecture papers)."""
L2_BYTES_PER_CYCLE_AND_SM = 40.0
"""Sustained L2 bandwidth over all SMs: A100's 5120 bytes per cycle (Ampere architecture paper) over 108 SMs, less a
tenth."""
L1_SECTORS_PER_CYCLE = 4.0
"""128 bytes of one line per cycle."""
CYCLES_PER_SCATTERED_LOAD_SECTOR = 1.0
"""Sectors of different lines need one tag lookup each."""
CYCLES_PER_SCATTERED_STORE_SECTOR = 4.3
"""Each store goes to L2 separately: 67 million scattered stores take 1106 us on 132 SMs (H200, measured)."""
BLOCK_STARTS_PER_CYCLE_AND_SM = 0.83 / 132
"""Block launch rate of the GPU: 1650 per us on one H200 at 1.98 GHz, whatever their size (measured, three kernels)."""
SHARED_BYTES_PER_CYCLE = 128.0
MAX_LOADS_IN_FLIGHT = 4.0
"""Independent loads that the compiler keeps in flight per thread: an assumption, not a measurement."""
ISSUE_EFFICIENCY = 0.7
"""Fraction of the issue slots that are used when issue is the only bottleneck."""
CYCLES_PER_DEPENDENT_INSTRUCTION = 4.0  # arithmetic latency since Volta (microbenchmarks)
CYCLES_PER_SHUFFLE = 23.0
CYCLES_PER_BARRIER = 30.0
CYCLES_PER_SPECIAL = 18.0
ATOMICS_PER_CYCLE_AND_SM = 1.0
SMOOTH_MAXIMUM_POWER = 5.0
"""Two equal resources take 15 % longer than one."""


@dataclass(frozen=True)
class Traffic:
    """Compulsory device-memory traffic of a launch: `read_bytes` and `written_bytes` of tensors, each counted once.
    `cached_bytes` of them are already in L2."""

    read_bytes: int
    written_bytes: int
    cached_bytes: int = 0

    @property
    def compulsory_bytes(self) -> int:
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True)
class LaunchTime:
    """Time of one launch. `device_us` excludes launch overhead."""

    device_us: float
    bound: Bound


BOUND_OF: dict[str, Bound] = {
    "device memory": "memory",
    "L2": "memory",
    "L1": "memory",
    "shared memory": "memory",
    "issue": "compute",
    "f32": "compute",
    "f64": "compute",
    "tensor cores": "compute",
    "special": "compute",
    "atomics": "memory",
    "latency": "latency",
    "block starts": "latency",
}


def launch_time(counters: LaunchCounters, resident: Occupancy, traffic: Traffic, gpu: GpuSpec) -> LaunchTime:
    """Estimate one launch with the occupancy `resident`. Counts of sampled blocks are scaled up."""
    if counters.n_blocks == 0:
        return LaunchTime(0.0, "launch")
    load = _Load(counters, resident, gpu)
    parts_us = {name: seconds * US_PER_S for name, seconds in _parts_s(load, traffic).items()}
    slowest = max(parts_us, key=lambda name: parts_us[name])
    total = sum(part**SMOOTH_MAXIMUM_POWER for part in parts_us.values()) ** (1.0 / SMOOTH_MAXIMUM_POWER)
    return LaunchTime(total, BOUND_OF[slowest])


@dataclass(frozen=True)
class _Load:
    """Counters of the whole launch, and its distribution over the GPU."""

    counters: LaunchCounters
    resident: Occupancy
    gpu: GpuSpec

    @property
    def scale(self) -> float:
        return self.counters.n_blocks / max(1, self.counters.n_blocks_run)

    @property
    def trace_scale(self) -> float:
        return self.counters.n_blocks / max(1, self.counters.n_blocks_traced)

    @property
    def n_active_sms(self) -> int:
        return min(self.gpu.n_sms, self.counters.n_blocks)

    @property
    def cycles_per_s(self) -> float:
        """Cycles per second, summed over the SMs with work."""
        return self.n_active_sms * self.gpu.clock_hz

    @property
    def n_waves(self) -> float:
        """Count waves; a partial last wave takes as long as a full one only if there are few waves."""
        blocks_at_once = self.gpu.n_sms * max(1, self.resident.n_blocks)
        exact = self.counters.n_blocks / blocks_at_once
        return max(1.0, exact + 0.5) if exact > 1.0 else 1.0

    @property
    def n_warps_per_block(self) -> int:
        return -(-self.counters.n_threads_per_block // WARP_SIZE)

    @property
    def n_warps_at_once_per_sm(self) -> float:
        """Return the warps per active SM, which few blocks may not fill."""
        blocks_per_sm = max(1.0, self.counters.n_blocks / self.gpu.n_sms)
        return min(blocks_per_sm, max(1, self.resident.n_blocks)) * self.n_warps_per_block

    @property
    def n_requests(self) -> float:
        return self.counters.n_global_requests * self.trace_scale

    @property
    def sector_bytes(self) -> float:
        return self.counters.n_global_sectors * self.trace_scale * SECTOR_BYTES

    @property
    def global_bytes(self) -> float:
        """Bytes requested by threads."""
        return (self.counters.global_load_bytes + self.counters.global_store_bytes) * self.scale

    @property
    def n_requests_per_warp(self) -> float:
        return self.n_requests / max(1, self.counters.n_blocks * self.n_warps_per_block)

    @property
    def n_threads(self) -> int:
        return self.counters.n_blocks * self.counters.n_threads_per_block

    @property
    def loads_in_flight(self) -> float:
        """Return the loads in flight per warp."""
        return min(MAX_LOADS_IN_FLIGHT, max(1.0, self.n_requests_per_warp))


def _parts_s(load: _Load, traffic: Traffic) -> dict[str, float]:
    counters, scale, cycles = load.counters, load.scale, load.cycles_per_s
    architecture = load.gpu.architecture
    n_warp_instructions = counters.n_instructions * scale / WARP_SIZE * _warp_fill(counters)
    n_f32_lanes = max(0, counters.n_floating_operations - counters.n_f64_operations) * scale / 2
    shared_bytes = (counters.shared_load_bytes + counters.shared_store_bytes) * scale
    return {
        "device memory": _device_memory_s(load, traffic),
        "L2": _l2_bytes(load, traffic) / (L2_BYTES_PER_CYCLE_AND_SM * cycles),
        "L1": _l1_cycles(load) / cycles,
        "shared memory": shared_bytes / (SHARED_BYTES_PER_CYCLE * cycles),
        "issue": n_warp_instructions / (N_SCHEDULERS_PER_SM * ISSUE_EFFICIENCY * cycles),
        "f32": n_f32_lanes / (architecture.f32_lanes * cycles),
        "f64": counters.n_f64_operations * scale / 2 / (architecture.f64_lanes * cycles),
        # At the rate of 16-bit factors; GPUs without tensor cores have none.
        "tensor cores": counters.n_matrix_operations * scale / load.gpu.f16_rate if load.gpu.f16_rate else 0.0,
        "special": counters.n_special_operations * scale / (architecture.special_lanes * cycles),
        "atomics": counters.n_atomics * scale / (ATOMICS_PER_CYCLE_AND_SM * cycles),
        # Warps of concurrently started blocks wait together, so their instruction issue adds to the latency.
        "latency": load.n_waves * _longest_thread_s(load, traffic)
        + n_warp_instructions / (N_SCHEDULERS_PER_SM * cycles),
        "block starts": counters.n_blocks / (BLOCK_STARTS_PER_CYCLE_AND_SM * load.gpu.n_sms * load.gpu.clock_hz),
    }


def _warp_fill(counters: LaunchCounters) -> float:
    """Return the average fill of a warp; a partial warp costs as much as a full one."""
    n_warps = -(-counters.n_threads_per_block // WARP_SIZE)
    return n_warps * WARP_SIZE / counters.n_threads_per_block


def _device_memory_s(load: _Load, traffic: Traffic) -> float:
    """Return bytes over the bandwidth sustained by the loads in flight (Little's law), capped by an SM's intake."""
    n_bytes = traffic.compulsory_bytes - traffic.cached_bytes + _missed_again(load, traffic)
    bytes_per_request = load.sector_bytes / load.n_requests if load.n_requests else float(SECTOR_BYTES)
    in_flight = load.n_warps_at_once_per_sm * load.loads_in_flight * bytes_per_request
    per_sm = min(SM_BYTES_PER_CYCLE * load.gpu.clock_hz, in_flight / MEMORY_LATENCY_S)
    bandwidth = min(load.gpu.bandwidth * STREAM_EFFICIENCY, load.n_active_sms * per_sm)
    return n_bytes / bandwidth


def _missed_again(load: _Load, traffic: Traffic) -> float:
    """Return repeatedly requested bytes that L2 has evicted: the share of the working set that does not fit.

    Excludes sectors fetched again for their other bytes, because the next access follows immediately.
    """
    again = max(0.0, load.global_bytes - traffic.compulsory_bytes)
    blocks_at_once = min(load.counters.n_blocks, load.gpu.n_sms * max(1, load.resident.n_blocks))
    working_set = traffic.compulsory_bytes * blocks_at_once / load.counters.n_blocks
    fits = min(1.0, load.gpu.l2_bytes / working_set) if working_set else 1.0
    return again * (1.0 - fits)


def _l2_bytes(load: _Load, traffic: Traffic) -> float:
    """Return the L2 traffic: all first accesses, and half of the rest, assuming that the other half hits L1."""
    return traffic.compulsory_bytes + 0.5 * max(0.0, load.sector_bytes - traffic.compulsory_bytes)


def _l1_cycles(load: _Load) -> float:
    """Return L1 cycles per SM. Sectors beyond the requested bytes count as scattered, split between loads and stores in
    proportion to their bytes."""
    sectors = load.sector_bytes / SECTOR_BYTES
    useful = min(sectors, load.global_bytes / SECTOR_BYTES)
    asked = load.counters.global_load_bytes + load.counters.global_store_bytes
    stored = load.counters.global_store_bytes / asked if asked else 0.0
    cycles_each = stored * CYCLES_PER_SCATTERED_STORE_SECTOR + (1.0 - stored) * CYCLES_PER_SCATTERED_LOAD_SECTOR
    return useful / L1_SECTORS_PER_CYCLE + (sectors - useful) * cycles_each


def _longest_thread_s(load: _Load, traffic: Traffic) -> float:
    counters, n_threads_run = load.counters, max(1, load.counters.n_blocks_run * load.counters.n_threads_per_block)
    per_thread = {
        "instruction": counters.max_instructions_per_thread,
        "shuffle": counters.n_shuffles / n_threads_run,
        "barrier": counters.n_barriers / n_threads_run,
        "special": counters.n_special_operations / n_threads_run,
    }
    cycles = (
        per_thread["instruction"] * CYCLES_PER_DEPENDENT_INSTRUCTION
        + per_thread["shuffle"] * CYCLES_PER_SHUFFLE
        + per_thread["barrier"] * CYCLES_PER_BARRIER
        + per_thread["special"] * CYCLES_PER_SPECIAL
    )
    n_round_trips = max(1.0, load.n_requests_per_warp / load.loads_in_flight) if load.n_requests else 0.0
    return cycles / load.gpu.clock_hz + n_round_trips * _round_trip_s(load, traffic) + _waits_s(load)


def _waits_s(load: _Load) -> float:
    """Return the time at barriers between blocks: each takes an atomic and a read that sees the last block's."""
    if not load.counters.n_polled_instructions:
        return 0.0
    return load.counters.n_atomics / max(1, load.counters.n_blocks_run) * ROUND_TRIPS_PER_WAIT * MEMORY_LATENCY_S


def _round_trip_s(load: _Load, traffic: Traffic) -> float:
    """Return the mean latency of first accesses, which miss, and the rest, which mostly hit."""
    missed = min(1.0, traffic.compulsory_bytes / load.sector_bytes) if load.sector_bytes else 1.0
    return missed * MEMORY_LATENCY_S + (1.0 - missed) * CACHE_LATENCY_S
