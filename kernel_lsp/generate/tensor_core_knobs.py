"""Knobs of contractions on tensor cores, and their defaults."""

from __future__ import annotations

from collections.abc import Callable

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.tensor_core_schedule import TensorCoreSchedule, depth_of
from kernel_lsp.generate.fusion.groups import ContractionGroup
from kernel_lsp.generate.index import Index
from kernel_lsp.generate.knobs import Choices

TILES = ((128, 128, 2, 4), (128, 64, 4, 2), (64, 64, 2, 2), (32, 64, 2, 2), (32, 32, 2, 2), (16, 32, 1, 2))
"""Block tiles with the warps that share them, largest first."""
MAX_CLUSTER = 8
"""Blocks per cluster that run on every GPU with clusters."""
MIN_STEPS_PER_BLOCK = 2
"""Steps along k that a block of a cluster has at least."""


def pick_schedule(
    choices: Choices, name: str, group: ContractionGroup, default: TensorCoreSchedule
) -> TensorCoreSchedule:
    """Read the schedule's knobs."""

    def pick(what: str, values: tuple[int, ...], value: int, description: str) -> int:
        return choices.pick_int(f"{name}.{what}", values, value, description)

    operand = group.operand
    assert operand is not None
    depth = depth_of(operand)
    tile_k = pick("tile_k", (depth, 2 * depth, 4 * depth), default.tile_k, "products per step through shared memory")
    chain = default.chain
    if operand == DType.F32:
        chain = pick("chain", (0, 1), int(default.chain > depth), "tensor cores add up a whole step before rounding")
    return TensorCoreSchedule(
        pick("tile_m", (16, 32, 64, 128, 256), default.tile_m, "rows of a block's tile"),
        pick("tile_n", (16, 32, 64, 128, 256), default.tile_n, "columns of a block's tile"),
        tile_k,
        pick("warps_m", (1, 2, 4), default.warps_m, "warps along the rows of a block's tile"),
        pick("warps_n", (1, 2, 4), default.warps_n, "warps along the columns of a block's tile"),
        pick("stages", (2, 3, 4, 5), default.stages, "tiles in shared memory, all but one on their way"),
        pick("cluster", (1, 2, 4, MAX_CLUSTER), default.cluster, "blocks that share the products of a tile"),
        tile_k if chain else depth,
    )


def default_schedule(
    group: ContractionGroup, captured: Callable[[Index], int], n_multiprocessors: int
) -> TensorCoreSchedule:
    """Choose the largest tile that gives every multiprocessor a block; small results share tiles in clusters."""
    operand = group.operand
    assert operand is not None
    depth = depth_of(operand)
    n_rows, n_columns, n_terms = captured(group.m.extent), captured(group.n.extent), captured(group.k.extent)
    n_batch = max(1, captured(group.batch.extent))

    def n_blocks(tile_m: int, tile_n: int) -> int:
        return -(-n_rows // tile_m) * -(-n_columns // tile_n) * n_batch

    fitting = [tile for tile in TILES if n_blocks(tile[0], tile[1]) >= n_multiprocessors]
    tile_m, tile_n, warps_m, warps_n = fitting[0] if fitting else TILES[-2]
    tile_k = 4 * depth if tile_m * tile_n < 128 * 128 else 2 * depth
    cluster = 1
    n_steps = -(-n_terms // tile_k)
    while (
        cluster < MAX_CLUSTER
        and n_blocks(tile_m, tile_n) * cluster * 2 <= 2 * n_multiprocessors
        and n_steps >= 2 * cluster * MIN_STEPS_PER_BLOCK
    ):
        cluster *= 2
    return TensorCoreSchedule(tile_m, tile_n, tile_k, warps_m, warps_n, 3, cluster, depth)


def tensor_core_comment(group: ContractionGroup, schedule: TensorCoreSchedule, written: str) -> str:
    """Describe the kernel in its head."""
    size = f"{schedule.tile_m} x {schedule.tile_n}"
    who = f"Each cluster of {schedule.cluster} blocks" if schedule.cluster > 1 else "Each block"
    how = {
        DType.F32: "as sums of three TF32 products each (a = a_high + a_low, without a_low * b_low)",
    }.get(group.operand or DType.F32, "with sums in f32")
    return (
        f"{who} computes a {size} tile of {group.tensor.name} on tensor cores, {how}, {schedule.tile_k} products at a"
        f" time. {schedule.stages - 1} tiles are on their way to shared memory meanwhile. Then it writes {written}."
    )
