"""Schedules of contractions on tensor cores, and their use of shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.kernel import REGISTERS_PER_BLOCK

WARP = 32
ROW_BYTES = 16
"""Bytes of a row of `ldmatrix`, and of the widest asynchronous copy."""
MMA_M, MMA_N = 16, 8
WARPGROUP_COLUMNS = (32, 64, 96, 128)
"""Columns of results per `wgmma` of a contraction's tile."""
INTERLEAVED_COLUMNS = 32
"""Columns of four fragments side by side, of which a thread has a pack of neighbours where they are interleaved."""
MAX_SHARED_BYTES = 227 << 10
"""Maximum shared memory per block on sm_90 in bytes; needs an opt-in."""
MAX_ACCUMULATORS = 160
"""Maximum f32 sums per thread; with fragments and addresses, more would exceed 255 registers."""
MAX_UNROLLED_SUMS = 96
"""Maximum results per thread to unroll the steps of a tile; with more, fragments would spill."""
OTHER_REGISTERS = 60
"""Estimated registers per thread for fragments and addresses, besides the sums. It excludes schedules that spill."""
STRIP_REGISTERS, STRIP_WARPS = 96, 12
"""Least registers per thread of a strip besides its sums, and the warps of a multiprocessor that have enough of them:
(32768, 32) x 32768 took 1415 us on an H200 by 12 warps, 1639 by 16 and 1538 by 8."""
MAX_THREADS = 1024
N_COPYING_THREADS = 256
"""Threads that copy and split tiles for those that multiply by `wgmma`."""
AHEAD = 2
"""Tiles on their way while one is split for `wgmma`."""
SWIZZLED_BYTES = 128
"""Bytes of a row of a tile whose 16-byte pieces are swizzled for `wgmma`."""


@dataclass(frozen=True)
class TensorCoreSchedule:
    """A block computes `tile_m` x `tile_n` results with `warps_m` x `warps_n` warps, `tile_k` products at a time, with
    `stages` tiles in flight. The blocks of a cluster share the products of a tile. Tensor cores add up `chain` products
    before an addition that rounds to the nearest. With `uses_warpgroups`, four warps multiply together, by `wgmma`, and
    `n_copying` more threads copy tiles and split them. `is_transposed`: a tile's rows are the result's columns. A block
    computes `n_phases` phases of its rows one after the other, whose results alternate in memory. With a `strip` it
    keeps its rows and computes as many tiles along the columns."""

    tile_m: int
    tile_n: int
    tile_k: int
    warps_m: int
    warps_n: int
    stages: int
    cluster: int = 1
    chain: int = 8
    uses_warpgroups: bool = False
    n_copying: int = N_COPYING_THREADS
    is_transposed: bool = False
    n_phases: int = 1
    strip: int = 0

    @property
    def n_threads(self) -> int:
        return WARP * self.warps_m * self.warps_n + (self.n_copying if self.uses_warpgroups else 0)

    @property
    def warp_m(self) -> int:
        """Return the rows of a warp's tile."""
        return self.tile_m // self.warps_m

    @property
    def warp_n(self) -> int:
        """Return the columns of a warp's tile."""
        return self.tile_n // self.warps_n


@dataclass(frozen=True)
class TileLayout:
    """A tile in shared memory: `n_outer` rows of `n_inner` elements and `padding` that keeps banks apart."""

    n_outer: int
    n_inner: int
    padding: int
    itemsize: int

    @property
    def n_bytes(self) -> int:
        return self.n_outer * (self.n_inner + self.padding) * self.itemsize


def operand_layout(schedule: TensorCoreSchedule, size: int, operand: DType, *, is_k_inner: bool) -> TileLayout:
    """Return the layout of a tile of one factor, `size` along its own dim.

    Rows along k are read by `ldmatrix`: 16 bytes of padding shift each row by four banks. Otherwise 8 elements do."""
    if is_k_inner:
        return TileLayout(size, schedule.tile_k, ROW_BYTES // operand.itemsize, operand.itemsize)
    return TileLayout(schedule.tile_k, size, 8, operand.itemsize)


def result_layout(schedule: TensorCoreSchedule, *, is_m_inner: bool) -> TileLayout:
    """Return the layout of the sums on their way to the epilogue: lanes of a warp write to different banks."""
    if is_m_inner:
        return TileLayout(schedule.tile_n, schedule.tile_m * schedule.n_phases, 4, 4)
    return TileLayout(schedule.tile_m, schedule.tile_n, 8, 4)


def depth_of(operand: DType) -> int:
    """Return the k of one `mma.sync`: 8 for TF32, 16 for 16-bit operands."""
    return 2 * ROW_BYTES // operand.itemsize


def is_chained(schedule: TensorCoreSchedule, operand: DType) -> bool:
    """Return True if tensor cores add up the products of several `mma.sync` before an addition of f32."""
    return operand == DType.F32 and schedule.chain > depth_of(operand)


def n_sums(schedule: TensorCoreSchedule) -> int:
    """Return the number of results that a thread sums in registers."""
    return schedule.warp_m * schedule.warp_n // WARP


def resident_strips(schedule: TensorCoreSchedule) -> int:
    """Return the blocks with a strip that share a multiprocessor: registers are worth more than warps to them."""
    by_registers = REGISTERS_PER_BLOCK // ((n_sums(schedule) + STRIP_REGISTERS) * schedule.n_threads)
    return max(1, min(by_registers, max(2, STRIP_WARPS * WARP // schedule.n_threads)))


def is_valid_schedule(schedule: TensorCoreSchedule, operand: DType) -> bool:
    """Check that warps have whole fragments, and that sums and tiles fit the registers and shared memory."""
    return _has_whole_fragments(schedule, operand) and _fits_registers(schedule, operand)


def _has_whole_fragments(schedule: TensorCoreSchedule, operand: DType) -> bool:
    is_divided = schedule.tile_m % schedule.warps_m == 0 and schedule.tile_n % schedule.warps_n == 0
    are_whole = schedule.warp_m % MMA_M == 0 and schedule.warp_n % (2 * MMA_N) == 0
    return is_divided and are_whole and schedule.tile_k % depth_of(operand) == 0 and schedule.stages >= 2


def _fits_registers(schedule: TensorCoreSchedule, operand: DType) -> bool:
    n_accumulators = n_sums(schedule) * (2 if is_chained(schedule, operand) else 1)
    n_registers = (n_accumulators + OTHER_REGISTERS) * schedule.n_threads
    return (
        n_accumulators <= MAX_ACCUMULATORS and n_registers <= REGISTERS_PER_BLOCK and schedule.n_threads <= MAX_THREADS
    )
