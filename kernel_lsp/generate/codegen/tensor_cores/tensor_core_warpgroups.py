"""Contractions of f32 by `wgmma`, the instructions of Hopper's tensor cores: 3xTF32 with sums of four warps at once.

Half of a block copies tiles and splits the right ones into TF32 numbers, the other half multiplies: neither waits for
the other but at named barriers. Tensor cores ignore the low bits of an f32, so a tile as it was copied is its own high
part.
"""

from __future__ import annotations

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.kernel import KernelWriter
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.codegen.tensor_cores.strips import StripRenderer
from kernel_lsp.generate.codegen.tensor_cores.tensor_core import (
    FRAGMENT_LOADS,
    WORD_LOADS,
    TensorCoreRenderer,
)
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_operands import LoadText, Operand, open_rounds
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_schedule import (
    AHEAD,
    MAX_SHARED_BYTES,
    N_COPYING_THREADS,
    ROW_BYTES,
    SWIZZLED_BYTES,
    WARP,
    WARPGROUP_COLUMNS,
    TensorCoreSchedule,
    TileLayout,
)
from kernel_lsp.generate.fusion.groups import ContractionGroup
from kernel_lsp.generate.ir.workload import Workload

MIN_STAGES = 4
TAKEN_REGISTERS, LEFT_REGISTERS = 168, 88
"""Registers per thread that multiplies, and that copies, where both are 256 threads and have 128 each at first."""


def tensor_core_renderer(
    kernel: KernelWriter,
    group: ContractionGroup,
    schedule: TensorCoreSchedule,
    workload: Workload,
) -> TensorCoreRenderer:
    """Return the renderer of the instructions that the schedule uses."""
    plain = StripRenderer if schedule.strip else TensorCoreRenderer
    template = WarpgroupRenderer if schedule.uses_warpgroups else plain
    return template(kernel, group.transposed if schedule.is_transposed else group, schedule, workload)


