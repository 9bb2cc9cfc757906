"""Contractions on tensor cores: asynchronous copies to shared memory, products by `mma.sync`, a fused epilogue.

f32 factors are split into two TF32 numbers each, and three of the four products of the parts are added up ("3xTF32"):
the sums are as exact as those of f32. A result that shows an infinity, NaN, overflow or underflow is computed again by
plain multiplications, so that it is what f32 arithmetic gives.
"""

from __future__ import annotations

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Binary, Constant, Expression
from kernel_lsp.generate.codegen.kernel import (
    REGISTERS_PER_BLOCK,
    KernelWriter,
    RenderedKernel,
    blocks_of,
    rendered,
)
from kernel_lsp.generate.codegen.products.matmul import declare_batch, is_innermost, name_places, with_batch
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.codegen.tensor_cores.converted_fragments import ConvertedFragment
from kernel_lsp.generate.codegen.tensor_cores.epilogue import ResultText, ResultWriter, sum_type
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_operands import (
    LoadText,
    Operand,
    keep_row,
    plan_operand,
    write_load,
)
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_schedule import (
    MAX_SHARED_BYTES,
    MAX_UNROLLED_SUMS,
    ROW_BYTES,
    WARP,
    TensorCoreSchedule,
    TileLayout,
    depth_of,
    is_chained,
    is_valid_schedule,
    n_sums,
    operand_layout,
    result_layout,
)
from kernel_lsp.generate.fusion.groups import ContractionGroup
from kernel_lsp.generate.ir.index import Index
from kernel_lsp.generate.ir.sizes import ravel, to_expression
from kernel_lsp.generate.ir.workload import Workload

_NAMES = """
TM TN TK WM WN STAGES CLUSTER left_tiles right_tiles results shared left right left_high left_low right_high right_low
bits part sums sum value parts m0 n0 k0 m n k i j c e step stage n_steps n_all_steps next fetch split_stage lane warp
warp_m warp_n row col batch cluster rank first_step peer phase line two pair pack values v
"""
LOCAL_NAMES = tuple(_NAMES.split())
FRAGMENT_LOADS = {
    # (is left, is k inner): row and column of the 16-byte row whose address a lane gives.
    (True, True): ("warp_m + i * 16 + lane % 16", "k + lane / 16 * {chunk}"),
    (False, True): ("warp_n + j * 8 + lane / 16 * 8 + lane % 8", "k + lane / 8 % 2 * {chunk}"),
    (True, False): ("k + lane / 16 * 8 + lane % 8", "warp_m + i * 16 + lane / 8 % 2 * 8"),
    (False, False): ("k + lane % 16", "warp_n + j * 8 + lane / 16 * 8"),
}
REGISTERS_OF_SHORT, MAX_SUMS_OF_SHORT = 80, 32
"""Registers of a thread that adds up every fragment, and how many sums these suffice for."""
WORD_LOADS = {
    # is left: place of the c-th word of a fragment in a tile of f32 whose rows run along m or n.
    True: "[k + lane % 4 + c / 2 * 4][warp_m + i * 16 + lane / 4 + c % 2 * 8]",
    False: "[k + lane % 4 + c % 2 * 4][warp_n + j * 8 + lane / 4 + c / 2 * 8]",
}


