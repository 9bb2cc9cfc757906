"""Attention in one kernel: scores stay in registers, and weights are relative to the running maximum score.

A warp has 16 queries. The block loops over tiles of keys and values in shared memory; the next tile is copied while one
is used. The method is that of FlashAttention (Dao et al. 2022) with its second version's order of loops.
"""

from __future__ import annotations

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.attention.attention_tiles import (
    ROWS_PER_WARP,
    TileAxis,
    TileRenderer,
    TileSchedule,
    default_schedule,
    padded,
    stride_of,
)
from kernel_lsp.generate.codegen.elements.elementwise import write_stores
from kernel_lsp.generate.codegen.kernel import KernelWriter, RenderedKernel, rendered
from kernel_lsp.generate.codegen.operators import ATOM, Text, convert
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import AttentionGroup
from kernel_lsp.generate.ir.scalar import Access
from kernel_lsp.generate.ir.workload import Workload

_NAMES = """
m0 k0 e m n c v key col pack batch lane warp row n_tiles n_keys tiles queries scores score sums peaks totals part
product value stage other shared odd scores_probe half
"""
LOCAL_NAMES = tuple(_NAMES.split())
MAX_SHARED_BYTES = 112 << 10
"""Maximum shared memory of a block, so that two fit a multiprocessor with 227 KiB."""
MAX_FRAGMENT_WORDS = 160
"""Maximum 32-bit registers per thread for queries, sums and scores; ptxas spills beyond."""


def default_attention_schedule(group: AttentionGroup, workload: Workload) -> TileSchedule:
    """Return tiles that are valid."""
    return default_schedule(group, workload, lambda schedule: is_valid_attention_schedule(group, schedule))


