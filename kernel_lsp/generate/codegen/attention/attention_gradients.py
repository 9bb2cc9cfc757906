"""Gradients of attention with recomputed scores, which stay in registers, and without atomics.

One kernel finds the statistics of each query; one, whose blocks own queries, the gradients of queries; one, whose
blocks own keys, those of keys and values. The method is that of FlashAttention-2 (Dao 2023), but that the first kernel
replaces what a forward pass would have stored.
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
from kernel_lsp.generate.fusion.groups import AttentionGradientGroup, GradientOutput
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.scalar import Access, Scalar
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.generate.structure.attention_patterns import MINUS_INFINITY, conditions_giving

_NAMES = """
r0 c0 e m n c v d key col pack batch lane warp row step stage n_tiles n_columns first_column n_steps head_of tiles own
looped scores gradients score product value part shared is_seen is_hidden half weight query_sums key_sums value_sums
log_sums row_sums peaks totals column_statistics statistics n_column_tiles odd scores_probe gradients_probe
"""
LOCAL_NAMES = tuple(_NAMES.split())
MAX_SHARED_BYTES = 227 << 10
"""Maximum shared memory of a block on Hopper."""
MAX_FRAGMENT_WORDS = 192
"""Maximum 32-bit registers per thread for sums, scores and their gradients; ptxas spills beyond."""


def default_gradient_schedule(group: AttentionGradientGroup, workload: Workload) -> TileSchedule:
    """Return tiles with which two blocks fit a multiprocessor and no register is spilled."""
    return default_schedule(group, workload, lambda schedule: _is_small(group, schedule))


def is_valid_gradient_schedule(group: AttentionGradientGroup, schedule: TileSchedule) -> bool:
    """Check that the tiles fit a block, and the fragments fit a thread."""
    return _n_words(group, schedule) <= MAX_FRAGMENT_WORDS and _shared_bytes(group, schedule) <= MAX_SHARED_BYTES


def _is_small(group: AttentionGradientGroup, schedule: TileSchedule) -> bool:
    """Return True if two blocks fit a multiprocessor, and nothing is spilled."""
    return _n_words(group, schedule) <= MAX_FRAGMENT_WORDS and _shared_bytes(group, schedule) <= MAX_SHARED_BYTES // 2


def _n_words(group: AttentionGradientGroup, schedule: TileSchedule) -> int:
    """Return the registers of a thread's fragments. In f32 weights are split, too."""
    sums = sum(_width(group, output) // 2 for output in group.outputs)
    return sums + schedule.columns * (3 if group.value.dtype == DType.F32 else 2) // 2


def _width(group: AttentionGradientGroup, output: GradientOutput) -> int:
    return int((group.width if output.kind == "value" else group.head).extent.constant or 0)


def _shared_bytes(group: AttentionGradientGroup, schedule: TileSchedule) -> int:
    """Return the bytes of the rows, of two stages of columns and of their statistics."""
    n_rows = 2 * schedule.warps * ROWS_PER_WARP + 4 * schedule.columns
    statistics = 0 if group.is_by_query else 2 * schedule.columns * 8
    return n_rows * stride_of(group, group.head, group.width) * group.value.dtype.itemsize + statistics


class GradientRenderer(TileRenderer):
    group: AttentionGradientGroup

    def __init__(self, kernel: KernelWriter, group: AttentionGradientGroup, schedule: TileSchedule) -> None:
        super().__init__(kernel, group, schedule)
        self.base = "f32" if self.kind == "f32" else "16"

    @property
    def rows(self) -> TileAxis:
        return self._axis("r0", "ROWS", is_query=self.group.is_by_query)

    @property
    def columns(self) -> TileAxis:
        return self._axis("c0", "COLUMNS", is_query=not self.group.is_by_query)

    def _axis(self, start: str, size: str, *, is_query: bool) -> TileAxis:
        if is_query:
            return TileAxis(self.group.m, "m", start, size, self.n_queries)
        return TileAxis(self.group.key, "key", start, size, self.n_keys)

    @property
    def _factors(self) -> tuple[tuple[Scalar, Variable], ...]:
        """Return the two factors of queries, and of keys, with the variables of their products."""
        group = self.group
        queries = ((group.query_part, group.head), (group.grad, group.width))
        keys = ((group.key_part, group.head), (group.value, group.width))
        return (*queries, *keys) if group.is_by_query else (*keys, *queries)

    def render(self, comment: str) -> RenderedKernel:
        self._declare()
        self._load_rows()
        self._load_columns(self.scope, "0", "0")
        self.scope.line("commit_copies();")
        self._declare_results()
        self._walk_columns()
        self._write()
        n_bytes = _shared_bytes(self.group, self.schedule)
        return rendered(
            self.kernel, comment, self.scope.lines, (self._grid(),), (self.n_threads,), dynamic_bytes=n_bytes
        )

    def _declare(self) -> None:
        scope, group = self.scope, self.group
        head, width = group.head.extent.constant, group.width.extent.constant
        scope.line(f"constexpr int HEAD = {head}, WIDTH = {width};")
        scope.line(f"constexpr int ROWS = {self.n_rows}, COLUMNS = {self.schedule.columns};")
        stride = stride_of(group, group.head, group.width)
        scope.line(f"constexpr int STRIDE = {stride};  // keeps the rows of a fragment in different banks")
        scope.line("extern __shared__ __align__(128) unsigned char shared[];")
        element = self.dtype.cuda_type
        scope.line(f"auto tiles = reinterpret_cast<{element} (*)[STRIDE]>(shared);  // own rows, two stages of columns")
        if not group.is_by_query:
            place = "tiles + 2 * ROWS + 4 * COLUMNS"
            scope.line(f"auto column_statistics = reinterpret_cast<float (*)[COLUMNS][2]>({place});")
        scope.line("const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;")
        self._declare_places()

    def _declare_places(self) -> None:
        """Declare what a block and a thread own, and the steps."""
        scope, group, type_ = self.scope, self.group, self.kernel.index_type
        scope.line(f"const int n_tiles = ({self.rows.limit} + ROWS - 1) / ROWS;")
        self._declare_batch()
        last = self.last_key()
        is_reversed = last is not None and group.is_by_query
        order = "(n_tiles - 1 - blockIdx.x % n_tiles)" if is_reversed else "blockIdx.x % n_tiles"
        scope.line(f"const {type_} r0 = {order} * ROWS;{'  // the longest first' if last is not None else ''}")
        scope.line(f"const {type_} row = r0 + warp * 16 + lane / 4;  // this lane has rows `row` and `row + 8`")
        self._declare_steps(last)

    def _declare_steps(self, last: Index | None) -> None:
        """Declare the range of columns: queries that see a key of the block, or keys that a query of it sees."""
        scope, type_ = self.scope, self.kernel.index_type
        end, first = self.columns.limit, "0"
        if last is not None and self.group.is_by_query:
            end = f"min({type_}({end}), {self.shifted('r0 + ROWS', last)})"
        elif last is not None:
            first = f"max({type_}(0), {self.shifted('r0', last, '-')}) / COLUMNS * COLUMNS"
        scope.line(f"const {type_} first_column = {first}, n_columns = {end};")
        scope.line(f"const int n_column_tiles = (max(n_columns - first_column, {type_}(0)) + COLUMNS - 1) / COLUMNS;")
        shared = self.group.shared.extent
        times = "" if shared == as_index(1) else f" * {self.kernel.size('n_shared', shared)}"
        scope.line(f"const int n_steps = n_column_tiles{times};")

    def _load_rows(self) -> None:
        for place, (factor, column) in enumerate(self._factors[:2]):
            self.load_tile(self.scope, factor, self.rows, column, "r0", padded("ROWS + " * place), self.n_rows)

    def _load_columns(self, scope: Scope, step: str, stage: str) -> None:
        """Load the columns of a step, and their statistics, into a stage."""
        with scope.open(f"if ({step} < n_steps)") as inner:
            self._declare_step(inner, step)
            first = f"2 * ROWS + {stage} * 2 * COLUMNS + "
            for place, (factor, column) in enumerate(self._factors[2:]):
                to = padded(first + "COLUMNS + " * place)
                self.load_tile(inner, factor, self.columns, column, "c0", to, self.schedule.columns)
            if not self.group.is_by_query:
                with inner.open(f"for (int e = threadIdx.x; e < COLUMNS; e += {self.n_threads})") as loop:
                    loop.line(f"const {self.kernel.index_type} m = c0 + e;")
                    loop.define(self.group.m, "m")
                    self.copy_statistics(loop, f"column_statistics[{stage}][e]")

    def _declare_step(self, scope: Scope, step: str) -> None:
        type_ = self.kernel.index_type
        if self.group.shared.extent == as_index(1):
            scope.line(f"const {type_} c0 = first_column + {step} * COLUMNS;")
            scope.define(self.group.shared, "0")
            return
        scope.line(f"const {type_} head_of = {step} / n_column_tiles;  // among those that share the keys")
        scope.line(f"const {type_} c0 = first_column + {step} % n_column_tiles * COLUMNS;")
        scope.define(self.group.shared, "head_of")

    def copy_statistics(self, scope: Scope, to: str) -> None:
        """Copy both statistics of a query to shared memory."""
        log_sum, row_sum = self._statistics(scope)
        copy, condition = self.kernel.use("copy_async"), f"m < {self.n_queries}"
        if self.group.statistics[0].tensor is self.group.statistics[1].tensor:
            scope.line(f"{copy}<8>(&{to}, &{log_sum}, {condition});")
            return
        scope.line(f"{copy}<4>(&{to}[0], &{log_sum}, {condition});")
        scope.line(f"{copy}<4>(&{to}[1], &{row_sum}, {condition});")

    def _statistics(self, scope: Scope) -> tuple[str, str]:
        """Return the places of a query's statistics."""
        name = self.kernel.pointer if self.group.outputs else self.kernel.target
        log_sum, row_sum = (
            f"{name(read.tensor)}[{scope.offset(read.tensor, read.index).text}]" for read in self.group.statistics
        )
        return log_sum, row_sum

    def _declare_results(self) -> None:
        scope = self.scope
        for output in self.group.outputs:
            size = "WIDTH" if output.kind == "value" else "HEAD"
            scope.line(f"float {output.kind}_sums[{size} / 8][4] = {{}};")
        if not self.group.outputs:
            scope.line("float peaks[2] = {-CUDART_INF_F, -CUDART_INF_F}, totals[2] = {}, row_sums[2] = {};")
        elif self.group.is_by_query:
            self._load_row_statistics(scope)

    def _load_row_statistics(self, scope: Scope) -> None:
        scope.line("float log_sums[2] = {}, row_sums[2] = {};")
        scope.define(self.group.shared, "0")
        with self._open_halves(scope) as half:
            log_sum, row_sum = self._statistics(half)
            half.line(f"log_sums[half] = {log_sum};")
            half.line(f"row_sums[half] = {row_sum};")

    def _open_halves(self, scope: Scope) -> Scope:
        """Open the loop over a lane's two rows, as far as they exist."""
        loop = scope.unroll("for (int half = 0; half < 2; ++half)")
        loop.line(f"const {self.kernel.index_type} m = row + half * 8;")
        loop.define(self.group.m, "m")
        return loop.open(f"if (m < {self.n_queries})", closes_this=True)

    def _walk_columns(self) -> None:
        scope = self.scope
        multiply = self.kernel.use(f"multiply_rows_{self.kind}")
        with scope.open("#pragma unroll 1", "for (int step = 0; step < n_steps; ++step)") as loop:
            loop.line("const int stage = step % 2;")
            loop.line("wait_for_copies<0>();")
            loop.line("__syncthreads();")
            self._load_columns(loop, "(step + 1)", "(1 - stage)")
            loop.line("commit_copies();")
            self._declare_step(loop, "step")
            loop.line("const auto* own = tiles + warp * 16;")
            loop.line("const auto* looped = tiles + 2 * ROWS + stage * 2 * COLUMNS;")
            loop.line("float scores[COLUMNS / 8][4], gradients[COLUMNS / 8][4];")
            order = f", {str(self.group.is_by_query).lower()}" if self.kind == "f32" else ""
            loop.line(f"{multiply}<HEAD, COLUMNS, STRIDE{order}>(scores, own, looped);")
            loop.line(f"{multiply}<WIDTH, COLUMNS, STRIDE{order}>(gradients, own + ROWS, looped + COLUMNS);")
            self.write_scores(loop)
            self._write_grad_probabilities(loop)
            if self.group.outputs:
                self._weigh(loop)
                self._add_products(loop)
            else:
                gather = self.kernel.use(f"gather_statistics_{self.base}")
                loop.line(f"{gather}<COLUMNS>(scores, gradients, peaks, totals, row_sums);")

    def _write_grad_probabilities(self, scope: Scope) -> None:
        """Scale the gradients of probabilities, and recompute in f32 those that are no numbers."""
        group = self.group
        self.redo_products(scope, "gradients", (group.grad, group.value), group.width)
        if group.grad_scale == 1.0:
            return
        with self.open_fragment(scope, "COLUMNS") as inner:
            inner.line(f"gradients[n][c] *= {group.grad_scale!r}f;")

    def _weigh(self, scope: Scope) -> None:
        """Turn scores into probabilities, and the gradients of these into those of scores."""
        with self.open_fragment(scope, "COLUMNS") as inner:
            if self.group.is_by_query:
                log_sum, row_sum = "log_sums[c / 2]", "row_sums[c / 2]"
            else:
                inner.line("const float* statistics = column_statistics[stage][n * 8 + lane % 4 * 2 + c % 2];")
                log_sum, row_sum = "statistics[0]", "statistics[1]"
            weight = f"{self.kernel.use(f'probability_{self.base}')}(scores[n][c], {log_sum})"
            inner.line(f"const float weight = {weight};")
            inner.line(f"gradients[n][c] = weight * (gradients[n][c] - {row_sum});")
            self._hide(inner)
            inner.line("scores[n][c] = weight;")

    def _hide(self, scope: Scope) -> None:
        """Write that the gradient of a score that the user's mask hides is 0, also where a NaN is among the scores."""
        if not self.group.hides:
            return
        ((condition, hides),) = conditions_giving(self.group.score, MINUS_INFINITY)
        with scope.open("if (isnan(gradients[n][c]))") as rare:
            self.declare_place(rare)
            with rare.open(f"if (m < {self.n_queries} && key < {self.n_keys})") as inside:
                negation = "" if hides else "!"
                inside.line(f"if ({negation}{inside.value(condition).within(ATOM)}) gradients[n][c] = 0.0f;")

    def _add_products(self, scope: Scope) -> None:
        multiply = self.kernel.use(f"multiply_values_{self.kind}")
        for output in self.group.outputs:
            if output.kind == "value":
                scope.line(f"{multiply}<WIDTH, COLUMNS, STRIDE>(value_sums, scores, looped + COLUMNS);")
            else:
                scope.line(f"{multiply}<HEAD, COLUMNS, STRIDE>({output.kind}_sums, gradients, looped);")

    def _write(self) -> None:
        for output in self.group.outputs:
            self._write_output(output)
        if not self.group.outputs:
            self._write_statistics()

    def _write_output(self, output: GradientOutput) -> None:
        with self._open_results("WIDTH" if output.kind == "value" else "HEAD", output.column) as result:
            scale = "" if output.factor == 1.0 else f" * {output.factor!r}f"
            result.line(f"const float value = {output.kind}_sums[n][c]{scale};")
            result.bind(Access(output.tensor, output.at), convert(Text("value", ATOM), DType.F32, output.tensor.dtype))
            write_stores(result, output.stores)

    def _write_statistics(self) -> None:
        scope = self.scope
        combine = self.kernel.use("combine_totals")
        scope.line(f"{combine}(totals);")
        scope.line(f"{combine}(row_sums);")
        scope.define(self.group.shared, "0")
        with self._open_halves(scope) as half:
            places = self._statistics(half)
            log_sum = f"{self.kernel.use(f'log_sum_{self.base}')}(peaks[half], totals[half])"
            row_sum = "row_sums[half] / totals[half]"
            if self.group.is_safe:
                half.line("const bool is_hidden = totals[half] == 0.0f;  // every key: probabilities are 0")
                log_sum, row_sum = f"is_hidden ? CUDART_INF_F : {log_sum}", f"is_hidden ? 0.0f : {row_sum}"
            half.line("if (lane % 4 == 0) {")
            half.line(f"    {places[0]} = {log_sum};")
            half.line(f"    {places[1]} = {row_sum};")
            half.line("}")
