"""Contractions of f32 by `wgmma`, the instructions of Hopper's tensor cores: 3xTF32 with sums of four warps at once.

While the tensor cores multiply a tile, the same warps split the next one into TF32 numbers, where `wgmma` reads them.
"""

from __future__ import annotations

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.codegen.tensor_cores.tensor_core import (
    FRAGMENT_LOADS,
    WORD_LOADS,
    TensorCoreRenderer,
    unrolled,
)
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_schedule import MAX_SHARED_BYTES, ROW_BYTES
from kernel_lsp.generate.codegen.tensor_cores.warpgroup_helpers import WARPGROUP_COLUMNS

WARPS_PER_GROUP = 4
MIN_STAGES = 3


class WarpgroupRenderer(TensorCoreRenderer):
    """Renders a contraction whose schedule has warps of 16 rows and all columns of the block's tile."""

    @property
    def is_valid(self) -> bool:
        """Check that the schedule fits `wgmma` and the hardware."""
        schedule = self.schedule
        is_grouped = schedule.warps_m % WARPS_PER_GROUP == 0 and schedule.warps_n == 1 and schedule.warp_m == 16
        is_known = schedule.tile_n in WARPGROUP_COLUMNS and self.operand == DType.F32 and schedule.cluster == 1
        return is_grouped and is_known and schedule.stages >= MIN_STAGES and self.shared_bytes <= MAX_SHARED_BYTES

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of the tiles as loaded and of two split tiles; results replace them."""
        split = 4 * self.schedule.tile_n * self.schedule.tile_k * self.operand.itemsize
        tiles = sum(self._layout(operand).n_bytes for operand in (self.left, self.right))
        return max(self.schedule.stages * tiles + split, self._result_layout.n_bytes)

    @property
    def _depth_limit(self) -> str:
        """Return the limit of k even where tiles fit exactly: copies past the last step write zeros."""
        return self._n_terms

    def _declare_tiles(self) -> None:
        super()._declare_tiles()
        scope = self.scope
        scope.line("// The parts of two right tiles: 8 columns by 4 products lie together, as wgmma reads them.")
        scope.line("auto right_high = reinterpret_cast<float (*)[TK / 4][TN][4]>(right_tiles + STAGES);")
        scope.line("auto right_low = right_high + 2;")

    def _write_steps(self) -> None:
        """Write the pipeline: a tile is multiplied, the next one is split, and others are being copied."""
        scope = self.scope
        scope.line("float sums[WM / 16][WN / 8][4] = {};")
        self._prepare_loads()
        self._declare_steps()
        self._write_fetching()
        self._write_splitting()
        scope.line("for (int step = 0; step < STAGES - 1; ++step) fetch(step);")
        scope.line("wait_for_copies<STAGES - 2>();")
        scope.line("__syncthreads();")
        scope.line("split(0);")
        loop = scope.open("for (int step = 0; step < n_steps; ++step)")
        loop.line("wait_for_copies<STAGES - 3>();  // the next tile is there")
        loop.line("__syncthreads();")
        self._write_group_products(loop)
        loop.close()

    def _write_fetching(self) -> None:
        """Write the function that starts the copies of a step."""
        self.kernel.use("commit_copies")
        self.kernel.use("wait_for_copies")
        body = self.scope.open("auto fetch = [&](int step)")
        body.line(f"const {self.kernel.index_type} k0 = step * TK;")
        body.line("const int stage = step % STAGES;")
        self._write_loads(body)
        body.line("commit_copies();")
        _end_function(body)

    def _write_splitting(self) -> None:
        """Write the function that splits the right tile of a step and reads fragments of the left one."""
        scope = self.scope
        for helper in ("packs", "split_tf32", "show_to_products"):
            self.kernel.use(helper)
        scope.line("unsigned left_bits[TK / 8][4];")
        body = scope.open("auto split = [&](int step)")
        body.line("const int stage = step % STAGES;")
        rows = unrolled(body, f"for (int e = threadIdx.x; e < TN * TK / 4; e += {self.schedule.n_threads})")
        rows.line("const int n = e % TN, k = e / TN * 4;")
        rows.line("Pack<float, 4> high, low;")
        words = unrolled(rows, "for (int c = 0; c < 4; ++c)")
        words.line("unsigned of_high, of_low;")
        place = "[n][k + c]" if self.right.is_k_inner else "[k + c][n]"
        words.line(f"split_tf32(__float_as_uint(right_tiles[stage]{place}), of_high, of_low);")
        words.line("high.item[c] = __uint_as_float(of_high);")
        words.line("low.item[c] = __uint_as_float(of_low);")
        words.close()
        rows.line("*packs<4>(&right_high[step % 2][k / 4][n][0]) = high;")
        rows.line("*packs<4>(&right_low[step % 2][k / 4][n][0]) = low;")
        rows.close()
        self._write_left_fragments(body)
        body.line("show_to_products();")
        _end_function(body)

    def _write_left_fragments(self, scope: Scope) -> None:
        parts = unrolled(scope, "for (int k = 0; k < TK; k += 8)")
        if self.left.is_k_inner:
            row, column = (text.replace(" + i * 16", "") for text in FRAGMENT_LOADS[True, True])
            column = column.format(chunk=ROW_BYTES // self.operand.itemsize)
            self.kernel.use("load_matrices")
            parts.line(f"load_matrices(left_bits[k / 8], &left_tiles[stage][{row}][{column}]);")
        else:
            place = WORD_LOADS[True].replace(" + i * 16", "")
            words = unrolled(parts, "for (int c = 0; c < 4; ++c)")
            words.line(f"left_bits[k / 8][c] = __float_as_uint(left_tiles[stage]{place});")
            words.close()
        parts.close()

    def _write_group_products(self, scope: Scope) -> None:
        multiply = self.kernel.use(f"multiply_warpgroup_{self.schedule.tile_n}")
        for helper in ("describe_tile", "begin_products", "commit_products", "wait_for_products"):
            self.kernel.use(helper)
        scope.line("unsigned left_high[TK / 8][4], left_low[TK / 8][4];")
        scope.line("#pragma unroll")
        scope.line("for (int c = 0; c < TK / 2; ++c) {")
        scope.line("    split_tf32(left_bits[c / 4][c % 4], left_high[c / 4][c % 4], left_low[c / 4][c % 4]);")
        scope.line("}")
        scope.line("float parts[WN / 8][4];  // tensor cores cut sums off: they add up one tile only")
        scope.line("begin_products();")
        steps = unrolled(scope, "for (int k = 0; k < TK; k += 8)")
        steps.line("const auto high = describe_tile(&right_high[step % 2][k / 4], TN * 16);")
        steps.line("const auto low = describe_tile(&right_low[step % 2][k / 4], TN * 16);")
        steps.line(f"{multiply}(parts, left_low[k / 8], high, k > 0);")
        steps.line(f"{multiply}(parts, left_high[k / 8], low, true);")
        steps.line(f"{multiply}(parts, left_high[k / 8], high, true);")
        steps.close()
        scope.line("commit_products();")
        scope.line("fetch(step + STAGES - 1);  // to where the step before this one has read")
        scope.line("if (step + 1 < n_steps) split(step + 1);")
        scope.line("wait_for_products();")
        words = unrolled(scope, "for (int c = 0; c < WN / 2; ++c)")
        words.line('asm volatile("" : "+f"(parts[c / 4][c % 4])::"memory");  // not to be read before')
        words.line("sums[0][c / 4][c % 4] += parts[c / 4][c % 4];")
        words.close()


def _end_function(scope: Scope) -> None:
    scope.close()
    scope.lines[-1] += ";"
