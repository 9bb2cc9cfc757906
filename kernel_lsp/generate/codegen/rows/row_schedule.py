"""Distribute the rows of a reduction over threads."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.kernel import REGISTERS_PER_BLOCK
from kernel_lsp.generate.fusion.groups import RowGroup

WARP = 32
COLUMN_WIDTHS = (32, 64, 128, 256)
"""Rows per block where consecutive threads take different rows: whole warps, for coalescing. Wider blocks read less of
what their neighbours read, too, where a row of memory is no multiple of a sector."""
MAX_CACHED_BYTES = 256
"""Maximum bytes of a row per thread in registers: 64 registers, with as many left to compute in blocks of 512
threads."""
MAX_CACHED_BYTES_PER_BLOCK = 128 * 1024
"""Maximum bytes of a row per block in registers: half of the register file of an SM."""
MAX_STAGED_BYTES = 200 * 1024
"""Maximum bytes of shared memory for the next row: an SM has 227 KB, and the helpers need some of it."""
MAX_CLUSTER = 16
"""Maximum blocks of a cluster on Hopper. A row that more blocks share needs a cooperative grid."""
COLUMN_SUM_THREADS = 512
"""Threads per SM that also add up over rows: 128 registers each, for a row, the sums and the computation."""
MAX_COLUMN_SUM_BLOCKS = 8
REGISTERS_OF_POSITION = 40
"""Registers of a thread with four loads in flight, their addresses of 64 bits, and the best position so far."""
SHAREABLE_KINDS = ("sum", "prod", "max", "min")
"""Kinds of reductions that return no position: blocks exchange one value of each."""
SHAREABLE_TYPES = (DType.F64, DType.F32, DType.F16, DType.BF16, DType.I64, DType.I32)


@dataclass(frozen=True)
class RowSchedule:
    """`threads` of a block share a row; `rows` rows per block; `vector` neighbouring elements move together.

    `cached` keeps the row in registers between passes; where the plan leaves its length open, `items` packs per thread.
    `blocks` share a row where it is above 1: a cluster, or a cooperative grid in which `teams` of blocks take row after
    row, `resident` blocks on an SM. `staged` copies a team's next row to shared memory meanwhile; `ahead` loads it into
    registers as this one is stored, and has in shared memory what all rows read. `held` keeps what later passes need of
    the first one, not the row, in registers and shared memory of blocks that share it. `streaming` evicts early what is
    used once; `evicts_late` evicts the row last that a block keeps in registers. `online` computes pairs of dependent
    reductions in one pass over memory. `reads_first` loads a thread's first element of a row before any computation.
    `is_whole` marks a variant for rows of `capacity` columns, where no pack needs a bounds check. Where a row is made
    of lines whose sums are wanted, a block has `lines` of them, one after the other, and `items` are the packs of a
    line. Where one pass finds the pairs of a row, a thread loads `batch` packs before it computes any.
    """

    threads: int
    rows: int
    vector: int
    cached: bool
    blocks: int = 1
    teams: int = 1
    resident: int = 1
    items: int = 0
    staged: bool = False
    streaming: bool = False
    online: bool = False
    reads_first: bool = False
    lines: int = 0
    held: bool = False
    batch: int = 1
    is_whole: bool = False
    evicts_late: bool = False
    ahead: bool = False

    @property
    def is_grid(self) -> bool:
        """Return True if the blocks of a row synchronize at the barrier of a cooperative grid."""
        return self.blocks > MAX_CLUSTER

    @property
    def stride(self) -> int:
        """Return the number of threads that share a row, over all blocks."""
        return self.threads * self.blocks

    @property
    def meanwhile(self) -> int:
        """Return the value of the knob `staged`."""
        return 2 if self.ahead else int(self.staged)

    @property
    def capacity(self) -> int:
        """Return the columns that the `items` packs of all threads of a row have."""
        return self.items * self.stride * self.vector

    def columns_of(self, group: RowGroup) -> int | None:
        """Return the number of columns where the kernel is for one."""
        return self.capacity if self.is_whole else group.column.extent.constant


def n_column_sum_blocks(n_columns: int, itemsize: int) -> int:
    """Return the blocks per SM that take row after row, 512 threads of them together: a thread has 8 elements of a row
    in f32, 16 in f16 and bf16. On an H100 the gradients of RMSNorm took 144 us so, and 160 with 4 blocks of 512."""
    per_thread = 8 if itemsize >= 4 else 16
    n_blocks = 1
    while n_blocks < MAX_COLUMN_SUM_BLOCKS and n_columns * n_blocks * 2 <= COLUMN_SUM_THREADS * per_thread:
        n_blocks *= 2
    return n_blocks


def n_blocks_per_multiprocessor(threads: int) -> int:
    """Return the number of blocks of a shared row per SM: 1024 threads, with 64 registers each."""
    return 2 if threads <= 512 else 1


def can_share(group: RowGroup) -> bool:
    """Return True if several blocks may share a row of the group."""
    return (
        group.is_column_contiguous
        and not group.wholes
        and all(entry.kind in SHAREABLE_KINDS and entry.tensor.dtype in SHAREABLE_TYPES for entry in group.reductions)
    )


def can_pack_rows(group: RowGroup) -> bool:
    """Return True if threads may take packs of the group's rows, which lie side by side: one pass finds plain sums."""
    return (
        not group.is_column_contiguous
        and not group.wholes
        and bool(group.reductions)
        and all(entry.kind == "sum" and entry.level == 0 for entry in group.reductions)
        and all(entry.tensor.dtype in (DType.F32, DType.F16, DType.BF16) for entry in group.reductions)
        and all(level == 0 for level, _ in group.stores)
    )