def is_valid_attention_schedule(group: AttentionGroup, schedule: TileSchedule) -> bool:
    """Check that the tiles fit a block, and the fragments fit a thread."""
    head, width = int(group.head.extent.constant or 0), int(group.n.extent.constant or 0)
    is_split = group.value.dtype == DType.F32  # weights are split too
    n_words = (0 if is_split else head // 4) + width // 2 + schedule.columns * (4 if is_split else 1) // 2
    return n_words <= MAX_FRAGMENT_WORDS and _shared_bytes(group, schedule) <= MAX_SHARED_BYTES


class AttentionRenderer(TileRenderer):
    group: AttentionGroup

    def __init__(self, kernel: KernelWriter, group: AttentionGroup, schedule: TileSchedule) -> None:
        super().__init__(kernel, group, schedule)
        self.head = int(group.head.extent.constant or 0)
        self.width = int(group.n.extent.constant or 0)

    @property
    def rows(self) -> TileAxis:
        return TileAxis(self.group.m, "m", "m0", str(self.n_rows), self.n_queries)

    @property
    def columns(self) -> TileAxis:
        return TileAxis(self.group.key, "key", "k0", "KEYS", self.n_keys)

    def render(self, comment: str) -> RenderedKernel:
        self._declare()
        self._load_keys(self.scope, "0", "")
        self._load_queries()
        self._walk_keys()
        self._write()
        n_bytes = _shared_bytes(self.group, self.schedule)
        grid, block, resident = (self._grid(),), (self.n_threads,), self.schedule.resident
        min_blocks = resident if resident > 1 else None
        return rendered(
            self.kernel, comment, self.scope.lines, grid, block, min_blocks=min_blocks, dynamic_bytes=n_bytes
        )

    def _declare(self) -> None:
        scope = self.scope
        scope.line(f"constexpr int HEAD = {self.head}, WIDTH = {self.width}, KEYS = {self.schedule.columns};")
        stride = stride_of(self.group, self.group.head, self.group.n)
        scope.line(f"constexpr int STRIDE = {stride};  // keeps the rows of a fragment in different banks")
        element = self.dtype.cuda_type
        scope.line("extern __shared__ __align__(128) unsigned char shared[];")
        scope.line(f"auto tiles = reinterpret_cast<{element} (*)[STRIDE]>(shared);  // two stages of keys above values")
        self._declare_places("threadIdx.x / 32")

    def _declare_places(self, warp: str) -> None:
        """Declare what a block and a thread own."""
        scope, type_ = self.scope, self.kernel.index_type
        scope.line(f"const int lane = threadIdx.x % 32, warp = {warp};")
        tiles = f"({self.n_queries} + {self.n_rows - 1}) / {self.n_rows}"
        if self.n_queries.isdigit():
            tiles = str(-(-int(self.n_queries) // self.n_rows))
        scope.line(f"const int n_tiles = {tiles};")
        self._declare_batch()
        last = self.last_key()
        order = "(n_tiles - 1 - blockIdx.x % n_tiles)" if last is not None else "blockIdx.x % n_tiles"
        comment = "  // the longest first" if last is not None else ""
        scope.line(f"const {type_} m0 = {order} * {self.n_rows};{comment}")
        scope.line(f"const {type_} row = m0 + warp * 16 + lane / 4;  // this lane has rows `row` and `row + 8`")
        keys = self.n_keys
        if last is not None:
            keys = f"min({type_}({self.n_keys}), {self.shifted(f'm0 + {self.n_rows}', last)})"
        scope.line(f"const {type_} n_keys = {keys};")

    def _load_queries(self) -> None:
        """Load the queries: into shared memory, or through its second stage into registers, for 16-bit elements."""
        scope, group = self.scope, self.group
        first = _first_query(group)
        self.load_tile(scope, group.query_part, self.rows, group.head, "m0", padded(f"{first} * KEYS + "), self.n_rows)
        scope.line("commit_copies();")
        if self.kind == "f32":
            scope.line(f"const auto queries = tiles + {first} * KEYS + warp * 16;")
            return
        scope.line("wait_for_copies<0>();")
        scope.line("__syncthreads();")
        scope.line("unsigned queries[HEAD / 16][4];")
        load = self.kernel.use(f"load_queries_{self.kind}")
        scope.line(f"{load}<HEAD, STRIDE>(queries, tiles + {first} * KEYS + warp * 16);")

    def _load_keys(self, scope: Scope, start: str, first: str) -> None:
        """Load keys from `start` on, and then their values, into the stage that begins at row `first`."""
        group, keys = self.group, self.schedule.columns
        self.load_tile(scope, group.key_part, self.columns, group.head, start, padded(first), keys)
        self.load_tile(scope, group.value, self.columns, group.n, start, padded(f"{first}KEYS + "), keys)

    def _walk_keys(self) -> None:
        scope = self.scope
        scope.line("float sums[WIDTH / 8][4] = {};")
        scope.line("float peaks[2] = {-CUDART_INF_F, -CUDART_INF_F}, totals[2] = {};")
        with scope.open(f"for ({self.kernel.index_type} k0 = 0; k0 < n_keys; k0 += KEYS)") as loop:
            loop.line("const int stage = k0 / KEYS % 2 * 2 * KEYS;  // the first row of this tile")
            loop.line("wait_for_copies<0>();")
            loop.line("__syncthreads();")
            with loop.open("if (k0 + KEYS < n_keys)") as ahead:
                ahead.line("const int other = 2 * KEYS - stage;")
                self._load_keys(ahead, "k0 + KEYS", "other + ")
            loop.line("commit_copies();")
            loop.line("float scores[KEYS / 8][4];")
            multiply = self.kernel.use("multiply_rows_f32" if self.kind == "f32" else f"multiply_keys_{self.kind}")
            order = ", true" if self.kind == "f32" else ""
            loop.line(f"{multiply}<HEAD, KEYS, STRIDE{order}>(scores, queries, tiles + stage);")
            self.write_scores(loop)
            with loop.open("if (__any_sync(0xffffffff, is_seen))") as used:
                weigh = self.kernel.use("weigh_scores_f32" if self.kind == "f32" else "weigh_scores_16")
                used.line(f"{weigh}<KEYS, WIDTH>(scores, peaks, totals, sums);")
                used.line(f"multiply_values_{self.kind}<WIDTH, KEYS, STRIDE>(sums, scores, tiles + stage + KEYS);")

    def _write(self) -> None:
        scope, group = self.scope, self.group
        scope.line("combine_totals(totals);")
        if group.log_sums is not None:
            self._write_log_sums(group.log_sums)
        with self._open_results("WIDTH", group.n) as result:
            quotient = "sums[n][c] / totals[c / 2]"
            if group.is_safe:
                quotient = f"totals[c / 2] == 0.0f ? 0.0f : {quotient}"
            result.line(f"const float value = {quotient};")
            result.bind(Access(group.tensor, group.at), convert(Text("value", ATOM), DType.F32, group.tensor.dtype))
            write_stores(result, group.stores)

    def _write_log_sums(self, log_sums: Access) -> None:
        """Write the logarithms of the sums of exponentials, as the gradients of this attention read them."""
        scope = self.scope
        with scope.unroll("for (int half = 0; half < 2; ++half)") as loop:
            loop.line(f"const {self.kernel.index_type} m = row + half * 8;")
            loop.define(self.group.m, "m")
            with loop.open(f"if (m < {self.n_queries} && lane % 4 == 0)") as guard:
                place = f"{self.kernel.target(log_sums.tensor)}[{guard.offset(log_sums.tensor, log_sums.index).text}]"
                helper = self.kernel.use("log_sum_f32" if self.kind == "f32" else "log_sum_16")
                hidden = "totals[half] == 0.0f ? CUDART_INF_F : " if self.group.is_safe else ""
                guard.line(f"{place} = {hidden}{helper}(peaks[half], totals[half]);")


def _shared_bytes(group: AttentionGroup, schedule: TileSchedule) -> int:
    """Return the bytes of two stages, and of the queries."""
    n_rows = max(_first_query(group) * schedule.columns + schedule.warps * ROWS_PER_WARP, 4 * schedule.columns)
    return n_rows * stride_of(group, group.head, group.n) * group.value.dtype.itemsize


def _first_query(group: AttentionGroup) -> int:
    """Return the row of the first query in shared memory, in tiles of keys: behind both stages, or in the second one,
    through which 16-bit queries pass."""
    return 4 if group.value.dtype == DType.F32 else 2
