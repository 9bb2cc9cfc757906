"""Distribute the rows of a scan over threads."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES
from kernel_lsp.generate.codegen.operators import COMPUTE_TYPE
from kernel_lsp.generate.codegen.rows.row_schedule import WARP
from kernel_lsp.generate.fusion.groups import ScanGroup
from kernel_lsp.generate.fusion.scans import POSITIONS
from kernel_lsp.generate.ir.index import Index
from kernel_lsp.generate.ir.scalar import accesses
from kernel_lsp.generate.ir.workload import Workload

MAX_SHARED_BYTES = 48 << 10
"""Maximum static shared memory of a block."""
SCAN_THREADS = {True: (32, 64, 128, 256, 512, 1024), False: (1, 2, 4, 8, 16, 32)}
"""Numbers of threads that may share a row, by contiguity of its elements in memory."""
MAX_SINGLE_ITEMS = 8
"""Default maximum of single elements per thread and tile: 2209 us, 2261 us with 16 (rows of 32769 on an H200)."""
MAX_WARP_COLUMNS = 1024
"""Maximum columns of a row that one warp scans: 32 lanes with up to 32 elements each."""
MAX_STATE_WORDS = 1 << 14
"""Maximum 32-bit registers of a block for the elements of a tile; ptxas spills beyond, also at 64 per thread."""
MAX_THREAD_WORDS = 64


@dataclass(frozen=True)
class ScanSchedule:
    """`threads` share a row and take `items` packs of `vector` neighbours each per tile; `rows` rows per block.

    With `chained` every tile has a block of its own, which waits for the tiles before it; else one block walks the row.
    """

    threads: int
    rows: int
    vector: int
    items: int
    chained: bool


@dataclass(frozen=True)
class ScanState:
    """C++ types of a scan: the operator within a tile, the operator between tiles, and the 32-bit words of either's
    state."""

    operator: str
    state: str
    carry_operator: str
    carry: str
    n_tile_words: int
    n_words: int

    @classmethod
    def of(cls, group: ScanGroup) -> ScanState:
        """Return the types of a scan. Sums of floats are carried between tiles in double: a tile is short, a row need
        not be."""
        type_ = COMPUTE_TYPE[group.scalar.dtype]
        n_words = group.scalar.dtype.itemsize // 4 if group.scalar.dtype not in (DType.F16, DType.BF16) else 1
        if group.kind in POSITIONS:
            position = "long long" if n_words == 2 else "int"  # without padding, which is uninitialized
            operator, state = f"{OPERATORS[group.kind]}<{type_}, {position}>", f"Extreme<{type_}, {position}>"
            n_words = 4 if position == "long long" else 2
            return cls(operator, state, operator, state, n_words, n_words)
        operator = f"{OPERATORS[group.kind]}<{type_}>"
        if group.kind == "sum" and type_ == "float":
            return cls(operator, type_, f"{OPERATORS[group.kind]}<double>", "double", 1, 2)
        return cls(operator, type_, operator, type_, n_words, n_words)


OPERATORS = {
    "sum": "RunningSum",
    "prod": "RunningProduct",
    "max": "RunningMax",
    "min": "RunningMin",
    "argmax": "RunningArgMax",
    "argmin": "RunningArgMin",
    "logsumexp": "RunningLogSumExp",
}


def is_valid_scan_schedule(group: ScanGroup, schedule: ScanSchedule, state_words: int) -> bool:
    """Check that the schedule fits a block and the layout."""
    n_threads, n_words = schedule.threads * schedule.rows, schedule.items * schedule.vector * state_words
    if n_threads > 1024 or n_words > MAX_THREAD_WORDS or n_threads * n_words > MAX_STATE_WORDS:
        return False
    if not group.is_column_contiguous:
        fits = schedule.threads * schedule.rows * state_words * 8 <= MAX_SHARED_BYTES
        return fits and schedule.vector == 1 and schedule.rows <= WARP
    if schedule.threads % WARP or (schedule.rows > 1 and (schedule.threads > WARP or schedule.chained)):
        return False
    n_columns = group.column.extent.constant
    return n_columns is None or n_columns % schedule.vector == 0


def scan_widths(group: ScanGroup, workload: Workload) -> list[int]:
    """Return the numbers of neighbours that may move together at the captured sizes."""
    size = workload.size(group.column.extent)
    if not group.is_column_contiguous or not size or not is_size(group.column.extent):
        return [1]
    return [1, *(width for width in (2, 4, 8) if size % width == 0 and _widest(group) * width <= MAX_PACK_BYTES)]


def default_scan_schedule(group: ScanGroup, workload: Workload) -> ScanSchedule:
    """Return enough threads to fill the GPU, and tiles no longer than the rows."""
    n_rows, n_columns = max(1, workload.size(group.row.extent)), max(1, workload.size(group.column.extent))
    if not group.is_column_contiguous:
        return _default_side_by_side(n_rows, n_columns, workload)
    width = max(scan_widths(group, workload))
    if n_columns <= MAX_WARP_COLUMNS and n_rows >= 4 * workload.n_multiprocessors:
        return ScanSchedule(WARP, 4, width, _covering(n_columns, WARP * width, 8 // min(width, 4)), False)
    threads = 256
    while threads > 64 and threads * width * 2 > n_columns:
        threads //= 2
    items = _covering(n_columns, threads * width, MAX_SINGLE_ITEMS if width == 1 else 16 // width)
    is_chained = n_rows < 2 * workload.n_multiprocessors and n_columns >= 8 * threads * items * width
    if is_chained and width == 4:
        items *= 2  # fewer dependent tiles: 298 us instead of 330 us on an H200 for 8 rows of 16 Mi floats
    return ScanSchedule(threads, 1, width, items, is_chained)


def single_element_schedule(group: ScanGroup, schedule: ScanSchedule, workload: Workload) -> ScanSchedule:
    """Return the schedule without packs: more loads per thread and tile instead."""
    items = _covering(
        workload.size(group.column.extent), schedule.threads, min(MAX_SINGLE_ITEMS, schedule.items * schedule.vector)
    )
    return replace(schedule, vector=1, items=items)


def scan_comment(group: ScanGroup, schedule: ScanSchedule) -> str:
    """Describe the threads of each row for the kernel's comment."""
    n_elements = schedule.threads * schedule.items * schedule.vector
    if not group.is_column_contiguous:
        who = f"{schedule.threads} threads per row, neighbouring threads on neighbouring rows so that accesses coalesce"
    elif schedule.threads <= WARP:
        who = f"One warp per row, {schedule.rows} rows per block" if schedule.rows > 1 else "One warp per row"
    else:
        who = f"{schedule.threads} threads share a row"
    how = (
        "a block for each tile, which waits for the tiles before it" if schedule.chained else "one tile after the other"
    )
    kept = ""
    if group.kind == "sum" and COMPUTE_TYPE[group.scalar.dtype] == "float":
        kept = " Sums are carried from tile to tile in double."
    return f"{who}: tiles of {n_elements} elements, {how}. Every element is read once.{kept}"


def is_size(extent: Index) -> bool:
    """Return True if the extent is a number or one symbol, which a condition can make a multiple."""
    return extent.constant is not None or extent.atom is not None


def _default_side_by_side(n_rows: int, n_columns: int, workload: Workload) -> ScanSchedule:
    width = WARP
    while width > 8 and width // 2 >= n_rows:
        width //= 2
    lanes, n_blocks = 8, -(-n_rows // width)
    while lanes < 256 // width:
        lanes *= 2
    items = _covering(n_columns, lanes, 16)
    if n_blocks < 4 * workload.n_multiprocessors and n_columns >= 4 * lanes * items:
        return ScanSchedule(lanes, width, 1, items, True)
    while lanes > 1 and n_columns < lanes * 2:
        lanes //= 2
    return ScanSchedule(lanes, width, 1, items, False)


def _covering(n_columns: int, per_item: int, limit: int) -> int:
    """Return the least power of two of items that covers the row, up to `limit`."""
    items = 1
    while items < limit and items * per_item < n_columns:
        items *= 2
    return items


def _widest(group: ScanGroup) -> int:
    reads = [access.dtype.itemsize for access in accesses(group.scalar)]
    return max([store.tensor.dtype.itemsize for store in group.stores] + reads)
