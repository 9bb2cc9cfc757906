"""Knobs of contractions on tensor cores, and their defaults.

Knobs of convolutions over windows, and when windows are the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.kernel import KernelWriter, RenderedKernel
from kernel_lsp.generate.codegen.tensor_cores.source_windows import PIECE, Windows, windows_of
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_operands import plan_operand
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_schedule import (
    AHEAD,
    MAX_SHARED_BYTES,
    ROW_BYTES,
    WARP,
    TensorCoreSchedule,
    depth_of,
    resident_strips,
    result_layout,
)
from kernel_lsp.generate.codegen.tensor_cores.window_products import LOCAL_NAMES, STAGES, WindowRenderer
from kernel_lsp.generate.fusion.groups import ContractionGroup
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.scalar import Access, Scalar
from kernel_lsp.generate.ir.tensor import Reduction
from kernel_lsp.generate.ir.workload import HOPPER, Workload
from kernel_lsp.generate.schedule.knobs import Choices

CLUSTERS = (1, 2, 4, 8)
"""Blocks per cluster; up to 8 run on every GPU with clusters."""
MIN_STEPS_PER_BLOCK = 2
"""Minimum steps along k per block of a cluster."""
MIN_CLUSTER_GAIN = 1.25
"""Minimum estimated speedup for clusters to be chosen. The estimate hardly models their cost."""
FULL_WARPS = 8
"""Minimum warps to saturate the tensor cores of a multiprocessor."""
SINGLE_COPY_COST = 85.0
"""Cost of copying a single element, as for a convolution's factor, in products of the first tile; fitted to
convolutions of 64 and of 128 channels on an H200."""
START_PRODUCTS = {DType.F32: 500_000, DType.F16: 3_000_000, DType.BF16: 3_000_000, DType.I8: 6_000_000}
"""Cost of a block's start, pipeline fill and epilogue, in products of a multiprocessor: about 1.5 us."""
START_OF_ONE_RESIDENT = 3.0
"""Starts of a block by `wgmma`, in those of others: no second block of its multiprocessor works meanwhile.
(32768, 32) x 32768 took 2947 us on an H100 so, and 2338 by `mma.sync` with tiles of 128 x 64 in two stages."""
COST_PER_PART_OF_RESULT = {DType.F32: 0.6, DType.F16: 3.6, DType.BF16: 3.6, DType.I8: 7.2}
"""Cost of writing and reading one sum of a part, which the whole GPU does at about 4 TB/s, in the same products."""
PARTS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of parts of a sum of products that blocks compute for themselves."""
MIN_TERMS_OF_PART = 512


@dataclass(frozen=True)
class _Tile:
    """A block tile with its warps, the blocks of it that a multiprocessor holds, and its rate on an H200, where that of
    the first tile is 1."""

    m: int
    n: int
    warps_m: int
    warps_n: int
    n_resident: int
    efficiency: float
    uses_warpgroups: bool = False

    @property
    def n_warps(self) -> int:
        return self.warps_m * self.warps_n


TILES = (
    _Tile(128, 64, 2, 2, 2, 1.0),
    _Tile(64, 128, 2, 2, 2, 0.98),
    _Tile(128, 128, 2, 4, 1, 0.97),
    _Tile(64, 64, 2, 2, 3, 0.8),
    _Tile(128, 32, 4, 1, 3, 0.8),
    _Tile(128, 16, 4, 1, 3, 0.6),
    _Tile(32, 64, 2, 2, 4, 0.6),
    _Tile(32, 32, 2, 2, 6, 0.4),
    _Tile(16, 32, 1, 2, 8, 0.3),
)
GROUP_TILES = (
    _Tile(128, 128, 8, 1, 1, 1.7, uses_warpgroups=True),
    _Tile(128, 96, 8, 1, 1, 1.4, uses_warpgroups=True),
)
"""Tiles of f32 for `wgmma`, on Hopper alone. A convolution to 96 channels took 2040 us on an H200 in the first, and
1845 us in the second."""
BYTE_TILES = (_Tile(128, 128, 2, 2, 2, 1.4), *(tile for tile in TILES if tile.n_warps < 8))
"""Tiles of bytes: (2048, 4096) x 4096 took 109.8 us on an H200 in the first, 153.3 by 128 x 64, 120.9 by 8 warps."""
LINE_TILES = (TILES[0], TILES[3], *TILES[6:])
"""Tiles of rows whose phases one block computes, in the order in which they are tried."""
MIN_PHASES_OF_LINES = 5
"""Minimum phases along a line for whole lines by default: KernelBench's level 1 file 81, with 5, took 542 us on an H200
so, 1294 by single phases and 1218 in the library. Fewer phases were not timed."""
SHORT_TILE = _Tile(64, 64, 2, 2, 3, 0.8)
MAX_SHORT_TERMS = 64
"""Maximum terms of sums whose every fragment is added up in f32: tensor cores would cut off more digits than the
library's sums lose. (32768, 32) x 32768 has an error of 6.0e-8 so, the library's is 8.4e-8 and that of whole steps
2.3e-7; it took 2400 us in the short tile, 2610 us in 128 x 64 and 2540 us in the library."""

STRIPS = (8, 16, 32)
"""Tiles along the columns that a block may compute with the same rows."""
MIN_RESULTS_OF_STRIPS = 1 << 23
"""Minimum results for strips by default: (2048, 32) x 2048 took 17.0 us on an H200 so, 15.9 a tile at a time."""
STRIP_COLUMNS = 64
STRIP_TILES = {64: (2, 1.0), 128: (4, 1.15)}
"""By rows of a block of a strip: its warps along them, and its cost per result with 32 terms, where registers of two
blocks do not suffice. (32768, 32) x 32768 took 1415 us on an H200 by 64 rows, 1652 by 128, 2027 a tile at a time and
1935 in max-autotune; of 64 terms 2518, 2452, 3476 and 3379."""


def pick_schedule(
    choices: Choices, name: str, group: ContractionGroup, default: TensorCoreSchedule, workload: Workload
) -> TensorCoreSchedule:
    """Read the schedule's knobs. `wgmma` is for Hopper alone, clusters for Hopper and later."""

    def pick(what: str, values: tuple[int, ...], value: int, description: str) -> int:
        return choices.pick_int(f"{name}.{what}", values, value, description)

    n_phases = 1 if group.phases is None else group.phases.n_in_line
    if n_phases > 1:
        by_default = int(n_phases >= MIN_PHASES_OF_LINES)
        if pick("lines", (0, 1), by_default, "a block computes all phases of its rows, and writes whole lines"):
            default = _schedule_of_lines(group, n_phases, workload)
        else:
            n_phases = 1
    depth = depth_of(_operand(group))
    tile_k = pick("tile_k", _steps(depth), default.tile_k, "products per step")
    chain = default.chain > depth
    if group.operand == DType.F32:
        chain = bool(pick("chain", (0, 1), int(chain), "tensor cores add up a whole step before an f32 addition"))
    warpgroups = is_transposed = False
    if group.operand == DType.F32 and workload.capability == HOPPER:
        default_groups = int(default.uses_warpgroups)
        warpgroups = bool(pick("warpgroups", (0, 1), default_groups, "four warps multiply together, by wgmma"))
        if group.phases is None:
            default_transposed = int(default.is_transposed)
            is_transposed = bool(pick("transposed", (0, 1), default_transposed, "tiles have columns as their rows"))
    strip = 0
    if may_have_strips(group, workload):
        strip = pick("strip", (0, *STRIPS), default.strip, "tiles along the columns that a block has for its rows")
    return TensorCoreSchedule(
        pick("tile_m", (16, 32, 64, 128, 256), default.tile_m, "rows of a block's tile"),
        pick("tile_n", (16, 32, 64, 96, 128, 256), default.tile_n, "columns of a block's tile"),
        tile_k,
        pick("warps_m", (1, 2, 4, 8), default.warps_m, "warps along the rows of a block's tile"),
        pick("warps_n", (1, 2, 4), default.warps_n, "warps along the columns of a block's tile"),
        pick("stages", (2, 3, 4, 5), default.stages, "tiles in shared memory, all but one on their way"),
        pick("cluster", _clusters(workload), default.cluster, "blocks that share the products of a tile"),
        tile_k if chain else depth,
        warpgroups,
        is_transposed=is_transposed,
        n_phases=n_phases,
        strip=strip,
    )


