"""Decide which schedules contractions on CUDA cores have by default, and from which sizes on: split over threads and
clusters, in register tiles, or by rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.products.split_schedule import (
    MAX_SHARED_BYTES,
    QUAD,
    SplitSchedule,
    is_valid_split_schedule,
)
from kernel_lsp.generate.codegen.products.thread_rows import PACK, ThreadRowSchedule, max_columns
from kernel_lsp.generate.codegen.shared_launch import MAX_SHARED_BYTES as SHARED_LAUNCH_BYTES
from kernel_lsp.generate.fusion.groups import ContractionGroup
from kernel_lsp.generate.ir.index import product
from kernel_lsp.generate.ir.tensor import Reduction, Tensor
from kernel_lsp.generate.ir.workload import AMPERE, Workload
from kernel_lsp.generate.library import has_bytes

_TILES = (
    *((8, 8, 2, 2), (16, 8, 4, 2), (16, 16, 2, 2), (16, 16, 4, 2), (32, 8, 4, 2), (32, 16, 4, 2), (32, 16, 4, 4)),
    *((16, 32, 2, 4), (16, 32, 4, 4), (32, 32, 4, 4), (32, 32, 4, 2), (32, 64, 4, 4), (64, 32, 4, 4), (64, 64, 4, 4)),
)
SHAPES: dict[str, tuple[int, int, int, int]] = {
    f"{tile_m}x{tile_n}_{thread_m}x{thread_n}": (tile_m, tile_n, thread_m, thread_n)
    for tile_m, tile_n, thread_m, thread_n in _TILES
}
"""Tiles of a block and of a thread, by name."""
MAX_STEP = 512
DEFAULT_THREADS = 256
CLUSTERS = (1, 2, 4, 8)
SYNC_COST = 256
"""Cost of a cluster's exchange, in elements that a block could read in that time: about 0.25 us."""


def shape_name(schedule: SplitSchedule) -> str:
    """Return the key of a schedule's tiles in `SHAPES`."""
    return f"{schedule.tile_m}x{schedule.tile_n}_{schedule.thread_m}x{schedule.thread_n}"


