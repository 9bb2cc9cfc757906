"""Contractions through shared memory: each block computes a tile of the result, each thread a small part of it.

The factors are arbitrary reads of (batch, m, k) and (batch, k, n), so one template does matrix products, convolutions
as implicit matrix products, and their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Binary, Constant, Expression
from kernel_lsp.generate.codegen.elements.elementwise import write_stores
from kernel_lsp.generate.codegen.kernel import (
    MAX_GRID_YZ,
    KernelWriter,
    RenderedKernel,
    blocks_of,
    name_coordinates,
    rendered,
)
from kernel_lsp.generate.codegen.operators import COMPUTE_TYPE, Text
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import ContractionGroup
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import ONE, Index, as_index
from kernel_lsp.generate.ir.scalar import Access, Scalar, accesses
from kernel_lsp.generate.ir.sizes import coefficient, ravel, to_expression

LOCAL_NAMES = (
    *("m0", "n0", "k0", "left_tile", "right_tile", "sums", "left", "right", "e", "m", "n", "k", "i", "j", "row", "col"),
    *("batch", "value", "difference", "TM", "TN", "TK"),
)
DIFFERENCES = {"square": "difference * difference", "magnitude": "fabsf(difference)"}
"""Terms of sums over differences, as C++."""
RUN = 4
"""Neighbouring rows or columns that a thread reads at once: 16 bytes of f32."""


@dataclass(frozen=True)
class TileSchedule:
    """A block computes `tile_m` x `tile_n` results, `tile_k` products at a time; a thread `thread_m` x `thread_n`."""

    tile_m: int
    tile_n: int
    tile_k: int
    thread_m: int
    thread_n: int

    @property
    def n_threads(self) -> int:
        return (self.tile_m // self.thread_m) * (self.tile_n // self.thread_n)


def is_valid_tile_schedule(schedule: TileSchedule, dtype: DType) -> bool:
    """Check that a block fits: whole warps, and two tiles within 48 KiB of shared memory."""
    if schedule.tile_m % schedule.thread_m or schedule.tile_n % schedule.thread_n:
        return False
    n_shared_bytes = schedule.tile_k * (schedule.tile_m + schedule.tile_n + 8) * max(4, dtype.itemsize)
    return 32 <= schedule.n_threads <= 1024 and schedule.n_threads % 32 == 0 and n_shared_bytes <= 48 << 10


def innermost(flat: Index) -> Variable | None:
    """Return the variable of the term with the smallest step. If a quotient mixes several, return the first by name, so
    that a text does not depend on how Python hashes."""
    direct = [monomial for monomial, factor in flat.terms if len(monomial) == 1 and abs(factor) == 1]
    mixed = next((monomial[0].variables for monomial in direct if monomial[0].variables), frozenset())
    return min(mixed, key=lambda variable: variable.name, default=None)


def is_innermost(flat: Index, variable: Variable) -> bool:
    """Return True if the flat position is contiguous along the variable."""
    step = coefficient(flat, variable)
    return step == ONE if step is not None else innermost(flat) == variable


def tile_comment(schedule: TileSchedule, name: str, written: str) -> str:
    """Return the comment above the kernel: a description of its work."""
    return (
        f"Each block computes a {schedule.tile_m} x {schedule.tile_n} tile of {name} in shared memory, "
        f"{schedule.tile_k} products at a time; each thread keeps {schedule.thread_m} x {schedule.thread_n} sums in"
        f" registers and writes {written}."
    )


class TiledRenderer:
    def __init__(self, kernel: KernelWriter, group: ContractionGroup, schedule: TileSchedule) -> None:
        self.kernel, self.group, self.schedule = kernel, group, schedule
        self.scope = Scope(kernel)
        self.type = COMPUTE_TYPE[group.tensor.dtype]
        self.n_rows = kernel.size("M", group.m.extent)
        self.n_columns = kernel.size("N", group.n.extent)
        self.n_terms = kernel.size("K", group.k.extent)

    def render(self, comment: str) -> RenderedKernel:
        self._declare()
        self._main_loop()
        self._write_results()
        schedule = self.schedule
        grid = [blocks_of(self.group.m.extent, schedule.tile_m), blocks_of(self.group.n.extent, schedule.tile_n)]
        grid, conditions = with_batch(self.group, grid)
        n_shared = schedule.tile_k * (schedule.tile_m + schedule.tile_n + 8) * max(4, self.group.tensor.dtype.itemsize)
        return rendered(
            *(self.kernel, comment, self.scope.lines, grid, (schedule.n_threads,), conditions), static_bytes=n_shared
        )

    def _declare(self) -> None:
        scope, schedule = self.scope, self.schedule
        scope.line(f"constexpr int TM = {schedule.tile_m}, TN = {schedule.tile_n}, TK = {schedule.tile_k};")
        scope.line(
            f"__shared__ __align__(16) {self.type} left_tile[TK][TM + 4];  // the extra columns keep banks apart"
        )
        scope.line(f"__shared__ __align__(16) {self.type} right_tile[TK][TN + 4];")
        scope.line("const int m0 = blockIdx.x * TM, n0 = blockIdx.y * TN;")
        declare_batch(scope, self.group)
        n_rows, n_columns = schedule.tile_m // schedule.thread_m, schedule.tile_n // schedule.thread_n
        # Consecutive threads write consecutive elements.
        store = self.group.stores[-1]
        by_row = is_innermost(ravel(store.index, store.tensor.shape), self.group.m)
        row, col = (f"% {n_rows}", f"/ {n_rows}") if by_row else (f"/ {n_columns}", f"% {n_columns}")
        scope.line(f"const int row = threadIdx.x {row} * {min(schedule.thread_m, RUN)};")
        scope.line(f"const int col = threadIdx.x {col} * {min(schedule.thread_n, RUN)};")
        name_places(self.kernel, self.group)
        scope.line(f"{self.type} sums[{schedule.thread_m}][{schedule.thread_n}] = {{}};")

    def _main_loop(self) -> None:
        with self.scope.open(f"for (int k0 = 0; k0 < {self.n_terms}; k0 += TK)") as loop:
            self._load(loop, "left_tile", self.group.left, self.group.m, "m", "TM", self.n_rows)
            self._load(loop, "right_tile", self.group.right, self.group.n, "n", "TN", self.n_columns)
            loop.line("__syncthreads();")
            self._multiply(loop)
            loop.line("__syncthreads();")

    def _load(self, scope: Scope, tile: str, factor: Scalar, along: Variable, name: str, size: str, limit: str) -> None:
        """Fill a tile. Neighbouring threads read neighbouring elements of memory."""
        with scope.open(f"for (int e = threadIdx.x; e < TK * {size}; e += {self.schedule.n_threads})") as inner:
            if runs_along(factor, self.group.k):
                inner.line(f"const int k = k0 + e % TK, {name} = {name}0 + e / TK;")
            else:
                inner.line(f"const int k = k0 + e / {size}, {name} = {name}0 + e % {size};")
            inner.define(self.group.k, "k")
            inner.define(along, name)
            inner.line(f"{self.type} value = 0;")
            with inner.open(f"if ({name} < {limit} && k < {self.n_terms})") as guard:
                text = guard.value(factor)
                guard.line(f"value = {text.text};")
            inner.line(f"{tile}[k - k0][{name} - {name}0] = value;")

    def _multiply(self, scope: Scope) -> None:
        schedule = self.schedule
        with scope.unroll("for (int k = 0; k < TK; ++k)") as inner:
            inner.line(f"__align__(16) {self.type} left[{schedule.thread_m}], right[{schedule.thread_n}];")
            self._read_part(inner, "left", "row", schedule.thread_m, schedule.tile_m)
            self._read_part(inner, "right", "col", schedule.thread_n, schedule.tile_n)
            with inner.unroll(f"for (int i = 0; i < {schedule.thread_m}; ++i)") as rows:
                header = f"for (int j = 0; j < {schedule.thread_n}; ++j)"
                if self.group.term == "product":
                    rows.line("#pragma unroll")
                    rows.line(f"{header} sums[i][j] += left[i] * right[j];")
                else:
                    with rows.unroll(header) as columns:
                        columns.line(f"const {self.type} difference = left[i] - right[j];")
                        columns.line(f"sums[i][j] += {DIFFERENCES[self.group.term]};")

    def _read_part(self, scope: Scope, name: str, first: str, count: int, tile: int) -> None:
        """Read this thread's part of a row of a tile, by the widest possible loads."""
        width = min(count, RUN)
        step = tile // (count // width)
        if width == 1:
            scope.line(f"{name}[0] = {name}_tile[k][{first}];")
            return
        if width == count:
            scope.line(f"*packs<{width}>({name}) = *packs<{width}>(&{name}_tile[k][{first}]);")
            return
        with scope.unroll(f"for (int i = 0; i < {count}; i += {width})") as run:
            at = f"{first} + i * {step // width}"
            run.line(f"*packs<{width}>({name} + i) = *packs<{width}>(&{name}_tile[k][{at}]);")

    def _write_results(self) -> None:
        schedule, scope = self.schedule, self.scope
        with scope.unroll(
            f"for (int i = 0; i < {schedule.thread_m}; ++i)", f"for (int j = 0; j < {schedule.thread_n}; ++j)"
        ) as columns:
            m, n = spread("i", schedule.thread_m, schedule.tile_m), spread("j", schedule.thread_n, schedule.tile_n)
            columns.line(f"const int m = m0 + row + {m}, n = n0 + col + {n};")
            columns.line(f"if (m >= {self.n_rows} || n >= {self.n_columns}) continue;")
            columns.define(self.group.m, "m")
            columns.define(self.group.n, "n")
            columns.bind(Access(self.group.tensor, self.group.at), Text("sums[i][j]", 20))
            write_stores(columns, self.group.stores)


