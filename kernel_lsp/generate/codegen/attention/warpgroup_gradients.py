"""Gradients of attention in f32 by `wgmma`: some warps copy, split and transpose tiles, the others multiply.

Two groups of four warps own 64 queries each. Those that own keys share 64 of them: one group has the probabilities and
the gradients of values, and passes the former on to the other, which has the gradients of keys.
"""

from __future__ import annotations

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.attention.attention_gradients import GradientRenderer
from kernel_lsp.generate.codegen.attention.attention_tiles import ROWS_PER_WARP, TileSchedule
from kernel_lsp.generate.codegen.attention.warpgroup_attention import (
    CHUNK,
    COPYING_WARPS,
    MAX_PRODUCTS,
    MAX_SHARED_BYTES,
    WARPS,
    WarpgroupRenderer,
)
from kernel_lsp.generate.codegen.helpers import columns_per_product
from kernel_lsp.generate.codegen.kernel import KernelWriter
from kernel_lsp.generate.codegen.rows.row_schedule import WARP
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import AttentionGradientGroup
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.workload import Workload

_NAMES = """
COPYING MULTIPLYING ALL ROWS_THERE ROWS_READ TURNED_THERE TURNED_READ HALF WEIGHTS_THERE WEIGHTS_READ own_tiles
tile_high tile_low turned_high turned_low weights group sums thread fetch
"""
LOCAL_NAMES = tuple(_NAMES.split())


def are_tiles(dtype: DType, head_variable: Variable, width_variable: Variable) -> bool:
    """Check that tiles consist of whole swizzled rows and whole products."""
    head, width = (int(variable.extent.constant or 0) for variable in (head_variable, width_variable))
    is_whole = head > 0 and head == width and head % CHUNK == 0 and head <= MAX_PRODUCTS * columns_per_product(head)
    return dtype == DType.F32 and is_whole


def warpgroup_gradient_schedule(group: AttentionGradientGroup) -> TileSchedule | None:
    """Return the schedule, where tiles are whole and fit a block."""
    if not are_tiles(group.value.dtype, group.head, group.width) or shared_bytes(group) > MAX_SHARED_BYTES:
        return None
    n_own = WARPS if group.is_by_query else WARPS // 2
    return TileSchedule(n_own, CHUNK, uses_warpgroups=True, copying=COPYING_WARPS)