class TensorCoreRenderer:
    """Renders one kernel of a contraction group whose operands have a type of the tensor cores."""

    alignment = 128
    """Bytes that the tiles in shared memory are aligned to."""

    def __init__(
        self,
        kernel: KernelWriter,
        group: ContractionGroup,
        schedule: TensorCoreSchedule,
        workload: Workload,
    ) -> None:
        assert group.operand is not None
        self.kernel, self.group, self.schedule, self.operand = kernel, group, schedule, group.operand
        self._workload = workload
        self.scope = Scope(kernel)
        left, right, _ = group.unscaled
        self.left = plan_operand("left_tiles", left, self.operand, group.m, group.k, workload)
        self.right = plan_operand(
            "right_tiles", right, self.operand, group.n, group.k, workload, may_convert=group.phases is None
        )
        store = group.stores[-1]
        self._loads: tuple[tuple[Operand, LoadText], ...] = ()
        self._converted: ConvertedFragment | None = None
        self.is_m_inner = group.phases is not None or is_innermost(ravel(store.index, store.tensor.shape), group.m)
        self._results = ResultWriter(kernel, group, schedule, workload, is_m_inner=self.is_m_inner)
        if schedule.n_phases > 1:
            self._results.keep_packs(False, ())

    @property
    def is_valid(self) -> bool:
        """Check that the schedule fits the hardware."""
        fits = is_valid_schedule(self.schedule, self.operand) and self.shared_bytes <= MAX_SHARED_BYTES
        if self.right.is_converted and self._depth_limit:
            return False  # past the last product, a fragment would be computed from zeros that are none
        return fits and (self.schedule.n_phases == 1 or self.schedule.cluster == 1)

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of the tiles, or of the results that replace them."""
        tiles = sum(self._layout(operand).n_bytes for operand in (self.left, self.right))
        if self.schedule.n_phases > 1:
            return self.schedule.stages * tiles + self._result_layout.n_bytes
        return max(self.schedule.stages * tiles, self._result_layout.n_bytes)

    def render(self, comment: str) -> RenderedKernel:
        """Return the kernel."""
        schedule, group = self.schedule, self.group
        self._declare_tiles()
        if schedule.n_phases > 1:
            self._write_phases()
        else:
            self._declare_places()
            self._write_steps()
            self._write_sums()
            self._write_results()
        rows = blocks_of(group.m.extent, schedule.tile_m)
        if schedule.cluster > 1:
            rows = Binary("*", rows, Constant(schedule.cluster))
        if self._has_phases:
            rows = Binary("*", rows, to_expression(group.batch.extent // schedule.n_phases))
        grid = [rows, blocks_of(group.n.extent, self._grid_columns)]
        conditions = [
            *group.conditions,
            *self._own_conditions,
            *self.left.conditions,
            *self.right.conditions,
            *self._results.conditions,
        ]
        if not self._has_phases:
            grid, conditions = with_batch(group, grid, conditions)
        return rendered(
            self.kernel,
            comment,
            self.scope.lines,
            grid,
            (schedule.n_threads,),
            conditions,
            min_blocks=self._min_blocks,
            dynamic_bytes=self.shared_bytes,
            attributes=(("cluster", schedule.cluster),) if schedule.cluster > 1 else (),
        )

    @property
    def _min_blocks(self) -> int | None:
        """Return the least resident blocks. Those of short sums hide each other's loads and stores: (32768, 32) x 32768
        took 2390 us on an H200 with the four that the compiler's registers allow, 2080 us with six."""
        if self.schedule.uses_warpgroups:  # ptxas ignores `setmaxnreg` where it does not know a kernel's registers
            return 1
        is_short = self._is_split and not self._is_chained and self.schedule.cluster == 1
        if not is_short or n_sums(self.schedule) > MAX_SUMS_OF_SHORT:
            return None
        by_registers = REGISTERS_PER_BLOCK // (REGISTERS_OF_SHORT * self.schedule.n_threads)
        return min(by_registers, MAX_SHARED_BYTES // self.shared_bytes)

    @property
    def _grid_columns(self) -> int:
        """Return the columns of a block."""
        return self.schedule.tile_n

    @property
    def _own_conditions(self) -> tuple[Expression, ...]:
        """Return the conditions on sizes that are the template's own."""
        return ()

    @property
    def _warp(self) -> str:
        """Return the number of a thread's warp among those that multiply."""
        return f"threadIdx.x / {WARP}"

    @property
    def _has_phases(self) -> bool:
        return self.group.has_batch and self.group.phases is not None

    @property
    def _has_terms_of_batch(self) -> bool:
        """Return True if batches sum different numbers of products."""
        return bool(self.group.n_terms.variables)

    @property
    def _is_split(self) -> bool:
        """Return True if factors are f32 and split into TF32."""
        return self.operand == DType.F32

    @property
    def _sum_type(self) -> str:
        """Return the C++ type of sums in registers and in shared memory."""
        return sum_type(self.operand)

    @property
    def _is_chained(self) -> bool:
        return is_chained(self.schedule, self.operand)

    @property
    def _result_layout(self) -> TileLayout:
        return result_layout(self.schedule, is_m_inner=self.is_m_inner)

    def _layout(self, operand: Operand) -> TileLayout:
        size = self.schedule.tile_m if operand is self.left else self.schedule.tile_n
        return operand_layout(self.schedule, size, operand.tile_dtype, is_k_inner=operand.is_k_inner)

    def _declare_tiles(self) -> None:
        self._declare_tile_sizes()
        self._declare_tile(self.left, "shared")
        self._declare_tile(self.right, "left_tiles + STAGES")

    def _declare_tile_sizes(self) -> None:
        scope, schedule = self.scope, self.schedule
        scope.line(
            f"constexpr int TM = {schedule.tile_m}, TN = {schedule.tile_n}, TK = {schedule.tile_k};  // of a block"
        )
        scope.line(f"constexpr int WM = {schedule.warp_m}, WN = {schedule.warp_n};  // of a warp")
        scope.line(f"constexpr int STAGES = {schedule.stages};  // tiles in shared memory: all but one on their way")
        scope.line("// Rows are padded so that the rows of a fragment lie in different banks.")
        scope.line(f"extern __shared__ __align__({self.alignment}) unsigned char shared[];")

    def _declare_tile(self, operand: Operand, place: str) -> None:
        layout, own = self._layout(operand), "TM" if operand is self.left else "TN"
        outer, inner = (own, "TK") if operand.is_k_inner else ("TK", own)
        padded = f"{inner} + {layout.padding}" if layout.padding else inner
        array = f"{operand.tile_dtype.cuda_type} (*)[{outer}][{padded}]"
        self.scope.line(f"auto {operand.tile} = reinterpret_cast<{array}>({place});")

    def _declare_places(self) -> None:
        scope, schedule, group = self.scope, self.schedule, self.group
        type_ = self.kernel.index_type
        block = f"blockIdx.x / {schedule.cluster}" if schedule.cluster > 1 else "blockIdx.x"
        batch = "blockIdx.z"
        if self._has_phases:  # neighbouring blocks read the same and write between each other's results
            n_batches = self.kernel.size("phases", group.batch.extent)
            batch, block = f"{block} % {n_batches}", f"{block} / {n_batches}"
        scope.line(f"const {type_} m0 = {block} * TM, n0 = blockIdx.y * TN;")
        self._declare_item(scope, batch)
        self._declare_warp(scope)

    def _declare_item(self, scope: Scope, batch: str) -> None:
        """Declare the item of the batch and the numbers that it has."""
        group = self.group
        declare_batch(scope, group, batch)
        if group.phases is not None:
            for variable, index in group.phases.uniform:
                scope.define(variable, scope.declare(variable.name, "int", scope.index(index).text))
        if self._has_terms_of_batch:
            scope.line(f"const int K = {scope.index(group.n_terms).text};")

    def _declare_warp(self, scope: Scope) -> None:
        schedule = self.schedule
        scope.line(f"const int lane = threadIdx.x % {WARP}, warp = {self._warp};")
        if schedule.warps_n == 1:
            scope.line("const int warp_m = warp * WM, warp_n = 0;")
        else:
            scope.line(f"const int warp_m = warp / {schedule.warps_n} * WM, warp_n = warp % {schedule.warps_n} * WN;")
        name_places(self.kernel, self.group)

    def _write_phases(self) -> None:
        """Write the loop over the phases of the block's rows, whose sums alternate in shared memory as they do in the
        result: lines are written as a whole, and a phase without products has no steps."""
        scope, n_phases, phases = self.scope, self.schedule.n_phases, self.group.phases
        assert phases is not None
        n_lines = (self.group.batch.extent // n_phases).constant
        scope.line(f"const int line = blockIdx.x % {n_lines};")
        scope.line(f"const {self.kernel.index_type} m0 = blockIdx.x / {n_lines} * TM, n0 = blockIdx.y * TN;")
        batch = f"line * {n_phases} + phase"
        if phases.n_inner > 1:
            batch = f"(line / {phases.n_inner} * {n_phases} + phase) * {phases.n_inner} + line % {phases.n_inner}"
        self._declare_warp(scope)
        self._declare_results()
        with scope.open("#pragma unroll 1", f"for (int phase = 0; phase < {n_phases}; ++phase)") as loop:
            self.scope = loop
            self._declare_item(loop, batch)
            self._write_steps()
            loop.line("wait_for_copies<0>();")
            loop.line("__syncthreads();  // the next phase copies to where this one has read")
            self._gather_sums(loop)
        self.scope = scope
        scope.line("__syncthreads();")
        text = ResultText(self._row_limit, self._column_limit, self._n_terms, self._is_split, place="[n - n0][e]")
        self._results.write_lines(scope, text, lambda places: self._declare_item(places, batch))

    def _write_steps(self) -> None:
        """Write the pipeline: while a tile is multiplied, the next ones are being copied."""
        self.scope.line(f"{self._sum_type} sums[WM / 16][WN / 8][4] = {{}};")
        self._declare_steps()
        self._prepare_loads()
        if self.right.is_converted:
            self._converted = ConvertedFragment(self.scope, self.right, self._column_limit)
        self._write_pipeline()

    def _write_pipeline(self) -> None:
        with self.scope.open("for (int step = 1 - STAGES; step < n_steps; ++step)") as loop:
            with loop.open("if (step >= 0)") as ready:
                ready.line("wait_for_copies<STAGES - 2>();  // the tile of this step is there")
                ready.line("__syncthreads();")
            loop.line("// Fetch the tile of a later step to where the step before this one has read.")
            with loop.open("if (step + STAGES - 1 < n_steps)") as fetch:
                self._write_fetch(fetch)
            loop.line("commit_copies();")
            loop.line("if (step < 0) continue;")
            self._write_products(loop)

    def _declare_steps(self) -> None:
        scope, n_terms, cluster = self.scope, self._n_terms, self.schedule.cluster
        count = f"({n_terms} + TK - 1) / TK"
        if cluster == 1:
            scope.line(f"const int n_steps = {count};")
            return
        scope.line("// The blocks of a cluster share the products of one tile.")
        rank = f"{self.kernel.use('cluster_rank')}()"
        scope.line(f"const int rank = {rank}, n_all_steps = {count};")
        scope.line(f"const int first_step = rank * ((n_all_steps + {cluster - 1}) / {cluster});")
        scope.line(f"const int n_steps = min(n_all_steps - first_step, (n_all_steps + {cluster - 1}) / {cluster});")

    @property
    def _n_terms(self) -> str:
        return "K" if self._has_terms_of_batch else self.kernel.size("K", self.group.n_terms)

    @property
    def _depth_limit(self) -> str:
        if self._has_terms_of_batch:
            return self._n_terms
        return limit_of(self.group.n_terms, self.schedule.tile_k, self._n_terms)

    def _write_fetch(self, scope: Scope) -> None:
        scope.line("const int next = step + STAGES - 1, stage = next % STAGES;")
        first = "(first_step + next)" if self.schedule.cluster > 1 else "next"
        scope.line(f"const {self.kernel.index_type} k0 = {first} * TK;")
        self._write_loads(scope)

    def _write_loads(self, scope: Scope) -> None:
        for operand, text in self._loads:
            write_load(scope, operand, text)

    def _prepare_loads(self) -> None:
        """Declare loop-invariant values of the loads."""
        left, right = self._load_texts()
        phases = self.group.phases
        uniform = frozenset((self.group.batch, *(v for v, _ in (phases.uniform if phases is not None else ()))))
        self._loads = (
            (keep_row(self.scope, self.left, left, self.group.row_shape, uniform), left),
            (keep_row(self.scope, self.right, right, (), uniform), right),
        )

    def _load_texts(self) -> tuple[LoadText, LoadText]:
        schedule = self.schedule
        depth = self._depth_limit
        n_k, n_threads = schedule.tile_k, schedule.n_threads
        return (
            LoadText("m", schedule.tile_m, n_k, n_threads, self._row_limit, depth),
            LoadText("n", schedule.tile_n, n_k, n_threads, self._column_limit, depth),
        )

    @property
    def _row_limit(self) -> str:
        return limit_of(self.group.m.extent, self.schedule.tile_m, self.kernel.size("M", self.group.m.extent))

    @property
    def _column_limit(self) -> str:
        return limit_of(self.group.n.extent, self.schedule.tile_n, self.kernel.size("N", self.group.n.extent))

    def _write_products(self, scope: Scope) -> None:
        scope.line("const int stage = step % STAGES;")
        if self._is_chained:
            scope.line("float parts[WM / 16][WN / 8][4] = {};  // tensor cores cut sums off: they add up one tile only")
        is_full = n_sums(self.schedule) > MAX_UNROLLED_SUMS
        scope.line("#pragma unroll 1" if is_full else "#pragma unroll")
        with scope.open(f"for (int k = 0; k < TK; k += {depth_of(self.operand)})") as inner:
            if self._is_split:
                self._write_split_products(inner)
            else:
                self._write_plain_products(inner)
        if self._is_chained:
            _add_up(scope, "parts[i][j][c]")

    def _write_plain_products(self, scope: Scope) -> None:
        kind = self.operand.value
        scope.line("unsigned right[WN / 8][2];")
        with scope.unroll("for (int j = 0; j < WN / 8; j += 2)") as pairs:
            if self._converted is not None:
                self._converted.write(pairs, "(first_step + step)" if self.schedule.cluster > 1 else "step")
            else:
                self._write_fragment(pairs, self.right)
                pairs.line("for (int c = 0; c < 4; ++c) right[j + c / 2][c % 2] = bits[c];")
        with scope.unroll("for (int i = 0; i < WM / 16; ++i)") as rows:
            self._write_fragment(rows, self.left)
            rows.line("#pragma unroll")
            rows.line(f"for (int j = 0; j < WN / 8; ++j) multiply_{kind}(sums[i][j], bits, right[j]);")

    def _write_split_products(self, scope: Scope) -> None:
        scope.line("unsigned right_high[WN / 8][2], right_low[WN / 8][2];")
        with scope.unroll("for (int j = 0; j < WN / 8; j += 2)") as pairs:
            self._write_fragment(pairs, self.right)
            with pairs.unroll("for (int c = 0; c < 4; ++c)") as split:
                split.line("split_tf32(bits[c], right_high[j + c / 2][c % 2], right_low[j + c / 2][c % 2]);")
        with scope.unroll("for (int i = 0; i < WM / 16; ++i)") as rows:
            self._write_fragment(rows, self.left)
            rows.line("unsigned left_high[4], left_low[4];")
            rows.line("#pragma unroll")
            rows.line("for (int c = 0; c < 4; ++c) split_tf32(bits[c], left_high[c], left_low[c]);")
            self._write_three_products(rows)

    def _write_three_products(self, scope: Scope) -> None:
        """Write the products of the parts, the smallest first. The product of both low parts is below the rounding of
        f32."""
        part, start = ("parts[i][j]", "multiply_tf32") if self._is_chained else ("part[j]", "start_tf32")
        self.kernel.use(start)
        if not self._is_chained:
            scope.line("float part[WN / 8][4];  // tensor cores cut sums off: they add up few products")
        for function, left, right in (
            (start, "left_low", "right_high"),
            ("multiply_tf32", "left_high", "right_low"),
            ("multiply_tf32", "left_high", "right_high"),
        ):
            scope.line("#pragma unroll")
            scope.line(f"for (int j = 0; j < WN / 8; ++j) {function}({part}, {left}, {right}[j]);")
        if not self._is_chained:
            added = "sums[i][j][c] += part[j][c]"
            if self.schedule.strip:  # sums start with the first products
                added = "sums[i][j][c] = k == 0 ? part[j][c] : sums[i][j][c] + part[j][c]"
            with scope.unroll("for (int j = 0; j < WN / 8; ++j)") as columns:
                columns.line("#pragma unroll")
                columns.line(f"for (int c = 0; c < 4; ++c) {added};")

    def _write_fragment(self, scope: Scope, operand: Operand) -> None:
        """Read the fragment of 16 rows or columns to `bits`."""
        scope.line("unsigned bits[4];")
        self._write_words(scope, operand, "bits", "stage")

    def _write_words(self, scope: Scope, operand: Operand, bits: str, tile: str) -> None:
        """Read the fragment of 16 rows or columns of one of an operand's tiles."""
        is_left = operand is self.left
        if self._is_split and not operand.is_k_inner:
            scope.line("#pragma unroll")
            place = f"{operand.tile}[{tile}]{WORD_LOADS[is_left]}"
            scope.line("for (int c = 0; c < 4; ++c) {")
            scope.line(f"    {bits}[c] = __float_as_uint({place});")
            scope.line("}")
            return
        row, column = FRAGMENT_LOADS[is_left, operand.is_k_inner]
        column = column.format(chunk=ROW_BYTES // self.operand.itemsize)
        load = self.kernel.use("load_matrices" if operand.is_k_inner else "load_transposed")
        scope.line(f"{load}({bits}, &{operand.tile}[{tile}][{row}][{column}]);")

    def _write_sums(self) -> None:
        """Gather the block's sums in shared memory, so that neighbouring threads write neighbours."""
        scope = self.scope
        scope.line("// The sums take the place of the tiles.")
        scope.line("wait_for_copies<0>();")
        scope.line("__syncthreads();")
        self._declare_results()
        self._gather_sums(scope)
        scope.line(f"{self.kernel.use('cluster_sync')}();" if self.schedule.cluster > 1 else "__syncthreads();")

    def _declare_results(self) -> None:
        n_phases = self.schedule.n_phases
        length = f"TM * {n_phases}" if n_phases > 1 else "TM" if self.is_m_inner else "TN"
        place = "right_tiles + STAGES" if n_phases > 1 else "shared"
        inner = f"{length} + {self._result_layout.padding}"
        self.scope.line(f"auto results = reinterpret_cast<{self._sum_type} (*)[{inner}]>({place});")

    def _gather_sums(self, scope: Scope) -> None:
        with scope.unroll(
            "for (int i = 0; i < WM / 16; ++i)", "for (int j = 0; j < WN / 8; ++j)", "for (int c = 0; c < 4; ++c)"
        ) as words:
            words.line(
                "const int row = warp_m + i * 16 + lane / 4 + c / 2 * 8, col = warp_n + j * 8 + lane % 4 * 2 + c % 2;"
            )
            place = "[col][row]" if self.is_m_inner else "[row][col]"
            if self.schedule.n_phases > 1:
                place = f"[col][row * {self.schedule.n_phases} + phase]"
            words.line(f"results{place} = sums[i][j][c];")

    def _write_results(self) -> None:
        text = ResultText(self._row_limit, self._column_limit, self._n_terms, self._is_split)
        self._results.write(self.scope, text)


def _add_up(scope: Scope, part: str) -> None:
    with scope.unroll("for (int i = 0; i < WM / 16; ++i)", "for (int j = 0; j < WN / 8; ++j)") as columns:
        columns.line("#pragma unroll")
        columns.line(f"for (int c = 0; c < 4; ++c) sums[i][j][c] += {part};")


def limit_of(extent: Index, tile: int, limit: str) -> str:
    """Return the upper bound of an index, or nothing where tiles fit exactly."""
    is_exact = extent.constant is not None and extent.constant % tile == 0
    return "" if is_exact else limit
