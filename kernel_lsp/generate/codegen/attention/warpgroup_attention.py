"""Kernels by `wgmma` whose first warps copy and split tiles, while the others multiply; of these, attention in f32.

`wgmma` reads tiles in shared memory along the summed dim alone, so those of values are transposed as they are split.
While products of keys are computed, a tile of values is split, and the other way round.
"""

from __future__ import annotations

from abc import abstractmethod

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.attention.attention import AttentionRenderer
from kernel_lsp.generate.codegen.attention.attention_tiles import ROWS_PER_WARP, TileRenderer, TileSchedule
from kernel_lsp.generate.codegen.helpers import columns_per_product
from kernel_lsp.generate.codegen.kernel import KernelWriter, RenderedKernel, rendered
from kernel_lsp.generate.codegen.rows.row_schedule import WARP
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import AttentionGroup
from kernel_lsp.generate.ir.workload import Workload

MAX_SHARED_BYTES = 227 << 10
CHUNK = 32
"""Terms in a row of 128 swizzled bytes."""
REGISTERS = {4: (232, 40), 8: (208, 40)}
"""Registers per thread that multiplies, and that copies, by the number of warps that copy, where 8 multiply: together
at most those that a block starts with, 168 or 128 a thread. Threads would wait for more for ever."""
COPYING_WARPS = 8
"""Warps that copy and split tiles by default: with 4 the others wait for them. Causal (4, 32, 2048, 128) took 2362 us
on an H200 with 4, and 1925 with 8."""
WARPS = 8
MAX_PRODUCTS = 2
"""Maximum products that give the columns of a result, whose sums stay in registers."""


class WarpgroupRenderer(TileRenderer):
    """Renders what kernels of specialized warps share. Tiles are copied by the first `schedule.copying` warps."""

    @property
    def _n_copying(self) -> int:
        return self.schedule.copying * WARP

    def _change_registers(self, scope: Scope, *, is_copying: bool) -> None:
        """Move registers from the threads that copy to those that multiply."""
        change = "dec" if is_copying else "inc"
        scope.line(f"{change}_registers<{REGISTERS[self.schedule.copying][is_copying]}>();")

    def render(self, comment: str) -> RenderedKernel:
        """Return the kernel."""
        scope = self.scope
        self._declare()
        with scope.open("if (threadIdx.x < COPYING)") as copying:
            self._write_copying(copying)
        scope.lines.pop()
        self.scope = scope.open("} else")
        self._write_multiplying()
        self.scope.close()
        self.scope = scope
        grid, block = (self._grid(),), (self.n_threads,)
        # One resident block: otherwise ptxas does not know how many registers `setmaxnreg` may move.
        return rendered(self.kernel, comment, scope.lines, grid, block, min_blocks=1, dynamic_bytes=self._n_bytes)

    @property
    @abstractmethod
    def _n_bytes(self) -> int:
        """Return the bytes of shared memory."""

    @abstractmethod
    def _declare(self) -> None:
        """Declare constants, tiles in shared memory, and what a block owns."""

    @abstractmethod
    def _write_copying(self, scope: Scope) -> None:
        """Write what the first warps do."""

    @abstractmethod
    def _write_multiplying(self) -> None:
        """Write what the other warps do."""


_NAMES = """
COPYING MULTIPLYING KEYS_THERE KEYS_READ VALUES_THERE VALUES_READ HALF ALL tile fetch key_tile key_low value_tile
value_high value_low n_key_tiles queries
"""
LOCAL_NAMES = tuple(_NAMES.split())


def warpgroup_schedules(group: AttentionGroup) -> tuple[TileSchedule, ...]:
    """Return the schedules whose tiles consist of whole swizzled rows and whole products, and fit a block; the best
    first."""
    head, width = (int(variable.extent.constant or 0) for variable in (group.head, group.n))
    if group.value.dtype != DType.F32 or not head or head % CHUNK or not width:
        return ()
    if not 0 < width <= MAX_PRODUCTS * columns_per_product(width):
        return ()
    found = (
        TileSchedule(WARPS, columns, uses_warpgroups=True, copying=COPYING_WARPS) for columns in (2 * CHUNK, CHUNK)
    )
    return tuple(schedule for schedule in found if shared_bytes(group, schedule) <= MAX_SHARED_BYTES)


