"""Contractions of few results with many terms: each thread keeps the sums of a small tile in registers and takes its
share of the terms, straight from memory.

Nothing is staged, so all loads of a thread are in flight at once. A warp adds up its sums while it deals them out to
its lanes, and a block's warps meet in shared memory once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.elements.elementwise import write_stores
from kernel_lsp.generate.codegen.elements.packs import Packing, pack_along, read_packs, reads_ahead
from kernel_lsp.generate.codegen.kernel import (
    REGISTERS_PER_BLOCK,
    KernelWriter,
    RenderedKernel,
    SharedArray,
    blocks_of,
    rendered,
)
from kernel_lsp.generate.codegen.operators import Text, loaded
from kernel_lsp.generate.codegen.products.matmul import declare_batch, name_places, with_batch
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import ContractionGroup
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.scalar import Access, Scalar
from kernel_lsp.generate.ir.sizes import divides

_NAMES = """
m0 n0 m n k i j v w e c is_result pack lane batch left right sums TM TN WIDTH THREADS WARPS of_warp memory total
"""
LOCAL_NAMES = tuple(_NAMES.split())
WARP = 32
REGISTER_TILE_THREADS = (128, 256)
"""Threads per block in a shared launch."""
MAX_ROUNDS = 4
OTHER_REGISTERS = 24
"""Estimated registers of a thread besides its sums and factors."""


@dataclass(frozen=True)
class RegisterTileSchedule:
    """A block of `threads` computes `tile_m` x `tile_n` results; each thread has sums of all of them."""

    tile_m: int
    tile_n: int
    threads: int

    @property
    def n_sums(self) -> int:
        return self.tile_m * self.tile_n


def is_valid_register_tile(schedule: RegisterTileSchedule, dtype: DType) -> bool:
    """Check that a warp's lanes share the sums evenly, and that a block's registers suffice."""
    n_registers = schedule.n_sums + 4 * (schedule.tile_m + schedule.tile_n) + OTHER_REGISTERS
    fits = n_registers * schedule.threads <= REGISTERS_PER_BLOCK and n_registers <= 255
    return dtype != DType.F64 and schedule.n_sums % WARP == 0 and fits


def sharing_threads(n_terms: int) -> tuple[int, ...]:
    """Return the numbers of threads that share a tile's terms in a few rounds of one pack per thread."""
    n_packs = -(-n_terms // 4)
    balanced = {-(-n_packs // (rounds * WARP)) * WARP for rounds in range(1, MAX_ROUNDS + 1)}
    return tuple(sorted({*REGISTER_TILE_THREADS, *(n for n in balanced if 64 <= n <= 512)}))


def register_tile_comment(schedule: RegisterTileSchedule, name: str, written: str) -> str:
    """Return the comment above the kernel: a description of its work."""
    return (
        f"Each block computes a {schedule.tile_m} x {schedule.tile_n} tile of {name}. Each thread takes its share of"
        f" the products for all of the tile, in registers; the {schedule.threads} threads add up their sums at the end."
        f" Writes {'the sums' if written == 'them' else written}."
    )


class RegisterTileRenderer:
    def __init__(self, kernel: KernelWriter, group: ContractionGroup, schedule: RegisterTileSchedule) -> None:
        self.kernel, self.group, self.schedule = kernel, group, schedule
        self.scope = Scope(kernel)
        self.rows, self.columns = kernel.size("M", group.m.extent), kernel.size("N", group.n.extent)
        self._loaded: list[tuple[Access, Text]] = []
        self.memory = SharedArray("float", "memory", schedule.threads // WARP * schedule.n_sums, 16)

    def render(self, comment: str) -> RenderedKernel:
        schedule, group = self.schedule, self.group
        self._declare()
        self._find_result()
        self._multiply()
        self._add_up()
        self._write_results()
        grid = [blocks_of(group.m.extent, schedule.tile_m), blocks_of(group.n.extent, schedule.tile_n)]
        grid, conditions = with_batch(group, grid, group.conditions)
        return rendered(
            *(self.kernel, comment, self.scope.lines, grid, (schedule.threads,), conditions), memory=self.memory
        )

    @cached_property
    def _packed(self) -> tuple[Packing, Scalar, Scalar]:
        """Return packs of terms as wide as both factors can be read, and the factors over them."""
        group, k = self.group, self.group.k
        for width in (8, 4, 2, 1):
            left, right = (pack_along(factor, k, width) for factor in (group.left, group.right))
            if left and right:
                return left[0], left[1], right[1]
        raise AssertionError("packs of one element fit every read")

    def _declare(self) -> None:
        scope, schedule, group = self.scope, self.schedule, self.group
        sizes = f"TM = {schedule.tile_m}, TN = {schedule.tile_n}, WIDTH = {self._packed[0].vector}"
        scope.line(f"constexpr int {sizes}, THREADS = {schedule.threads}, WARPS = THREADS / {WARP};")
        scope.line(self.memory.declaration)
        scope.line("auto of_warp = reinterpret_cast<float (*)[TM * TN]>(memory);")
        scope.line("const int m0 = blockIdx.x * TM, n0 = blockIdx.y * TN;")
        declare_batch(scope, group)
        name_places(self.kernel, group)

    def _multiply(self) -> None:
        scope, packing = self.scope, self._packed[0]
        self.kernel.use("packs")
        scope.line("float sums[TM * TN] = {};")
        n_packs = self.kernel.size("n_packs", packing.pack.extent)
        if packing.pack.extent.constant is None or packing.pack.extent.constant > self.schedule.threads:
            with scope.open(f"for (int pack = threadIdx.x; pack < {n_packs}; pack += THREADS)") as loop:
                self._add_products(loop)
            return
        scope.line("const int pack = threadIdx.x;")
        with scope.open(f"if (pack < {n_packs})") as once:
            # Products, not sums with 0: zeros in registers would leave loads waiting for room.
            self._add_products(once, is_only=True)

    def _add_products(self, scope: Scope, *, is_only: bool = False) -> None:
        """Read the factors of a pack of terms and add up their products; the sums of an only pack begin with one."""
        packing, left, right = self._packed
        scope.define(packing.pack, "pack")
        scope.line("float left[TM][WIDTH], right[TN][WIDTH];")
        self._read(scope, "left", left, self.group.m, ("i", "TM", self.rows))
        self._read(scope, "right", right, self.group.n, ("j", "TN", self.columns))
        with scope.unroll("for (int i = 0; i < TM; ++i)", "for (int j = 0; j < TN; ++j)") as columns:
            if is_only:
                columns.line("sums[i * TN + j] = left[i][0] * right[j][0];")
            columns.line("#pragma unroll")
            columns.line(f"for (int v = {int(is_only)}; v < WIDTH; ++v) sums[i * TN + j] += left[i][v] * right[j][v];")

    def _read(self, scope: Scope, name: str, scalar: Scalar, along: Variable, text: tuple[str, str, str]) -> None:
        """Read the factor's part of the terms. Rows past the end repeat the last one; their sums are not written."""
        index, size, limit = text
        with scope.unroll(f"for (int {index} = 0; {index} < {size}; ++{index})") as rows:
            row = f"{along.name}0 + {index}"
            rows.line(f"const int {along.name} = {row if self._is_whole(along) else f'min({row}, {limit} - 1)'};")
            rows.define(along, along.name)
            packing = self._packed[0]
            if packing.vector == 1:
                rows.define(packing.lane, "0")
                rows.line(f"{name}[{index}][0] = {rows.value(scalar).text};")
            else:
                read_packs(rows, f"{name}[{index}]", packing, scalar)

    def _is_whole(self, along: Variable) -> bool:
        """Return True if tiles fit the rows or columns exactly."""
        tile = self.schedule.tile_m if along is self.group.m else self.schedule.tile_n
        return divides(tile, along.extent)

    def _add_up(self) -> None:
        scope, per_lane = self.scope, self.schedule.n_sums // WARP
        scope.line(f"{self.kernel.use('deal_sums')}<TM * TN / 2, {WARP // 2}>(sums);")
        scope.line(f"const int lane = threadIdx.x % {WARP};")
        scope.line("#pragma unroll")
        place = "lane" if per_lane == 1 else f"lane * {per_lane} + c"
        scope.line(f"for (int c = 0; c < {per_lane}; ++c) of_warp[threadIdx.x / {WARP}][{place}] = sums[c];")
        scope.line("__syncthreads();")

    def _find_result(self) -> None:
        """Declare the result that this thread finishes, if any, and load what its epilogue reads."""
        scope, group = self.scope, self.group
        scope.line("const int e = threadIdx.x, m = m0 + e / TN, n = n0 + e % TN;")
        sides = (("m", self.rows, group.m), ("n", self.columns, group.n))
        inside = [f"{name} < {limit}" for name, limit, along in sides if not self._is_whole(along)]
        scope.line(f"const bool is_result = {' && '.join(['e < TM * TN', *inside])};")
        reads = reads_ahead([store.scalar for store in group.stores], (group.batch, group.m, group.n))
        plain = [access for access in reads if access.tensor is not group.tensor]
        names = [scope.names.take(f"{self.kernel.local_name(access.tensor)}_value") for access in plain]
        for name, access in zip(names, plain, strict=True):
            scope.line(f"{access.dtype.cuda_type} {name};")
        if plain:
            with self._open_result() as loads:
                for name, access in zip(names, plain, strict=True):
                    offset = loads.offset(access.tensor, access.index).text
                    loads.line(f"{name} = {self.kernel.pointer(access.tensor)}[{offset}];")
        self._loaded = [(access, loaded(name, access.dtype)) for name, access in zip(names, plain, strict=True)]

    def _open_result(self) -> Scope:
        block = self.scope.open("if (is_result)")
        block.define(self.group.m, "m")
        block.define(self.group.n, "n")
        return block

    def _write_results(self) -> None:
        with self._open_result() as block:
            block.line("float total = of_warp[0][e];")
            block.line("#pragma unroll")
            block.line("for (int w = 1; w < WARPS; ++w) total += of_warp[w][e];")
            for access, text in self._loaded:
                block.bind(access, text)
            block.bind(Access(self.group.tensor, self.group.at), Text("total", 20))
            write_stores(block, self.group.stores)