def runs_along(factor: Scalar, variable: Variable) -> bool:
    """Return True if the factor is contiguous along `variable`."""
    for access in accesses(factor):
        flat = ravel(access.index, access.tensor.shape)
        if variable in flat.variables:
            return is_innermost(flat, variable)
    return True


def spread(index: str, count: int, tile: int) -> str:
    """Return the offset of a thread's `index`-th row or column from its first. Runs are spread over the tile, so that
    neighbouring threads read neighbouring runs."""
    if count <= RUN:
        return index
    return f"{index} / {RUN} * {tile // (count // RUN)} + {index} % {RUN}"


def with_batch(
    group: ContractionGroup, grid: list[Expression], conditions: Sequence[Expression] = ()
) -> tuple[list[Expression], list[Expression]]:
    """Return the grid with the batch along z, and the conditions with the ``where:`` line of a symbolic batch."""
    if not group.has_batch:
        return grid, [*conditions]
    size = to_expression(group.batch.extent)
    limits = [Binary("<=", size, Constant(MAX_GRID_YZ))] if group.batch.extent.constant is None else []
    return [*grid, size], [*conditions, *limits]


def declare_batch(scope: Scope, group: ContractionGroup, place: str = "blockIdx.z") -> None:
    """Declare the block's item of the batch."""
    if group.has_batch:
        scope.line(f"const int batch = {place};")
        scope.define(group.batch, "batch")


def name_places(kernel: KernelWriter, group: ContractionGroup) -> None:
    """Name the coordinates of a row and of a product."""
    name_coordinates(kernel, as_index(group.m), group.row_shape)
    extents = [variable.extent for variable in group.reduced] if group.phases is None else group.phases.shape
    name_coordinates(kernel, as_index(group.k), extents, [variable.name for variable in group.reduced])