def blocks_of_queries(group: AttentionGroup, schedule: TileSchedule, workload: Workload) -> int:
    """Return the number of blocks at the captured sizes."""
    return -(-workload.size(group.m.extent) // (schedule.warps * ROWS_PER_WARP)) * workload.size(group.batch.extent)


def are_tiles_filled(group: AttentionGroup, schedule: TileSchedule, workload: Workload) -> bool:
    """Return True if at least half of the rows of the tiles have a query: windows of 49 queries fill 38 % of one."""
    n_queries, n_rows = workload.size(group.m.extent), schedule.warps * ROWS_PER_WARP
    return 2 * n_queries >= -(-n_queries // n_rows) * n_rows


def shared_bytes(group: AttentionGroup, schedule: TileSchedule) -> int:
    """Return the bytes of keys and their low parts, values as copied and split, and queries."""
    head, width = (int(variable.extent.constant or 0) for variable in (group.head, group.n))
    n_rows = schedule.warps * ROWS_PER_WARP
    return (schedule.columns * (2 * head + 3 * width) + n_rows * (head + 4)) * DType.F32.itemsize


class WarpgroupAttentionRenderer(WarpgroupRenderer, AttentionRenderer):
    """Renders an attention in f32 whose warps multiply in fours."""

    def __init__(self, kernel: KernelWriter, group: AttentionGroup, schedule: TileSchedule) -> None:
        super().__init__(kernel, group, schedule)
        self.n_threads = schedule.warps * WARP + self._n_copying

    @property
    def _n_bytes(self) -> int:
        return shared_bytes(self.group, self.schedule)

    def _declare(self) -> None:
        scope, n_multiplying = self.scope, self.schedule.warps * WARP
        scope.line(f"constexpr int HEAD = {self.head}, WIDTH = {self.width}, KEYS = {self.schedule.columns};")
        scope.line(
            f"constexpr int COPYING = {self._n_copying}, MULTIPLYING = {n_multiplying}, ALL = COPYING + MULTIPLYING;"
        )
        scope.line("// Named barriers: of both tiles, that they are there and that they have been read; of one half.")
        scope.line("constexpr int KEYS_THERE = 1, KEYS_READ = 2, VALUES_THERE = 3, VALUES_READ = 4, HALF = 5;")
        scope.line("extern __shared__ __align__(1024) unsigned char shared[];")
        scope.line("// Rows of 128 bytes whose pieces of 16 are swizzled, as wgmma reads them.")
        for name, rows, place in (
            ("key_tile", "KEYS", "shared"),
            ("key_low", "KEYS", "key_tile + HEAD / 32"),
            ("value_high", "WIDTH", "key_low + HEAD / 32"),
            ("value_low", "WIDTH", "value_high + KEYS / 32"),
        ):
            scope.line(f"auto {name} = reinterpret_cast<float (*)[{rows}][32]>({place});")
        scope.line("auto value_tile = reinterpret_cast<float (*)[WIDTH]>(value_low + KEYS / 32);")
        scope.line("auto queries = reinterpret_cast<float (*)[HEAD + 4]>(value_tile + KEYS);")
        self._declare_places("threadIdx.x / 32 - COPYING / 32")
        scope.line("const int n_key_tiles = (n_keys + KEYS - 1) / KEYS;")

    def _write_copying(self, scope: Scope) -> None:
        keys, width = self.schedule.columns, self.width
        self._change_registers(scope, is_copying=True)
        fetch = scope.open("auto fetch = [&](int tile)")
        fetch.line(f"const {self.kernel.index_type} k0 = tile * KEYS;")
        threads = ("threadIdx.x", "COPYING")
        swizzled = "&key_tile[({place}) / 32][{row}][({place}) % 32 ^ ({row}) % 8 * 4]"
        group = self.group
        self.load_tile(fetch, group.key_part, self.columns, group.head, "k0", swizzled, keys, threads)
        fetch.line("commit_copies();")
        plain = "&value_tile[{row}][{place}]"
        self.load_tile(fetch, group.value, self.columns, group.n, "k0", plain, keys, threads)
        fetch.line("commit_copies();")
        fetch.close()
        fetch.lines[-1] += ";"
        scope.line("fetch(0);")
        with scope.open("#pragma unroll 1", "for (int tile = 0; tile < n_key_tiles; ++tile)") as loop:
            loop.line("wait_for_copies<1>();")
            loop.line("meet(HALF, COPYING);")
            loop.line("split_tile<KEYS * HEAD, COPYING>(&key_low[0][0][0], &key_tile[0][0][0]);")
            loop.line("show_to_products();")
            loop.line("arrive(KEYS_THERE, ALL);")
            loop.line("wait_for_copies<0>();")
            loop.line("meet(HALF, COPYING);")
            loop.line("if (tile > 0) meet(VALUES_READ, ALL);")
            loop.line(f"transpose_tile<{keys}, {width}, COPYING>(value_high, value_low, value_tile);")
            loop.line("show_to_products();")
            loop.line("arrive(VALUES_THERE, ALL);")
            with loop.open("if (tile + 1 < n_key_tiles)") as ahead:
                ahead.line("meet(KEYS_READ, ALL);  // and this half has read the values as they were copied")
                ahead.line("fetch(tile + 1);")

    def _write_multiplying(self) -> None:
        scope, group = self.scope, self.group
        self._change_registers(scope, is_copying=False)
        threads = ("(threadIdx.x - COPYING)", "MULTIPLYING")
        to = "&queries[{row}][{place}]"
        self.load_tile(scope, group.query_part, self.rows, group.head, "m0", to, self.n_rows, threads)
        scope.line("commit_copies();")
        scope.line("wait_for_copies<0>();")
        scope.line("meet(HALF + 1, MULTIPLYING);")
        scope.line("float sums[WIDTH / 8][4] = {};")
        scope.line("float peaks[2] = {-CUDART_INF_F, -CUDART_INF_F}, totals[2] = {};")
        with scope.open("#pragma unroll 1", "for (int tile = 0; tile < n_key_tiles; ++tile)") as loop:
            loop.line(f"const {self.kernel.index_type} k0 = tile * KEYS;")
            loop.line("float scores[KEYS / 8][4];")
            loop.line("meet(KEYS_THERE, ALL);")
            multiply = self.kernel.use(f"multiply_group_rows_{self.schedule.columns}")
            loop.line(f"{multiply}<HEAD, HEAD + 4, false, true>(scores, queries[warp * 16], key_tile, key_low);")
            loop.line("if (tile + 1 < n_key_tiles) arrive(KEYS_READ, ALL);")
            self.write_scores(loop)
            loop.line(f"{self.kernel.use('weigh_scores_f32')}<KEYS, WIDTH>(scores, peaks, totals, sums);")
            loop.line("meet(VALUES_THERE, ALL);")
            multiply = self.kernel.use(f"multiply_group_values_{columns_per_product(self.width)}")
            loop.line(f"{multiply}<WIDTH, KEYS>(sums, scores, value_high, value_low);")
            loop.line("if (tile + 1 < n_key_tiles) arrive(VALUES_READ, ALL);")
        self._write()
