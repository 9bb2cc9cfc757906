"""Contractions of few terms and few columns, such as convolutions of few channels: a thread computes all columns of a
block's tile for several rows.

The right factor lies in shared memory as a whole, where all threads of a warp read the same element; the left one is
read straight from memory, where neighbouring threads read neighbouring rows, and L1 holds what taps share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.elements.elementwise import write_stores
from kernel_lsp.generate.codegen.kernel import (
    REGISTERS_PER_BLOCK,
    KernelWriter,
    RenderedKernel,
    blocks_of,
    name_coordinates,
    rendered,
)
from kernel_lsp.generate.codegen.operators import COMPUTE_TYPE, Text
from kernel_lsp.generate.codegen.products.matmul import declare_batch, with_batch
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_operands import declare_divisions_of, plain_read
from kernel_lsp.generate.fusion.groups import ContractionGroup
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import ZERO, Index, as_index, product
from kernel_lsp.generate.ir.scalar import Access, Scalar, accesses
from kernel_lsp.generate.ir.sizes import ravel
from kernel_lsp.generate.ir.tensor import Reduction, Tensor

_NAMES = "m0 n0 m n k i j e v value batch sums left right right_tile pack TN ROWS THREADS"
LOCAL_NAMES = tuple(_NAMES.split())
ROW_SERIAL = 1 << 23
PACK = 4
"""Columns per load from shared memory: 16 bytes of f32."""
MAX_SHARED_BYTES = 48 << 10
"""Maximum bytes of the right factor in a block's static shared memory."""
MAX_UNROLLED_TERMS = 9
"""Maximum terms in the body of the innermost loop, so that the instruction cache holds it: 576 products of 64 sums."""
OTHER_REGISTERS = 40
"""Estimated registers of a thread besides its sums."""


@dataclass(frozen=True)
class ThreadRowSchedule:
    """A block of `threads` computes `tile_n` columns of `threads` x `rows` rows."""

    tile_n: int
    rows: int
    threads: int

    @property
    def tile_m(self) -> int:
        return self.threads * self.rows


def max_columns(n_terms: int | None, dtype: DType) -> int:
    """Return the number of columns, a multiple of `PACK`, whose right factor fits shared memory; 0 where the kernel
    supports no such sums: their number of terms is unknown or too large, or they are f64."""
    if n_terms is None or dtype == DType.F64:
        return 0
    return MAX_SHARED_BYTES // (max(1, n_terms) * max(4, dtype.itemsize)) // PACK * PACK


def may_go_by_thread_rows(tensor: Tensor, definition: Reduction) -> bool:
    """Return True if some schedule of rows of threads is valid for the contraction."""
    assert definition.contraction is not None
    n_terms = product(variable.extent for variable in definition.reduced).constant
    return definition.contraction.phases is None and max_columns(n_terms, tensor.dtype) > 0