class WarpgroupRenderer(TensorCoreRenderer):
    """Renders a contraction whose schedule has warps of 16 rows and all columns of the block's tile."""

    alignment = 1024
    """Bytes after which the pattern of swizzled rows repeats."""

    @property
    def is_valid(self) -> bool:
        """Check that the schedule fits `wgmma` and the hardware."""
        schedule = self.schedule
        is_grouped = schedule.warps_m in (4, 8) and schedule.warps_n == 1 and schedule.warp_m == 16
        is_known = schedule.tile_n in WARPGROUP_COLUMNS and self.operand == DType.F32
        is_swizzled = schedule.tile_k * self.operand.itemsize == SWIZZLED_BYTES
        return (
            schedule.n_phases == 1
            and not schedule.strip
            and is_grouped
            and is_known
            and is_swizzled
            and schedule.stages >= MIN_STAGES
            and self.shared_bytes <= MAX_SHARED_BYTES
        )

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of the tiles as copied and of the split ones; results replace them."""
        split = self._split_bytes * (1 if self.right.is_k_inner else 2) * self._n_split
        tiles = sum(self._layout(operand).n_bytes for operand in (self.left, self.right))
        return max(self.schedule.stages * tiles + split, self._result_layout.n_bytes)

    @property
    def _split_bytes(self) -> int:
        return self.schedule.tile_n * SWIZZLED_BYTES

    @property
    def _n_split(self) -> int:
        """Return the number of split tiles in shared memory."""
        return self.schedule.stages - AHEAD

    @property
    def _splits_own_copies(self) -> bool:
        """Return True if each thread splits what it has copied itself."""
        return self.right.is_k_inner and self.right.read is not None and self.right.width == 4

    @property
    def _n_multiplying(self) -> int:
        return self.schedule.n_threads - self.schedule.n_copying

    @property
    def _warp(self) -> str:
        return f"threadIdx.x / {WARP} - COPYING / {WARP}"

    def _layout(self, operand: Operand) -> TileLayout:
        if operand is self.right and operand.is_k_inner:
            return TileLayout(self.schedule.tile_n, self.schedule.tile_k, 0, self.operand.itemsize)
        return super()._layout(operand)

    def _load_texts(self) -> tuple[LoadText, LoadText]:
        """Return the loads by the threads that copy. Copies past the last step write zeros."""
        schedule = self.schedule
        depth = self._depth_limit
        rows, columns = schedule.tile_m, schedule.tile_n
        is_swizzled = self.right.is_k_inner
        return (
            LoadText("m", rows, schedule.tile_k, N_COPYING_THREADS, self._row_limit, depth),
            LoadText("n", columns, schedule.tile_k, N_COPYING_THREADS, self._column_limit, depth, is_swizzled),
        )

    def _declare_tiles(self) -> None:
        scope = self.scope
        scope.line(f"constexpr int COPYING = {N_COPYING_THREADS}, MULTIPLYING = {self._n_multiplying};  // threads")
        scope.line(f"constexpr int SPLIT_STAGES = {self._n_split};  // split tiles in shared memory")
        super()._declare_tiles()
        scope.line("// Rows of 128 bytes whose pieces of 16 are swizzled, as wgmma reads them.")
        after = "right_tiles + STAGES"
        if not self.right.is_k_inner:
            scope.line(f"auto right_high = reinterpret_cast<float (*)[TN][TK]>({after});")
            after = "right_high + SPLIT_STAGES"
        scope.line(f"auto right_low = reinterpret_cast<float (*)[TN][TK]>({after});")
        scope.line("// Named barriers: of each split tile, that it is there and that it has been read; of one half.")
        scope.line("constexpr int IS_THERE = 1, WAS_READ = IS_THERE + SPLIT_STAGES, HALF = WAS_READ + SPLIT_STAGES;")

    def _write_steps(self) -> None:
        """Write the pipeline. The sums stay with the half that multiplies, which leaves them in shared memory."""
        scope = self.scope
        self._declare_steps()
        self._declare_results()
        copying = self.scope = scope.open("if (threadIdx.x < COPYING)")
        self._write_copying(copying)
        copying.close()
        scope.lines.pop()
        multiplying = self.scope = scope.open("} else")
        self._write_multiplying(multiplying)
        multiplying.close()
        self.scope = scope

    def _write_copying(self, scope: Scope) -> None:
        self._take_registers(scope, "dec", LEFT_REGISTERS)
        self._prepare_loads()
        self._write_fetching()
        scope.line(f"for (int step = 0; step < {AHEAD}; ++step) fetch(step);")
        with scope.open("#pragma unroll 1", "for (int step = 0; step < n_steps; ++step)") as loop:
            loop.line("const int stage = step % STAGES, split_stage = step % SPLIT_STAGES;")
            loop.line("if (step >= SPLIT_STAGES) meet(WAS_READ + split_stage, COPYING + MULTIPLYING);")
            loop.line(f"fetch(step + {AHEAD});")
            loop.line(f"wait_for_copies<{AHEAD}>();")
            if not self._splits_own_copies:
                loop.line("meet(HALF, COPYING);")
            self._write_splitting(loop)
            loop.line("show_to_products();")
            loop.line("arrive(IS_THERE + split_stage, COPYING + MULTIPLYING);")

    def _write_fetching(self) -> None:
        """Write the function that starts the copies of a step. There are none past the last step."""
        body = self.scope.open("auto fetch = [&](int step)")
        with body.open("if (step < n_steps)") as copies:
            self._declare_first_term(copies)
            copies.line("const int stage = step % STAGES;")
            self._write_loads(copies)
        body.line("commit_copies();")
        body.close()
        body.lines[-1] += ";"

    def _declare_first_term(self, scope: Scope) -> None:
        """Declare the first term of a step."""
        first = "(first_step + step)" if self.schedule.cluster > 1 else "step"
        scope.line(f"const {self.kernel.index_type} k0 = {first} * TK;")

    def _write_splitting(self, scope: Scope) -> None:
        with open_rounds(scope, self.schedule.tile_n * self.schedule.tile_k // 4, N_COPYING_THREADS) as rows:
            if self.right.is_k_inner:
                rows.line("const int n = e / (TK / 4), place = e % (TK / 4) * 4 ^ n % 8 * 4;")
                rows.line("const Pack<float, 4> high = *packs<4>(&right_tiles[stage][n][place]);")
            else:
                rows.line("const int n = e % TN, k = e / TN * 4, place = k ^ n % 8 * 4;")
                rows.line("Pack<float, 4> high;")
                rows.line("#pragma unroll")
                rows.line("for (int c = 0; c < 4; ++c) high.item[c] = right_tiles[stage][k + c][n];")
                rows.line("*packs<4>(&right_high[split_stage][n][place]) = high;")
            rows.line("Pack<float, 4> low;")
            rows.line("#pragma unroll")
            rows.line("for (int c = 0; c < 4; ++c) low.item[c] = low_tf32(high.item[c]);")
            rows.line("*packs<4>(&right_low[split_stage][n][place]) = low;")

    def _write_multiplying(self, scope: Scope) -> None:
        self._take_registers(scope, "inc", TAKEN_REGISTERS)
        scope.line("float sums[WM / 16][WN / 8][4] = {};")
        with scope.open("#pragma unroll 1", "for (int step = 0; step < n_steps; ++step)") as loop:
            loop.line("const int stage = step % STAGES, split_stage = step % SPLIT_STAGES;")
            loop.line("meet(IS_THERE + split_stage, COPYING + MULTIPLYING);")
            self._write_left_fragments(loop)
            self._write_group_products(loop)
        scope.line("meet(HALF + 1, MULTIPLYING);  // the sums take the place of the tiles")
        self._gather_sums(scope)

    def _take_registers(self, scope: Scope, how: str, count: int) -> None:
        """Move registers from the threads that copy to those that multiply, where both are 256."""
        if self._n_multiplying == N_COPYING_THREADS:
            scope.line(f"{self.kernel.use(f'{how}_registers')}<{count}>();")

    def _write_left_fragments(self, scope: Scope) -> None:
        scope.line("unsigned left_high[TK / 8][4], left_low[TK / 8][4];")
        with scope.unroll("for (int k = 0; k < TK; k += 8)") as parts:
            if self.left.is_k_inner:
                row, column = (text.replace(" + i * 16", "") for text in FRAGMENT_LOADS[True, True])
                column = column.format(chunk=ROW_BYTES // self.operand.itemsize)
                parts.line(f"load_matrices(left_high[k / 8], &left_tiles[stage][{row}][{column}]);")
            with parts.unroll("for (int c = 0; c < 4; ++c)") as words:
                if not self.left.is_k_inner:
                    place = WORD_LOADS[True].replace(" + i * 16", "")
                    words.line(f"left_high[k / 8][c] = __float_as_uint(left_tiles[stage]{place});")
                words.line("left_low[k / 8][c] = __float_as_uint(low_tf32(__uint_as_float(left_high[k / 8][c])));")

    def _write_group_products(self, scope: Scope) -> None:
        multiply = self.kernel.use(f"multiply_warpgroup_{self.schedule.tile_n}")
        high_tile = "right_tiles[stage]" if self.right.is_k_inner else "right_high[split_stage]"
        scope.line("float parts[WN / 8][4];  // tensor cores cut sums off: they add up one tile only")
        scope.line("begin_products();")
        scope.line("// Products of low parts come first, while the sums are small: less is cut off.")
        with scope.unroll("for (int k = 0; k < TK; k += 8)") as steps:
            steps.line(f"const auto high = describe_tile(&{high_tile}[0][k]);")
            steps.line("const auto low = describe_tile(&right_low[split_stage][0][k]);")
            steps.line(f"{multiply}(parts, left_low[k / 8], high, k > 0);")
            steps.line(f"{multiply}(parts, left_high[k / 8], low, true);")
        with scope.unroll("for (int k = 0; k < TK; k += 8)") as steps:
            steps.line(f"{multiply}(parts, left_high[k / 8], describe_tile(&{high_tile}[0][k]), true);")
        scope.line("commit_products();")
        scope.line("wait_for_products<0>();")
        scope.line("if (step + SPLIT_STAGES < n_steps) arrive(WAS_READ + split_stage, COPYING + MULTIPLYING);")
        with scope.unroll("for (int c = 0; c < WN / 2; ++c)") as words:
            words.line('asm volatile("" : "+f"(parts[c / 4][c % 4])::"memory");  // not to be read before')
            words.line("sums[0][c / 4][c % 4] += parts[c / 4][c % 4];")

    def _write_sums(self) -> None:
        """Wait for the sums, which are in shared memory already."""
        self.scope.line(f"{self.kernel.use('cluster_sync')}();" if self.schedule.cluster > 1 else "__syncthreads();")