def is_valid_row_schedule(group: RowGroup, schedule: RowSchedule, itemsize: int) -> bool:
    """Check that the schedule fits a block and the layout. `itemsize` is that of the widest tensor that the schedule
    keeps in registers."""
    if schedule.threads * schedule.rows > 1024 or (group.wholes and schedule.threads * schedule.rows % WARP):
        return False
    if schedule.blocks > 1 and (schedule.threads <= WARP or not can_share(group)):
        return False
    if schedule.staged and not (schedule.cached and schedule.is_grid):
        return False
    if not group.is_column_contiguous:
        if schedule.rows not in COLUMN_WIDTHS or schedule.threads > WARP:
            return False
        if schedule.vector > 1:
            return can_pack_rows(group) and not schedule.cached
    elif schedule.threads > WARP and (schedule.rows != 1 or schedule.threads % WARP):
        return False
    n_columns = group.column.extent.constant
    if schedule.vector > 1 and n_columns is not None and n_columns % schedule.vector:
        return False
    if not schedule.cached:
        return True
    if n_columns is None:
        n_columns = schedule.items * schedule.stride * schedule.vector
    return n_columns > 0 and fits_registers(n_columns, schedule, itemsize)


def fits_registers(n_columns: int, schedule: RowSchedule, itemsize: int) -> bool:
    """Return True if the threads that share a row can keep it in registers."""
    n_packs = -(-n_columns // schedule.vector)
    per_thread = -(-n_packs // schedule.stride) * schedule.vector * max(itemsize, 2)
    return (
        per_thread <= MAX_CACHED_BYTES and per_thread * schedule.threads * schedule.rows <= MAX_CACHED_BYTES_PER_BLOCK
    )


def blocks_of_positions(group: RowGroup, schedule: RowSchedule, index_type: str) -> int | None:
    """Return the least resident blocks that leave each thread the registers to look for a position in a large tensor;
    None where the compiler decides. By itself it takes fewer, and the loads of a loop wait for each other: argmax of
    (128, 4096, 4095) over its middle dim took 3370 us on an H200, 2130 us so."""
    finds_position = any(entry.kind in ("argmax", "argmin") for entry in group.reductions)
    if not finds_position or index_type == "int" or schedule.cached:
        return None
    return REGISTERS_PER_BLOCK // (REGISTERS_OF_POSITION * schedule.threads * schedule.rows) or None