def is_valid_thread_rows(schedule: ThreadRowSchedule, group: ContractionGroup) -> bool:
    """Check that the right factor of a known number of terms fits shared memory, and the sums fit registers."""
    dtype = group.tensor.dtype
    n_registers = schedule.rows * schedule.tile_n * max(1, dtype.itemsize // 4) + OTHER_REGISTERS
    fits = n_registers <= 255 and n_registers * schedule.threads <= REGISTERS_PER_BLOCK
    widest = max_columns(group.k.extent.constant, dtype)
    return group.phases is None and fits and schedule.tile_n <= widest and schedule.tile_n % PACK == 0


def thread_row_comment(schedule: ThreadRowSchedule, name: str, written: str) -> str:
    """Return the comment above the kernel: a description of its work."""
    return (
        f"Each thread computes {schedule.tile_n} columns of {schedule.rows} rows of {name}, in registers; the block's"
        f" columns of the right factor are in shared memory. Writes {'the sums' if written == 'them' else written}."
    )


class ThreadRowRenderer:
    def __init__(self, kernel: KernelWriter, group: ContractionGroup, schedule: ThreadRowSchedule) -> None:
        self.kernel, self.group, self.schedule = kernel, group, schedule
        self.scope = Scope(kernel)
        self.type = COMPUTE_TYPE[group.tensor.dtype]
        self.n_rows, self.n_columns = kernel.size("M", group.m.extent), kernel.size("N", group.n.extent)
        self.reduced = [variable for variable in group.reduced if variable.extent.constant != 1]
        k = ravel([as_index(v) for v in self.reduced], [v.extent for v in self.reduced])
        self.left = group.left.substitute({group.k: k})
        self.rows = [Variable(f"m_{i}", ROW_SERIAL + i, group.m.extent) for i in range(schedule.rows)]

    def render(self, comment: str) -> RenderedKernel:
        schedule, group = self.schedule, self.group
        self._stage_right()
        self._multiply(self._declare_rows())
        self._write_results()
        grid = [blocks_of(group.m.extent, schedule.tile_m), blocks_of(group.n.extent, schedule.tile_n)]
        grid, conditions = with_batch(group, grid, group.conditions)
        n_shared = (group.k.extent.constant or 0) * schedule.tile_n * max(4, group.tensor.dtype.itemsize)
        return rendered(
            *(self.kernel, comment, self.scope.lines, grid, (schedule.threads,), conditions), static_bytes=n_shared
        )

    def _stage_right(self) -> None:
        """Copy the block's columns of the right factor to shared memory, term by term."""
        scope, schedule, group = self.scope, self.schedule, self.group
        n_terms = self.kernel.size("K", group.k.extent)
        scope.line(f"constexpr int TN = {schedule.tile_n}, ROWS = {schedule.rows}, THREADS = {schedule.threads};")
        scope.line(f"__shared__ __align__(16) {self.type} right_tile[{n_terms}][TN];")
        scope.line(f"const {self.kernel.index_type} m0 = blockIdx.x * (THREADS * ROWS), n0 = blockIdx.y * TN;")
        declare_batch(scope, group)
        with scope.open(f"for (int e = threadIdx.x; e < {n_terms} * TN; e += THREADS)") as loop:
            loop.line("const int k = e / TN, n = n0 + e % TN;")
            loop.define(group.k, "k")
            loop.define(group.n, "n")
            loop.line(f"{self.type} value = 0;")
            with loop.open(f"if (n < {self.n_columns})") as guard:
                guard.line(f"value = {guard.value(group.right).text};")
            loop.line("right_tile[k][n - n0] = value;")
        scope.line("__syncthreads();")

    def _declare_rows(self) -> list[Scalar | str]:
        """Declare what a thread keeps of each of its rows; rows past the end repeat the last one. Returns each row's
        factor over the terms, or a pointer where its address is a sum of a row's and a term's parts."""
        scope, group = self.scope, self.group
        read = plain_read(self.left, self.left.dtype)
        found: list[Scalar | str] = []
        for i, row in enumerate(self.rows):
            name = scope.names.take(row.name)
            own = f"m0 + {i} * THREADS + (int)threadIdx.x"
            scope.line(f"const {self.kernel.index_type} {name} = min({own}, {self.n_rows} - 1);")
            scope.define(row, name)
            name_coordinates(self.kernel, as_index(row), group.row_shape)
            left = self.left.substitute({group.m: as_index(row)})
            for access in accesses(left):
                declare_divisions_of(scope, ravel(access.index, access.tensor.shape), row)
            parts = None if read is None or read.mask is not None else separated(self._flat(left), self.reduced)
            if parts is None or not isinstance(left, Access):
                found.append(left)
                continue
            address = f"{self.kernel.pointer(left.tensor)} + ({scope.index(parts[0]).text})"
            type_ = f"{left.dtype.cuda_type}*"
            found.append(scope.declare(f"{self.kernel.pointer(left.tensor)}_row_{i}", type_, address))
        return found

    def _flat(self, read: Scalar) -> Index:
        assert isinstance(read, Access)
        return ravel(read.index, read.tensor.shape)

    def _multiply(self, rows: Sequence[Scalar | str]) -> None:
        scope = self.scope
        self.kernel.use("packs")
        scope.line(f"{self.type} sums[ROWS][TN] = {{}};")
        inner, names = self._open_terms()
        shape = [variable.extent for variable in self.reduced]
        for variable, name in zip(self.reduced, names, strict=True):
            inner.define(variable, name)
        k = ravel([as_index(v) for v in self.reduced], shape)
        inner.line(f"const int k = {inner.index(k).text};")
        inner.line(f"{self.type} left[ROWS];")
        for i, row in enumerate(rows):
            if isinstance(row, str):
                parts = separated(self._flat(self.left), self.reduced)
                assert parts is not None
                inner.line(f"left[{i}] = {row}[{inner.index(parts[1]).text}];")
            else:
                inner.line(f"left[{i}] = {inner.value(row).text};")
        with inner.unroll(f"for (int j = 0; j < TN; j += {PACK})") as columns:
            columns.line(f"const Pack<{self.type}, {PACK}> right = *packs<{PACK}>(&right_tile[k][j]);")
            with columns.unroll("for (int i = 0; i < ROWS; ++i)") as of_rows:
                of_rows.line("#pragma unroll")
                of_rows.line(f"for (int v = 0; v < {PACK}; ++v) sums[i][j + v] += left[i] * right.item[v];")
        inner.close()

    def _open_terms(self) -> tuple[Scope, list[str]]:
        """Open a loop for each summed dim, the innermost ones unrolled. Returns the innermost body and the names."""
        if not self.reduced:
            return self.scope.open(""), []
        headers: list[str] = []
        names = [self.scope.names.take(variable.name) for variable in self.reduced]
        n_unrolled = 1
        for variable, name in reversed(list(zip(self.reduced, names, strict=True))):
            extent = variable.extent.constant or 0
            header = f"for (int {name} = 0; {name} < {extent}; ++{name})"
            n_unrolled *= extent
            headers = ["#pragma unroll" if n_unrolled <= MAX_UNROLLED_TERMS else "#pragma unroll 1", header, *headers]
        return self.scope.open(*headers), names

    def _write_results(self) -> None:
        group = self.group
        with self.scope.unroll("for (int i = 0; i < ROWS; ++i)") as rows:
            rows.line(f"const {self.kernel.index_type} m = m0 + i * THREADS + threadIdx.x;")
            rows.line(f"if (m >= {self.n_rows}) continue;")
            rows.define(group.m, "m")
            name_coordinates(self.kernel, as_index(group.m), group.row_shape)
            for store in group.stores:
                declare_divisions_of(rows, ravel(store.index, store.tensor.shape), group.m)
            with rows.unroll("for (int j = 0; j < TN; ++j)") as columns:
                columns.line("const int n = n0 + j;")
                if group.n.extent.constant is None or group.n.extent.constant % self.schedule.tile_n:
                    columns.line(f"if (n >= {self.n_columns}) continue;")
                columns.define(group.n, "n")
                columns.bind(Access(group.tensor, group.at), Text("sums[i][j]", 20))
                write_stores(columns, group.stores)


def separated(index: Index, terms: Sequence[Variable]) -> tuple[Index, Index] | None:
    """Return the parts of a position without and with variables of `terms`; None where a part has others, too."""
    of_row, of_term = ZERO, ZERO
    for monomial, factor in index.terms:
        part = as_index(factor)
        for atom in monomial:
            part = part * as_index(atom)
        if part.variables.isdisjoint(terms):
            of_row = of_row + part
        elif part.variables <= frozenset(terms):
            of_term = of_term + part
        else:
            return None
    return of_row, of_term
