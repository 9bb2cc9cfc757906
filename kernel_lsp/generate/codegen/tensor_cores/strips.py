"""Products of few terms on tensor cores: a block keeps its rows of the left factor, split into TF32 numbers once, and
walks along the columns of the result.

Its tiles read the right factor alone, and write their sums from registers: the columns of a right tile are interleaved,
so that a thread has packs of neighbours.
"""

from __future__ import annotations

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Binary, Constant, Expression
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.codegen.tensor_cores.epilogue import PACK, ResultText
from kernel_lsp.generate.codegen.tensor_cores.tensor_core import TensorCoreRenderer
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_operands import LoadText, open_rounds, write_load
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_schedule import (
    INTERLEAVED_COLUMNS,
    MAX_SHARED_BYTES,
    is_valid_schedule,
    resident_strips,
)
from kernel_lsp.generate.ir.sizes import to_expression

MAX_UNROLLED_TERMS = 32
"""Maximum products of a step for all of its rounds to be unrolled: of 64 by two, (4096, 64) x 4096 took 51 us on an
H200, 61 by all."""


class StripRenderer(TensorCoreRenderer):
    """Renders a contraction whose schedule has a `strip`: the products of a sum fit one step."""

    @property
    def is_valid(self) -> bool:
        """Check that sums are of one step of f32, and that a thread's results are packs."""
        schedule, group = self.schedule, self.group
        is_plain = schedule.cluster == 1 and schedule.n_phases == 1 and group.phases is None
        is_one_step = self.operand == DType.F32 and not self._is_chained and self._fits_one_step
        are_packs = self._results.is_packed and not self.is_m_inner and schedule.warp_n % INTERLEAVED_COLUMNS == 0
        fits = is_valid_schedule(schedule, self.operand) and self.shared_bytes <= MAX_SHARED_BYTES
        return is_plain and is_one_step and are_packs and fits

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of the high and the low left tile, and of the right tiles."""
        return 2 * self._layout(self.left).n_bytes + self.schedule.stages * self._layout(self.right).n_bytes

    @property
    def _fits_one_step(self) -> bool:
        return self._workload.size(self.group.k.extent) <= self.schedule.tile_k

    @property
    def _grid_columns(self) -> int:
        return self.schedule.tile_n * self.schedule.strip

    @property
    def _own_conditions(self) -> tuple[Expression, ...]:
        n_terms = self.group.k.extent
        if n_terms.constant is not None:
            return ()
        return (Binary("<=", to_expression(n_terms), Constant(self.schedule.tile_k)),)

    @property
    def _min_blocks(self) -> int:
        """Return the resident blocks that registers and shared memory allow."""
        return max(1, min(resident_strips(self.schedule), MAX_SHARED_BYTES // self.shared_bytes))

    def _load_texts(self) -> tuple[LoadText, LoadText]:
        schedule, depth = self.schedule, self._depth_limit
        n_k, n_threads, columns = schedule.tile_k, schedule.n_threads, self._column_limit
        return (
            LoadText("m", schedule.tile_m, n_k, n_threads, self._row_limit, depth),
            LoadText("n", schedule.tile_n, n_k, n_threads, columns, depth, is_interleaved=self.right.is_k_inner),
        )

    def _declare_tiles(self) -> None:
        self._declare_tile_sizes()
        self._declare_tile(self.left, "shared")
        self._declare_tile(self.right, "left_tiles + 2")

    def _declare_places(self) -> None:
        scope, schedule, type_ = self.scope, self.schedule, self.kernel.index_type
        scope.line(f"constexpr int STRIP = {schedule.strip};  // tiles of a block, from left to right")
        scope.line(f"const {type_} m0 = blockIdx.x * TM, first_n = blockIdx.y * (STRIP * TN), k0 = 0;")
        self._declare_item(scope, "blockIdx.z")
        self._declare_warp(scope)

    def _write_steps(self) -> None:
        """Write the walk: while a tile is computed, the next ones of the right factor are being copied."""
        scope, (left, right) = self.scope, self._load_texts()
        self._loads = ((self.right, right),)
        n_columns = self.kernel.size("N", self.group.n.extent)
        scope.line(f"const int n_steps = min(STRIP, static_cast<int>(({n_columns} - first_n + TN - 1) / TN));")
        with scope.open("") as once:
            once.line("constexpr int stage = 0;")
            write_load(once, self.left, left)
        scope.line("commit_copies();")
        self._write_pipeline()

    def _write_fetch(self, scope: Scope) -> None:
        scope.line("const int next = step + STAGES - 1, stage = next % STAGES;")
        scope.line(f"const {self.kernel.index_type} n0 = first_n + next * TN;")
        self._write_loads(scope)

    def _write_products(self, scope: Scope) -> None:
        with scope.open("if (step == 0)") as first:
            self._write_split(first)
        scope.line("const int stage = step % STAGES;")
        scope.line("float sums[WM / 16][WN / 8][4];")
        unroll = "#pragma unroll" if self.schedule.tile_k <= MAX_UNROLLED_TERMS else "#pragma unroll 2"
        with scope.open(unroll, "for (int k = 0; k < TK; k += 8)") as inner:
            inner.line("unsigned right_high[WN / 8][2], right_low[WN / 8][2];")
            self._write_right(inner)
            with inner.unroll("for (int i = 0; i < WM / 16; ++i)") as rows:
                for name, tile in (("left_high", "0"), ("left_low", "1")):
                    rows.line(f"unsigned {name}[4];")
                    self._write_words(rows, self.left, name, tile)
                self._write_three_products(rows)
        self._write_tile(scope)

    def _write_split(self, scope: Scope) -> None:
        """Write the split of the left tile in place."""
        tile_m, tile_k = self.schedule.tile_m, self.schedule.tile_k
        n_inner = tile_k if self.left.is_k_inner else tile_m
        with open_rounds(scope, tile_m * tile_k, self.schedule.n_threads) as each:
            each.line(f"const int row = e / {n_inner}, col = e % {n_inner};")
            each.line("unsigned high, low;")
            split = self.kernel.use("split_tf32")
            each.line(f"{split}(__float_as_uint(left_tiles[0][row][col]), high, low);")
            each.line("left_tiles[0][row][col] = __uint_as_float(high);")
            each.line("left_tiles[1][row][col] = __uint_as_float(low);")
        scope.line("__syncthreads();")

    def _write_right(self, scope: Scope) -> None:
        """Read the right fragments: of four that lie side by side, each has every fourth column."""
        split = self.kernel.use("split_tf32")
        if self.right.is_k_inner:
            with scope.unroll("for (int j = 0; j < WN / 8; j += 2)") as pairs:
                pairs.line("unsigned bits[4];")
                self._write_words(pairs, self.right, "bits", "stage")
                with pairs.unroll("for (int c = 0; c < 4; ++c)") as words:
                    words.line(f"{split}(bits[c], right_high[j + c / 2][c % 2], right_low[j + c / 2][c % 2]);")
            return
        with scope.unroll("for (int j = 0; j < WN / 8; j += 4)", "for (int c = 0; c < 2; ++c)") as quads:
            place = "[stage][k + lane % 4 + c * 4][warp_n + j * 8 + lane / 4 * 4]"
            quads.line(f"const Pack<float, 4> four = *packs<4>(&right_tiles{place});")
            with quads.unroll("for (int p = 0; p < 4; ++p)") as words:
                target = "right_high[j + p][c], right_low[j + p][c]"
                words.line(f"{split}(__float_as_uint(four.item[p]), {target});")

    def _write_tile(self, scope: Scope) -> None:
        """Write the sums of a tile, or compute them again by plain multiplications."""
        scope.line(f"{self.kernel.use('SumCheck')} check;")
        with scope.unroll("for (int i = 0; i < WM / 16; ++i)", "for (int j = 0; j < WN / 8; ++j)") as columns:
            columns.line("#pragma unroll")
            columns.line("for (int c = 0; c < 4; ++c) check.take(sums[i][j][c]);")
        type_ = self.kernel.index_type
        scope.line(f"const {type_} first_m = m0 + warp_m + lane / 4;")
        own = INTERLEAVED_COLUMNS // 4  # columns of a thread of each group of interleaved ones
        scope.line(f"const {type_} n0 = first_n + step * TN + warp_n + lane % 4 * {own};")
        text = ResultText(self._row_limit, self._column_limit, self._n_terms, may_be_redone=False)
        with (
            scope.open(f"if (!check.fails({self._n_terms}))") as whole,
            whole.unroll(
                "for (int i = 0; i < WM / 8; ++i)", "for (int j = 0; j < WN / 8; j += 4)", "for (int c = 0; c < 2; ++c)"
            ) as packs,
        ):
            packs.line(f"const {type_} m = first_m + i * 8, n = n0 + j * 8 + c * {PACK};")
            sums = ", ".join(f"sums[i / 2][j + {p}][i % 2 * 2 + c]" for p in range(PACK))
            self._results.write_registers(packs, text, f"{{{{{sums}}}}}")
        with scope.open("else") as rest, rest.open("for (int e = 0; e < WM / 8 * (WN / 4); ++e)") as again:
            place = f"e % (WN / 4) / {own} * {INTERLEAVED_COLUMNS} + e % {own}"
            again.line(f"const {type_} m = first_m + e / (WN / 4) * 8, n = n0 + {place};")
            self._results.write_again(again, text)

    def _write_sums(self) -> None:
        """Write nothing: every tile has written its sums."""

    def _write_results(self) -> None:
        """Write nothing: every tile has written its results."""