def blocks_of_queries_of(group: AttentionGradientGroup, workload: Workload) -> int:
    """Return the number of blocks of queries at the captured sizes, whichever of them this group's own are."""
    n_batch = workload.size(group.batch.extent) * workload.size(group.shared.extent)
    return -(-workload.size(group.m.extent) // (WARPS * ROWS_PER_WARP)) * n_batch


def shared_bytes(group: AttentionGradientGroup) -> int:
    """Return the bytes of own rows, of tiles as copied and their low parts, of transposed ones, and of weights that one
    group of warps passes on."""
    head = int(group.head.extent.constant or 0)
    n_own = WARPS * ROWS_PER_WARP if group.is_by_query else WARPS // 2 * ROWS_PER_WARP
    n_rows = 2 * n_own + 2 * (_n_stages(group) + 1) * CHUNK + 2 * CHUNK * _n_turned(group)
    passed = 0 if group.is_by_query else CHUNK // 2 * 4 * WARP + 2 * CHUNK * 2
    return (n_rows * head + passed) * DType.F32.itemsize


def _n_stages(group: AttentionGradientGroup) -> int:
    """Return the number of stages of tiles as copied: where none is transposed, there is room for the next ones."""
    return 1 if group.outputs else 2


def _n_turned(group: AttentionGradientGroup) -> int:
    """Return the number of tiles that are transposed."""
    if group.is_by_query:
        return 1 if group.outputs else 0
    return 2


class WarpgroupGradientRenderer(WarpgroupRenderer, GradientRenderer):
    """Renders gradients in f32 whose warps multiply in fours."""

    def __init__(self, kernel: KernelWriter, group: AttentionGradientGroup, schedule: TileSchedule) -> None:
        super().__init__(kernel, group, schedule)
        self.n_threads = WARPS * WARP + self._n_copying
        self.head = int(group.head.extent.constant or 0)

    @property
    def _n_bytes(self) -> int:
        return shared_bytes(self.group)

    def _declare(self) -> None:
        scope, n_turned = self.scope, _n_turned(self.group)
        scope.line(f"constexpr int HEAD = {self.head}, ROWS = {self.n_rows}, COLUMNS = {CHUNK};")
        scope.line(
            f"constexpr int COPYING = {self._n_copying}, MULTIPLYING = {WARPS * WARP}, ALL = COPYING + MULTIPLYING;"
        )
        scope.line("// Named barriers: of tiles and transposed ones, that they are there and that they have been read.")
        scope.line("constexpr int ROWS_THERE = 1, ROWS_READ = 2, TURNED_THERE = 3, TURNED_READ = 4, HALF = 5;")
        scope.line("extern __shared__ __align__(1024) unsigned char shared[];")
        scope.line("// Rows of 128 bytes whose pieces of 16 are swizzled, as wgmma reads them; two factors of each.")
        scope.line("auto own_tiles = reinterpret_cast<float (*)[ROWS][32]>(shared);")
        scope.line("auto tile_high = reinterpret_cast<float (*)[COLUMNS][32]>(own_tiles + 2 * (HEAD / 32));")
        scope.line(f"auto tile_low = tile_high + {2 * _n_stages(self.group)} * (HEAD / 32);")
        if n_turned:
            scope.line("auto turned_high = reinterpret_cast<float (*)[HEAD][32]>(tile_low + 2 * (HEAD / 32));")
            scope.line(f"auto turned_low = turned_high + {n_turned};")
        if not self.group.is_by_query:
            scope.line("constexpr int WEIGHTS_THERE = 7, WEIGHTS_READ = 8;")
            scope.line(f"auto weights = reinterpret_cast<float (*)[128]>(turned_low + {n_turned});  // passed on")
            place = "weights + COLUMNS / 2"
            scope.line(f"auto column_statistics = reinterpret_cast<float (*)[COLUMNS][2]>({place});")
        scope.line("const int lane = threadIdx.x % 32;")
        scope.line("const int group = threadIdx.x / 128 - COPYING / 128, thread = threadIdx.x % 128;")
        scope.line(f"const int warp = thread / 32{' + group * 4' if self.group.is_by_query else ''};")
        self._declare_places()

    def _write_copying(self, scope: Scope) -> None:
        n_turned = _n_turned(self.group)
        self._change_registers(scope, is_copying=True)
        fetch = scope.open("auto fetch = [&](int step)")
        self._write_fetch(fetch)
        fetch.close()
        fetch.lines[-1] += ";"
        scope.line("if (n_steps > 0) fetch(0);")
        with scope.open("#pragma unroll 1", "for (int step = 0; step < n_steps; ++step)") as loop:
            has_stages = _n_stages(self.group) > 1
            if has_stages:
                loop.line("if (step > 0) meet(ROWS_READ, ALL);")
                loop.line("if (step + 1 < n_steps) fetch(step + 1);")
                loop.line("else commit_copies();")
            loop.line(f"wait_for_copies<{int(has_stages)}>();")
            loop.line("meet(HALF, COPYING);")
            stage = "step % 2 * 2 * (HEAD / 32)" if has_stages else "0"
            loop.line(f"split_tile<2 * COLUMNS * HEAD, COPYING>(tile_low[0][0], tile_high[{stage}][0]);")
            loop.line("show_to_products();")
            loop.line("arrive(ROWS_THERE, ALL);")
            if has_stages:
                return
            if n_turned:
                turn = self.kernel.use("turn_tile")
                loop.line("if (step > 0) meet(TURNED_READ, ALL);")
                for place in range(n_turned):
                    source = f"tile_high + {n_turned - 1 - place} * (HEAD / 32)"
                    loop.line(f"{turn}<HEAD, COPYING>(turned_high[{place}], turned_low[{place}], {source});")
                loop.line("show_to_products();")
                loop.line("arrive(TURNED_THERE, ALL);")
            with loop.open("if (step + 1 < n_steps)") as ahead:
                ahead.line("meet(ROWS_READ, ALL);  // and this half has read the tiles, too")
                ahead.line("fetch(step + 1);")

    def _write_fetch(self, scope: Scope) -> None:
        self._declare_step(scope, "step")
        threads = ("threadIdx.x", "COPYING")
        for place, (factor, column) in enumerate(self._factors[2:]):
            chunk = f"{place} * (HEAD / 32) + " if place else ""
            chunk += "step % 2 * 2 * (HEAD / 32) + " if _n_stages(self.group) > 1 else ""
            to = f"&tile_high[{chunk}({{place}}) / 32][{{row}}][({{place}}) % 32 ^ ({{row}}) % 8 * 4]"
            self.load_tile(scope, factor, self.columns, column, "c0", to, CHUNK, threads)
        if not self.group.is_by_query:
            with scope.open("for (int e = threadIdx.x; e < COLUMNS; e += COPYING)") as loop:
                loop.line(f"const {self.kernel.index_type} m = c0 + e;")
                loop.define(self.group.m, "m")
                self.copy_statistics(loop, "column_statistics[step % 2][e]")
        scope.line("commit_copies();")

    def _write_multiplying(self) -> None:
        scope = self.scope
        self._change_registers(scope, is_copying=False)
        threads = ("(threadIdx.x - COPYING)", "MULTIPLYING")
        for place, (factor, column) in enumerate(self._factors[:2]):
            chunk = f"{place} * (HEAD / 32) + " if place else ""
            to = f"&own_tiles[{chunk}({{place}}) / 32][{{row}}][({{place}}) % 32 ^ ({{row}}) % 8 * 4]"
            self.load_tile(scope, factor, self.rows, column, "r0", to, self.n_rows, threads)
        scope.line("commit_copies();")
        scope.line("wait_for_copies<0>();")
        scope.line("meet(HALF + 1, MULTIPLYING);")
        if self.group.is_by_query:
            self._declare_results()
        else:
            scope.line("float sums[HEAD / 8][4] = {};")
        with scope.open("#pragma unroll 1", "for (int step = 0; step < n_steps; ++step)") as loop:
            loop.line("const int stage = step % 2;")
            self._declare_step(loop, "step")
            loop.line("meet(ROWS_THERE, ALL);")
            loop.line("float scores[COLUMNS / 8][4];")
            if self.group.is_by_query:
                self._write_query_step(loop)
            else:
                self._write_key_step(loop)
        if self.group.is_by_query:
            self._write()
        else:
            self._write_key_results()

    def _multiply_rows(self, scope: Scope, name: str, factor: str) -> None:
        multiply = self.kernel.use(f"multiply_group_rows_{CHUNK}")
        is_by_query = str(self.group.is_by_query).lower()
        own = f"own_tiles[{factor} * (HEAD / 32)][warp * 16]"
        stage = "stage * 2 * (HEAD / 32) + " if _n_stages(self.group) > 1 else ""
        tiles = f"tile_high + {stage}{factor} * (HEAD / 32), tile_low + {factor} * (HEAD / 32)"
        scope.line(f"{multiply}<HEAD, ROWS, true, {is_by_query}>({name}, {own}, {tiles});")

    def _multiply_turned(self, scope: Scope, sums: str, weights: str, place: str) -> None:
        multiply = self.kernel.use(f"multiply_group_values_{columns_per_product(self.head)}")
        scope.line("meet(TURNED_THERE, ALL);")
        scope.line(f"{multiply}<HEAD, COLUMNS>({sums}, {weights}, turned_high + {place}, turned_low + {place});")
        scope.line("if (step + 1 < n_steps) arrive(TURNED_READ, ALL);")

    def _write_query_step(self, scope: Scope) -> None:
        scope.line("float gradients[COLUMNS / 8][4];")
        self._multiply_rows(scope, "scores", "0")
        self._multiply_rows(scope, "gradients", "1")
        scope.line("if (step + 1 < n_steps) arrive(ROWS_READ, ALL);")
        self.write_scores(scope)
        self._write_grad_probabilities(scope)
        if self.group.outputs:
            self._weigh(scope)
            self._multiply_turned(scope, "query_sums", "gradients", "0")
            return
        gather = self.kernel.use("gather_statistics_f32")
        scope.line(f"{gather}<COLUMNS>(scores, gradients, peaks, totals, row_sums);")

    def _write_key_step(self, scope: Scope) -> None:
        self._multiply_rows(scope, "scores", "group")
        scope.line("if (step + 1 < n_steps) arrive(ROWS_READ, ALL);")
        with scope.open("if (group == 0)") as first:
            self.write_scores(first)
            with self.open_fragment(first, "COLUMNS") as inner:
                inner.line("const float* statistics = column_statistics[stage][n * 8 + lane % 4 * 2 + c % 2];")
                inner.line(f"scores[n][c] = {self.kernel.use('probability_f32')}(scores[n][c], statistics[0]);")
            first.line("if (step > 0) meet(WEIGHTS_READ, MULTIPLYING);")
            with self.open_fragment(first, "COLUMNS") as inner:
                inner.line("weights[n * 4 + c][thread] = scores[n][c];")
            first.line("arrive(WEIGHTS_THERE, MULTIPLYING);")
        with scope.open("else") as second:
            second.line("auto& gradients = scores;  // of probabilities")
            self._write_grad_probabilities(second)
            second.line("meet(WEIGHTS_THERE, MULTIPLYING);")
            with self.open_fragment(second, "COLUMNS") as inner:
                inner.line("const float* statistics = column_statistics[stage][n * 8 + lane % 4 * 2 + c % 2];")
                inner.line("gradients[n][c] = weights[n * 4 + c][thread] * (gradients[n][c] - statistics[1]);")
                self._hide(inner)
            second.line("if (step + 1 < n_steps) arrive(WEIGHTS_READ, MULTIPLYING);")
        self._multiply_turned(scope, "sums", "scores", "group")

    def _write_key_results(self) -> None:
        whole = self.scope
        for output in self.group.outputs:
            self.scope = whole.open(f"if (group == {0 if output.kind == 'value' else 1})")
            self.scope.line(f"auto& {output.kind}_sums = sums;")
            self.scope.line("constexpr int WIDTH = HEAD;")
            self._write_output(output)
            self.scope.close()
        self.scope = whole