def steps_of(n_terms: int) -> tuple[int, ...]:
    """Return the numbers of products that may be staged at a time: a sum's own length, or a part of it."""
    parts = {-(-n_terms // part // QUAD) * QUAD for part in (1, 2, 4, 8, 16)}
    return tuple(sorted({part for part in parts if QUAD <= part <= MAX_STEP} | {16, 32, 64}))


def default_split_schedule(
    n_rows: int, n_columns: int, n_terms: int, workload: Workload, threads: int | None
) -> SplitSchedule:
    """Return the schedule with the least work on the busiest multiprocessor: elements read, products computed, and the
    cost of the exchange within a cluster."""
    clusters = (1,) if threads else CLUSTERS
    n_bytes = SHARED_LAUNCH_BYTES if threads else MAX_SHARED_BYTES
    found = [
        _fitted(SplitSchedule(*tile[:2], QUAD, *tile[2:], threads or DEFAULT_THREADS, cluster), n_terms, n_bytes)
        for tile in _TILES
        for cluster in clusters
        if cluster * 4 * QUAD <= max(n_terms, 4 * QUAD)
    ]
    valid = [schedule for schedule in found if is_valid_split_schedule(schedule, DType.F32, n_bytes)]
    return min(valid, key=lambda schedule: _cost(schedule, n_rows, n_columns, n_terms, workload))


def split_comment(schedule: SplitSchedule, name: str, written: str) -> str:
    """Return the comment above the kernel: a description of its work."""
    text = (
        f"Each block computes a {schedule.tile_m} x {schedule.tile_n} tile of {name} from {schedule.tile_k} products "
        f"at a time in shared memory. {schedule.n_groups} groups of {schedule.n_lanes} threads share the products, and "
        f"add up their sums at the end"
    )
    if schedule.cluster > 1:
        text += f"; so do the {schedule.cluster} blocks of a cluster"
    return f"{text}. Writes {'the sums' if written == 'them' else written}."


def _fitted(schedule: SplitSchedule, n_terms: int, n_bytes: int) -> SplitSchedule:
    """Return the schedule with the longest step that fits shared memory."""
    per_block = -(-n_terms // schedule.cluster)
    steps = [step for step in steps_of(n_terms) if step < per_block + QUAD or step == 16]
    fitting = [step for step in steps if is_valid_split_schedule(replace(schedule, tile_k=step), DType.F32, n_bytes)]
    return replace(schedule, tile_k=max(fitting, default=QUAD))


def _cost(schedule: SplitSchedule, n_rows: int, n_columns: int, n_terms: int, workload: Workload) -> float:
    tiles = -(-n_rows // schedule.tile_m) * -(-n_columns // schedule.tile_n)
    waves = -(-tiles * schedule.cluster // workload.n_multiprocessors)
    per_block = n_terms / schedule.cluster
    # A multiprocessor reads 16 floats from the L2 and computes 128 products per clock.
    n_read = (schedule.tile_m + schedule.tile_n) * per_block / 16
    n_multiplied = schedule.tile_m * schedule.tile_n * per_block / 128
    n_exchanged = schedule.tile_m * schedule.tile_n * schedule.n_groups / 64
    steps = -(-per_block // schedule.tile_k)
    exchange = SYNC_COST * 2 if schedule.cluster > 1 else 0
    return waves * (n_read + n_multiplied + n_exchanged) + exchange + steps * SYNC_COST


MIN_SPLIT_TERMS = 32
MIN_TERMS_OF_REGISTER_TILES = 512
"""Minimum terms of a sum for tiles in registers by default. With fewer than a pack for each of 128 threads they leave
warps idle: a linear layer of (64, 128) to 128 took 3.5 us on an H200 so, 2.5 where threads share the products of a tile
and 3.1 with a warp per result; to 10 columns 2.6, 2.3 and 2.0."""
MIN_GATHERED_PRODUCTS = 1 << 24
"""Minimum products of an f32 convolution for tensor cores by default, instead of tiles: (8, 16, 32, 32) by 16 x 3 x 3,
of 18 Mi products, took 31.2 us on an H200 by tiles, 6.2 on tensor cores and 8.8 in the library."""
MAX_WARPS = 8
"""Maximum results per multiprocessor for a warp each."""
MAX_SPLIT_PRODUCTS = 1 << 26
"""Maximum products of a contraction whose products threads and clusters share: 64 Mi take 132 multiprocessors 2.3 us,
so the time until all of them have work dominates."""
MAX_SKINNY = 16
"""Maximum rows of an f32 product, such as that of dequantized weights, whose sums stay in registers: (16, 4096) x 11008
took 123 us on an H200 so, 300 us on tensor cores and 160 us in the library; VGG16, whose classifier has 10 rows, took
4172 us so and 9304 us by tiles."""
MIN_SKINNY_TERMS = 1024
MIN_CONVERTED_ROWS, MAX_CONVERTED_ROWS, CONVERTED_TERMS = 3, 64, 64
"""Rows of a product in 16 bits whose weights are bytes that tensor cores convert by default, and what its terms are a
multiple of. (M, 4096) x 4096 took 11.9, 15.8 and 22.7 us on an H200 for 8, 32 and 64 rows, and by the library, which
converted weights are written for, 29.2, 30.1 and 28.9; for 128 rows 33.1 and 32.8."""
SMALL_TILE = (4, 8)
"""Rows and columns of the smallest tile."""


def converts_bytes(tensor: Tensor, definition: Reduction, workload: Workload) -> bool:
    """Return True for products of a few rows in 16 bits with quantized weights, which tensor cores convert by
    default."""
    contraction = definition.contraction
    if contraction is None or contraction.phases is not None or workload.capability < AMPERE:
        return False
    n_rows = workload.size(product(tensor.shape[axis] for axis in contraction.row_axes))
    n_terms = product(variable.extent for variable in definition.reduced)
    is_whole = n_terms.constant is not None and n_terms.constant % CONVERTED_TERMS == 0
    is_few = MIN_CONVERTED_ROWS <= n_rows <= MAX_CONVERTED_ROWS and is_whole
    return is_few and has_bytes((contraction.left, contraction.right), definition.reduced)


def parts_of_register_tiles(
    tensor: Tensor,
    definition: Reduction,
    offered: Sequence[int],
    workload: Workload,
) -> int:
    """Return the fewest parts whose tiles fill the GPU."""
    n_tiles = _n_tiles(tensor, definition, workload)
    return next((n for n in offered if n * n_tiles >= workload.n_multiprocessors), max(offered))


def fill_by_register_tiles(
    tensor: Tensor,
    definition: Reduction,
    offered: Sequence[int],
    workload: Workload,
) -> bool:
    """Return True if parts of the sums make enough tiles for the GPU. The coordinates of a term, as of a weight
    gradient, are then worked out once for a tile instead of once per product: those of a convolution of (64, 1, 28, 28)
    by 32 x 3 x 3, with its pooling, took 75 us on an H200 with a block per result, 38 us so."""
    return max(offered) > 1 and max(offered) * _n_tiles(tensor, definition, workload) >= workload.n_multiprocessors


def _n_tiles(tensor: Tensor, definition: Reduction, workload: Workload) -> int:
    contraction = definition.contraction
    assert contraction is not None
    n_tiles = workload.size(product(tensor.shape[axis] for axis in contraction.batch_axes))
    for axes, size in zip((contraction.row_axes, contraction.column_axes), SMALL_TILE, strict=True):
        n_tiles *= -(-workload.size(product(tensor.shape[axis] for axis in axes)) // size)
    return n_tiles


MAX_COLUMNS_PER_THREAD = 32
"""Maximum columns of a thread by default; wider contractions have several tiles."""
MIN_COLUMNS_OF_THREAD_ROWS = 8
"""Minimum columns of a contraction that goes by rows of threads by default: one read of the left factor serves all."""
MAX_COLUMNS_OF_THREAD_ROWS = 64
"""Maximum columns of such a contraction: with more, tensor cores repay what they stage."""
MAX_TERMS_OF_THREAD_ROWS = 192
"""Maximum terms (products per result) of such a contraction: with more, tensor cores repay what they stage."""
WINDOW_CHANNELS = 8
"""Input channels that windows take at a time, on tensor cores."""
MIN_ROWS_PER_MULTIPROCESSOR = 2048
"""Minimum rows per multiprocessor: 8 blocks of 256 threads with a row each, or 4 with two."""
MAX_SUMS_PER_THREAD = 64
"""Maximum sums per thread by default: with more, too few warps hide the latency of loads. A convolution with a group
norm's mean, of 24 columns and 81 terms, took 361 us on an H200 with 2 rows per thread, 381 with 4 and 396 with 8."""


def suits_thread_rows(tensor: Tensor, definition: Reduction, workload: Workload) -> bool:
    """Return True for convolutions of f32 with few channels: copies of single elements to shared memory would take
    longer than the products."""
    contraction = definition.contraction
    assert contraction is not None
    n_terms = product(variable.extent for variable in definition.reduced).constant or 0
    axes = (contraction.row_axes, contraction.column_axes)
    n_rows, n_columns = (workload.size(product(tensor.shape[axis] for axis in each)) for each in axes)
    has_windows = workload.size(definition.reduced[0].extent) % WINDOW_CHANNELS == 0
    return (
        {tensor.dtype, contraction.left.dtype, contraction.right.dtype} == {DType.F32}
        and len(definition.reduced) > 1
        and contraction.phases is None
        and not has_windows
        and 0 < n_terms <= MAX_TERMS_OF_THREAD_ROWS
        and MIN_COLUMNS_OF_THREAD_ROWS <= n_columns <= MAX_COLUMNS_OF_THREAD_ROWS
        and n_rows >= MIN_ROWS_PER_MULTIPROCESSOR * workload.n_multiprocessors
    )


def default_thread_rows(group: ContractionGroup, workload: Workload) -> ThreadRowSchedule:
    """Return the widest tile of up to 32 columns that fits the columns and shared memory, and as many rows as make 64
    sums."""
    n_columns = workload.size(group.n.extent)
    n_tiles = -(-n_columns // MAX_COLUMNS_PER_THREAD)
    widest = max_columns(group.k.extent.constant, group.tensor.dtype)
    tile_n = min(-(-n_columns // (n_tiles * PACK)) * PACK, max(PACK, widest))
    rows = next(rows for rows in (8, 6, 4, 2, 1) if rows * tile_n <= MAX_SUMS_PER_THREAD)
    return ThreadRowSchedule(tile_n, rows, 256)
