"""Pick the schedules of contractions on CUDA cores: tiles in shared memory, split sums, register tiles, and rows of
threads.

Each function returns the schedule to render, and True if it is exactly what the knobs requested.
"""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.generate.codegen.products.matmul import TileSchedule, is_valid_tile_schedule
from kernel_lsp.generate.codegen.products.register_tiles import (
    RegisterTileSchedule,
    is_valid_register_tile,
    sharing_threads,
)
from kernel_lsp.generate.codegen.products.split_schedule import SplitSchedule, is_valid_split_schedule
from kernel_lsp.generate.codegen.products.thread_rows import ThreadRowSchedule, is_valid_thread_rows
from kernel_lsp.generate.fusion.groups import ContractionGroup
from kernel_lsp.generate.ir.workload import HOPPER, Workload
from kernel_lsp.generate.schedule.contraction_defaults import (
    SHAPES,
    default_split_schedule,
    default_thread_rows,
    shape_name,
    steps_of,
)
from kernel_lsp.generate.schedule.knobs import Choices

SHARED_TILES = {
    128: TileSchedule(32, 32, 16, 4, 2),
    256: TileSchedule(32, 32, 16, 2, 2),
    512: TileSchedule(64, 32, 16, 2, 2),
    1024: TileSchedule(64, 64, 16, 2, 2),
}
"""Tiles of a contraction that shares a launch, by its block size."""
MIN_TERMS_OF_LARGE_TILES = 512
"""Minimum terms for tiles of 8 x 8 sums: with fewer than a pack for each of 128 threads, warps would be idle. Where
such tiles do not fill the GPU twice, tiles of 8 x 4 do: (64, 1600) to 128 took 3.61 to 3.69 us on an H200 so, 3.72 to
3.84 by 8 x 8."""


def choose_tiles(
    choices: Choices, name: str, group: ContractionGroup, workload: Workload, threads: int | None
) -> tuple[TileSchedule, bool]:
    """Pick tiles in shared memory."""
    pick = choices.pick_int
    default = _default_tiles(group, workload) if threads is None else SHARED_TILES[threads]
    schedule = TileSchedule(
        pick(f"{name}.tile_m", (16, 32, 64, 128), default.tile_m, "rows of a block's tile"),
        pick(f"{name}.tile_n", (16, 32, 64, 128), default.tile_n, "columns of a block's tile"),
        pick(f"{name}.tile_k", (8, 16, 32), default.tile_k, "products per step through shared memory"),
        pick(f"{name}.thread_m", (1, 2, 4, 8), default.thread_m, "rows per thread"),
        pick(f"{name}.thread_n", (1, 2, 4, 8), default.thread_n, "columns per thread"),
    )
    is_valid = is_valid_tile_schedule(schedule, group.tensor.dtype) and threads in (None, schedule.n_threads)
    return (schedule if is_valid else default), is_valid


def choose_split(
    choices: Choices, name: str, group: ContractionGroup, workload: Workload, threads: int | None
) -> tuple[SplitSchedule, bool]:
    """Pick how threads and clusters share the sums of a tile."""
    n_terms = workload.size(group.k.extent)
    n_rows, n_columns = map(workload.size, (group.m.extent, group.n.extent * group.batch.extent))
    default = default_split_schedule(n_rows, n_columns, n_terms, workload, threads)
    default = default if workload.capability >= HOPPER else replace(default, cluster=1)
    pick = choices.pick_int
    shape = choices.pick(f"{name}.tile", tuple(SHAPES), shape_name(default), "results per block, thread")
    clusters = (1,) if threads or workload.capability < HOPPER else (1, 2, 4, 8)
    cluster = pick(f"{name}.cluster", clusters, default.cluster, "blocks that share the products of a tile")
    threads_values = (threads,) if threads else (128, 256, 512)
    n_threads = pick(f"{name}.threads", threads_values, default.threads, "threads per block")
    step = pick(f"{name}.step", steps_of(n_terms), default.tile_k, "products staged at a time")
    tile_m, tile_n, thread_m, thread_n = SHAPES[str(shape)]
    schedule = SplitSchedule(tile_m, tile_n, step, thread_m, thread_n, n_threads, cluster)
    is_valid = is_valid_split_schedule(schedule, group.tensor.dtype)
    return (schedule if is_valid else default), is_valid


def choose_register_tiles(
    choices: Choices, name: str, group: ContractionGroup, workload: Workload, threads: int | None
) -> tuple[RegisterTileSchedule, bool]:
    """Pick the sums of a thread, and how many threads share a tile's products."""
    n_results = workload.size(group.m.extent * group.n.extent * group.batch.extent)
    n_terms, dtype = workload.size(group.k.extent), group.tensor.dtype
    n_per_multiprocessor = n_results // workload.n_multiprocessors
    tiles = (("8x8", 2 * 64), ("8x4", 32)) if n_terms >= MIN_TERMS_OF_LARGE_TILES else ()
    wanted = next((tile for tile, least in tiles if n_per_multiprocessor >= least), "4x8")
    tile = choices.pick(f"{name}.sums", ("4x8", "8x4", "8x8"), wanted, "sums per thread")
    tile_m, tile_n = map(int, str(tile).split("x"))
    values = (threads,) if threads else sharing_threads(n_terms)
    in_one_round = (n for n in values if 4 * n >= n_terms)
    fitting = (n for n in in_one_round if is_valid_register_tile(RegisterTileSchedule(tile_m, tile_n, n), dtype))
    default = threads or next(fitting, 256)
    n_sharing = choices.pick_int(f"{name}.sharing", values, default, "threads that share a tile's products")
    schedule = RegisterTileSchedule(tile_m, tile_n, n_sharing)
    is_valid = is_valid_register_tile(schedule, dtype)
    return (schedule if is_valid else RegisterTileSchedule(4, 8, n_sharing)), is_valid


def choose_thread_rows(
    choices: Choices, name: str, group: ContractionGroup, workload: Workload, threads: int | None
) -> tuple[ThreadRowSchedule, bool]:
    """Pick the rows and columns of a thread."""
    assert threads is None, "no launch is shared with it"
    pick = choices.pick_int
    default = default_thread_rows(group, workload)
    schedule = ThreadRowSchedule(
        pick(f"{name}.columns_per_thread", (4, 8, 16, 24, 32), default.tile_n, "columns per thread"),
        pick(f"{name}.rows_per_thread", (1, 2, 4, 6, 8), default.rows, "rows per thread"),
        pick(f"{name}.threads", (64, 128, 256), default.threads, "threads per block"),
    )
    is_valid = is_valid_thread_rows(schedule, group)
    return (schedule if is_valid else default), is_valid


def _default_tiles(group: ContractionGroup, workload: Workload) -> TileSchedule:
    n_rows, n_columns = workload.size(group.m.extent), workload.size(group.n.extent)
    n_batch = max(1, workload.size(group.batch.extent))
    for tile_m, tile_n, thread in ((128, 128, 8), (64, 64, 4), (32, 32, 2)):
        n_blocks = -(-n_rows // tile_m) * -(-n_columns // tile_n) * n_batch
        if n_blocks >= workload.n_multiprocessors and n_rows >= tile_m and n_columns >= tile_n:
            return TileSchedule(tile_m, tile_n, 16 if tile_m == 128 else 32, thread, thread)
    if n_columns <= 16 < n_rows:
        return TileSchedule(64, 16, 16, 4, 2)
    if n_rows <= 16 < n_columns:
        return TileSchedule(16, 64, 16, 2, 4)
    return TileSchedule(32, 32, 16, 2, 2)