def _steps(depth: int) -> tuple[int, ...]:
    """Return the products per step that are offered, in multiples of those of one `mma`."""
    return depth, 2 * depth, 4 * depth, 8 * depth


def may_have_strips(group: ContractionGroup, workload: Workload) -> bool:
    """Return True for sums of few products of f32, whose left factor a block may keep for several tiles."""
    n_terms = workload.size(group.k.extent)
    return group.operand == DType.F32 and group.phases is None and n_terms <= MAX_SHORT_TERMS


def with_strips(group: ContractionGroup, schedule: TensorCoreSchedule, workload: Workload) -> TensorCoreSchedule:
    """Return the schedule of strips whose waves compute the fewest tiles; the same one where results are few."""
    rows, columns, batch = (max(1, workload.size(v.extent)) for v in (group.m, group.n, group.batch))
    if not may_have_strips(group, workload) or rows * columns * batch < MIN_RESULTS_OF_STRIPS:
        return schedule
    n_terms, depth = workload.size(group.k.extent), depth_of(DType.F32)
    tile_k = next(size for size in _steps(depth) if size >= n_terms)

    def made(tile_m: int, strip: int) -> TensorCoreSchedule:
        n_stages = 2 if tile_k == MAX_SHORT_TERMS else 3
        sizes = (tile_m, STRIP_COLUMNS, tile_k, STRIP_TILES[tile_m][0], 2, n_stages)
        return TensorCoreSchedule(*sizes, chain=depth, strip=strip)

    def cost(strips: TensorCoreSchedule) -> float:
        n_resident = resident_strips(strips)
        n_blocks = -(-rows // strips.tile_m) * -(-columns // (STRIP_COLUMNS * strips.strip)) * batch
        n_waves = -(-n_blocks // (n_resident * workload.n_multiprocessors))
        weight = STRIP_TILES[strips.tile_m][1] if tile_k == 4 * depth else 1.0
        return n_waves * n_resident * strips.tile_m * (strips.strip + 1) * weight

    return min((made(tile_m, strip) for tile_m in STRIP_TILES for strip in STRIPS), key=cost)


def _schedule_of_lines(group: ContractionGroup, n_phases: int, workload: Workload) -> TensorCoreSchedule:
    """Return the largest tile of which two blocks, with the results of all phases, share a multiprocessor."""
    depth = depth_of(_operand(group))
    n_terms = max(1, workload.size(group.k.extent))
    chain = depth if n_terms <= MAX_SHORT_TERMS else 4 * depth
    n_stages = min(3, -(-n_terms // (4 * depth)) + 1)
    found = None
    for tile in LINE_TILES:
        found = TensorCoreSchedule(
            tile.m, tile.n, 4 * depth, tile.warps_m, tile.warps_n, n_stages, chain=chain, n_phases=n_phases
        )
        tiles = 4 * depth * (tile.m + tile.n + 2 * 8) * _operand(group).itemsize * n_stages
        if tiles + result_layout(found, is_m_inner=True).n_bytes <= MAX_SHARED_BYTES // 2:
            break
    assert found is not None
    return found


def default_schedule(group: ContractionGroup, workload: Workload) -> TensorCoreSchedule:
    """Choose the tile and cluster of the least estimated time at the captured sizes."""
    operand = _operand(group)
    if plan_operand("", group.right, operand, group.n, group.k, workload, may_convert=True).is_converted:
        return _schedule_of_bytes(group, workload)
    m, n, k, batch = (max(1, workload.size(variable.extent)) for variable in (group.m, group.n, group.k, group.batch))
    left, right, _ = group.unscaled
    costs = (
        _copy_cost(left, operand, group.m, group.k, workload),
        _copy_cost(right, operand, group.n, group.k, workload),
    )
    sizes = _Sizes(m, n, k, batch, workload, operand, costs)
    tiles = _tiles(operand, workload)
    tile, cluster = min(sizes.candidates(tiles), key=lambda candidate: sizes.cost(*candidate))
    alone = min(tiles, key=lambda tile: sizes.cost(tile, 1))
    if workload.capability < HOPPER or sizes.cost(alone, 1) < MIN_CLUSTER_GAIN * sizes.cost(tile, cluster):
        tile, cluster = alone, 1
    depth = depth_of(operand)
    is_latency_bound = cluster > 1 and tile.m * tile.n <= 32 * 64
    is_short = operand == DType.F32 and k <= MAX_SHORT_TERMS
    if is_short and tile.m * tile.n > SHORT_TILE.m * SHORT_TILE.n:
        tile, cluster = SHORT_TILE, 1
    tile_k = 4 * depth
    if operand != DType.F32:
        tile_k = next(size for size in _steps(depth) if size >= min(k, tile_k))
    chain = depth if is_latency_bound or is_short else tile_k
    n_steps = -(-k // tile_k)
    n_stages = 4 if is_latency_bound or tile.uses_warpgroups else min(3, n_steps + 1)
    schedule = TensorCoreSchedule(
        tile.m, tile.n, tile_k, tile.warps_m, tile.warps_n, n_stages, cluster, chain, tile.uses_warpgroups
    )
    return replace(schedule, is_transposed=_is_better_transposed(group, schedule, workload))


BYTE_COLUMNS, BYTE_STAGES = 64, 3
"""Columns of a block's tile of bytes, and its tiles in shared memory."""
ROWS_OF_BYTES = 48
"""Rows of the blocks of a multiprocessor, at least, that bytes are read by where clusters give as many: a cluster's
exchange takes longer with more rows. (M, 4096) x 4096 took 11.9, 16.5 and 23.2 us on an H200 for 8, 32 and 64 rows by
clusters of 8, 4 and 2; 13.7, 17.0 and 27.4 by 4, 8 and 4."""


def _schedule_of_bytes(group: ContractionGroup, workload: Workload) -> TensorCoreSchedule:
    """Return the schedule of a factor whose bytes are converted: the warps of a block have all of its rows, so that
    each converts a column once."""
    rows, columns, terms, batch = (max(1, workload.size(v.extent)) for v in (group.m, group.n, group.k, group.batch))
    depth = depth_of(_operand(group))
    tile_m = next((size for size in (16, 32, 64) if size >= rows), 128)
    tile_k = next(size for size in reversed(_steps(depth)) if terms % size == 0 or size == depth)
    n_tiles = -(-rows // tile_m) * -(-columns // BYTE_COLUMNS) * batch
    cluster = 1
    while (
        workload.capability >= HOPPER
        and cluster < CLUSTERS[-1]
        and n_tiles * cluster * tile_m < ROWS_OF_BYTES * workload.n_multiprocessors
        and terms >= 2 * cluster * BYTE_STAGES * tile_k
    ):
        cluster *= 2
    return TensorCoreSchedule(tile_m, BYTE_COLUMNS, tile_k, 1, 4, BYTE_STAGES, cluster, tile_k)


def _is_better_transposed(group: ContractionGroup, schedule: TensorCoreSchedule, workload: Workload) -> bool:
    """Return True if the left factor alone runs along k, as `wgmma` reads right tiles: others are transposed in shared
    memory. Where neither or both do, blocks that run together share the factor of fewer tiles, or each wave reads the
    larger one anew: gradients (32000, 2048) of 4096 rows took 5294 us on an H200 so, not 5798; (4096, 2048) of 32000
    terms 5180, not 5528; and (4096, 32000) of rows along k 5869 us by blocks along the 32000."""
    if not schedule.uses_warpgroups or schedule.tile_m != schedule.tile_n or group.phases is not None:
        return False
    scalars = zip(group.unscaled[:2], (group.m, group.n), strict=True)
    left, right = (plan_operand("", each, DType.F32, along, group.k, workload) for each, along in scalars)
    if min(left.width, right.width) * DType.F32.itemsize < ROW_BYTES:
        return False
    if left.is_k_inner == right.is_k_inner:
        return workload.size(group.m.extent) > workload.size(group.n.extent)
    return left.is_k_inner


def default_parts(
    factors: tuple[Scalar, Scalar],
    sizes: tuple[int, int, int, int],
    operand: DType,
    workload: Workload,
    values: Iterable[int],
) -> int:
    """Choose into how many parts to split sums of products: 1 where clusters nearly do as well. `sizes` are those of
    rows, columns, terms and batches."""
    rows, columns, terms, batch = (max(1, size) for size in sizes)
    costs = (_single_cost(factors[0]), _single_cost(factors[1]))

    def cost(parts: int) -> float:
        part = _Sizes(rows, columns, terms // parts, batch * parts, workload, operand, costs)
        tiles = _tiles(operand, workload)
        if parts == 1 and workload.capability >= HOPPER:
            return min(part.cost(*candidate) for candidate in part.candidates(tiles))
        adding = START_PRODUCTS[operand] + parts * rows * columns * batch * COST_PER_PART_OF_RESULT[operand]
        return min(part.cost(tile, 1) for tile in tiles) + (adding if parts > 1 else 0.0)

    found = min(values, key=cost)
    return found if cost(1) >= MIN_CLUSTER_GAIN * cost(found) else 1


MAX_COPIED_ELEMENTS = 1 << 29
"""Maximum elements of a copy of a convolution's input for each tap along a row: 2 GiB."""


def may_go_by_copy(definition: Reduction, workload: Workload) -> bool:
    """Return True for a contraction of f32 whose right factor a copy would lay out in whole pieces of 16 bytes."""
    contraction = definition.contraction
    if contraction is None or contraction.copied is None:
        return False
    copy = contraction.copied.stored
    is_whole = workload.size(copy.shape[-1]) % PIECE == 0
    return is_whole and copy.dtype == DType.F32 and workload.size(copy.n_elements) <= MAX_COPIED_ELEMENTS


def tensor_core_comment(group: ContractionGroup, schedule: TensorCoreSchedule, written: str) -> str:
    """Describe the kernel in its leading comment."""
    size = f"{schedule.tile_m} x {schedule.tile_n}"
    who = f"Each cluster of {schedule.cluster} blocks" if schedule.cluster > 1 else "Each block"
    how = ", with sums in int32" if group.operand == DType.I8 else ", with sums in f32"
    if group.operand == DType.F32:
        how = ": three TF32 products stand for one of f32 (a = a_high + a_low, without a_low * b_low)"
    if schedule.strip:
        return (
            f"Each block keeps {schedule.tile_m} rows of the left factor of {group.tensor.name} and computes"
            f" {schedule.strip} tiles of {schedule.tile_n} columns on tensor cores{how}. It writes {written}."
        )
    ahead = AHEAD if schedule.uses_warpgroups else schedule.stages - 1
    fetched = "the next tile is fetched" if ahead == 1 else f"the next {ahead} tiles are fetched"
    return (
        f"{who} computes a {size} tile of {group.tensor.name} on tensor cores{how}. It takes {schedule.tile_k} products"
        f" per step, while {fetched}, and writes {written}."
    )


def _clusters(workload: Workload) -> tuple[int, ...]:
    return CLUSTERS if workload.capability >= HOPPER else (1,)


def _tiles(operand: DType, workload: Workload) -> tuple[_Tile, ...]:
    if operand == DType.I8:
        return BYTE_TILES
    return (*TILES, *GROUP_TILES) if operand == DType.F32 and workload.capability == HOPPER else TILES


def _copy_cost(factor: Scalar, operand: DType, along: Variable, k: Variable, workload: Workload) -> float:
    """Return the cost of copying an element, in products of the first tile: packs are computed at once."""
    planned = plan_operand("", factor, operand, along, k, workload)
    return _single_cost(factor) / (planned.width if planned.packed is not None else 1)


def _single_cost(factor: Scalar) -> float:
    """Return the cost of copying one element at a time: nothing where a factor is an unmasked read of memory, which
    allows wide copies."""
    return 0.0 if isinstance(factor, Access) and factor.mask is None else SINGLE_COPY_COST


def _operand(group: ContractionGroup) -> DType:
    assert group.operand is not None
    return group.operand


MIN_SPARSE_CLUSTER = 4
"""Minimum blocks of a cluster that does not fill a GPC: pairs do."""
FEW_WAVES = 2
"""Maximum waves of blocks of which the last one's share decides the time."""
SHARE_FOR_CLUSTERS = 15 / 16
"""Share of the multiprocessors that clusters of 4 and more can fill: a GPC has 14 to 18 of them. Gradients with two
products of 2048 x 256 results and 2048 terms took 133.5 us on an H200 by 128 blocks in clusters of 4, and 99.8 by as
many in parts; a convolution's 1061 by 128 blocks in clusters of 8, 640 in parts; a small MLP's 80.4 and 56.6. Where
several waves follow each other, 479 us by 1152 blocks in clusters of 4 became 577 without."""


@dataclass(frozen=True)
class _Sizes:
    n_rows: int
    n_columns: int
    n_terms: int
    n_batch: int
    workload: Workload
    operand: DType
    copy_costs: tuple[float, float]

    def candidates(self, tiles: Iterable[_Tile]) -> Iterator[tuple[_Tile, int]]:
        """Yield tiles with the clusters that leave each block enough steps."""
        for tile in tiles:
            for cluster in CLUSTERS:
                if cluster == 1 or self.n_terms >= cluster * MIN_STEPS_PER_BLOCK * 4 * depth_of(self.operand):
                    yield tile, cluster

    def cost(self, tile: _Tile, cluster: int) -> float:
        """Estimate the time, in products of one multiprocessor at its peak."""
        n_tiles = -(-self.n_rows // tile.m) * -(-self.n_columns // tile.n) * self.n_batch
        n_blocks = n_tiles * cluster
        n_resident = min(tile.n_resident, -(-n_blocks // self.workload.n_multiprocessors))
        n_waves = -(-n_blocks // (self.workload.n_multiprocessors * tile.n_resident))
        n_clusters = int(self.workload.n_multiprocessors * SHARE_FOR_CLUSTERS) // cluster
        if n_waves <= FEW_WAVES and cluster >= MIN_SPARSE_CLUSTER:
            n_waves = -(-n_tiles // (n_clusters * tile.n_resident))
        copies = sum(cost / along for cost, along in zip(self.copy_costs, (tile.n, tile.m), strict=True))
        rate = min(1.0, n_resident * tile.n_warps / FULL_WARPS) / (1.0 / tile.efficiency + copies)
        start = START_PRODUCTS[self.operand] * (1.0 if cluster == 1 else 1.3)
        start *= START_OF_ONE_RESIDENT if tile.uses_warpgroups else 1.0
        return n_waves * (n_resident * tile.m * tile.n * self.n_terms / cluster / rate + start)


WINDOW_TILES = {
    "128x64": (128, 64, 4),
    "128x32": (128, 32, 4),
    "128x128": (128, 128, 8),
    "256x64": (256, 64, 8),
    "128x96": (128, 96, 8),
    "256x32": (256, 32, 8),
}
"""Rows and columns of a block's tile, and the warps that multiply: as many copy. Two blocks of 4 warps share a
multiprocessor, so that one multiplies while the other one writes. The first tile whose columns divide the results' is
the default."""


def render_windows(
    choices: Choices,
    new_kernel: Callable[[str, Sequence[str]], KernelWriter],
    kernel: KernelWriter,
    group: ContractionGroup,
    workload: Workload,
    written: str,
) -> tuple[RenderedKernel, ...]:
    """Return the kernels that stage weights and convolve over windows; none where another template is to be taken.
    `kernel` has no text yet."""
    picked = _pick_windows(choices, kernel.name, group, workload)
    if picked is None:
        return ()
    kernel = replace(kernel, local_names=kernel.local_names | {*LOCAL_NAMES})
    renderer = WindowRenderer(kernel, group, picked[1], workload, picked[0])
    if not renderer.is_valid:
        return ()
    staging = renderer.staging(new_kernel(f"{kernel.name}_weights", LOCAL_NAMES))
    return staging, renderer.render(_comment(group, *picked, written))


def _pick_windows(
    choices: Choices, name: str, group: ContractionGroup, workload: Workload
) -> tuple[Windows, TensorCoreSchedule] | None:
    """Read the knobs of a convolution over windows; None where the group is none, or another template is chosen."""
    windows, n_columns = windows_of(group), group.n.extent.constant
    if windows is None or n_columns is None or workload.size(windows.row.size) % PIECE:
        return None
    fitting = {name: tile for name, tile in WINDOW_TILES.items() if n_columns % tile[1] == 0}
    if not fitting:
        return None
    default, (tile_m, tile_n, _) = next(iter(fitting.items()))
    n_tiles = -(-workload.size(windows.n_places) // tile_m) * (n_columns // tile_n)
    is_default = int(n_tiles >= workload.n_multiprocessors)
    tile = choices.pick(f"{name}.window_tile", tuple(fitting), default, "rows and columns of a block's tile")
    if not choices.pick_int(f"{name}.windows", (0, 1), is_default, "a window of the source for all taps along a row"):
        return None
    tile_m, tile_n, n_warps = fitting[str(tile)]
    n_products = windows.channels * windows.taps
    sizes = (tile_m, tile_n, n_products, n_warps, 1, STAGES, 1, n_products)
    return windows, TensorCoreSchedule(*sizes, uses_warpgroups=True, n_copying=n_warps * WARP)


def _comment(group: ContractionGroup, windows: Windows, schedule: TensorCoreSchedule, written: str) -> str:
    """Describe the kernel in its leading comment."""
    return (
        f"Each block computes a {schedule.tile_m} x {schedule.tile_n} tile of {group.tensor.name} on tensor cores:"
        f" three TF32 products stand for one of f32 (a = a_high + a_low, without a_low * b_low). It copies a window of"
        f" {windows.channels} channels for all {windows.row.n_taps} taps along a row, takes {schedule.tile_k} products"
        f" per step, and writes {written}."
    )
