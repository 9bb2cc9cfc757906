"""Contractions of few results with many terms: each thread keeps the sums of a small tile in registers and takes its
share of the terms, straight from memory.

Nothing is staged, so all loads of a thread are in flight at once. A warp adds up its sums while it deals them out to
its lanes, and a block's warps meet in shared memory once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Expression
from kernel_lsp.generate.codegen.coordinates import name_coordinates
from kernel_lsp.generate.codegen.elements.elementwise import write_stores
from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES, Packing, find_packed
from kernel_lsp.generate.codegen.kernel import RenderedKernel, SharedArray, blocks_of, rendered
from kernel_lsp.generate.codegen.kernel_writer import KernelWriter
from kernel_lsp.generate.codegen.operators import Text
from kernel_lsp.generate.codegen.products.matmul import grid_conditions
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import ContractionGroup
from kernel_lsp.generate.ir.index import Variable, as_index, divide_exactly
from kernel_lsp.generate.ir.scalar import Access, Scalar
from kernel_lsp.generate.ir.scalar_walk import accesses
from kernel_lsp.generate.ir.sizes import to_expression

LOCAL_NAMES = (
    *("m0", "n0", "m", "n", "k", "i", "j", "v", "w", "e", "c", "pack", "lane", "batch", "left", "right", "sums"),
    *("TM", "TN", "WIDTH", "THREADS", "WARPS", "of_warp", "memory", "total"),
)
WARP = 32
REGISTER_TILE_THREADS = (128, 256)
"""Threads per block; more would have too few registers."""
MAX_REGISTERS = 65536
OTHER_REGISTERS = 60
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
    fits = n_registers * schedule.threads <= MAX_REGISTERS and n_registers <= 255
    return dtype != DType.F64 and schedule.n_sums % WARP == 0 and fits


def register_tile_comment(schedule: RegisterTileSchedule, name: str, written: str) -> str:
    """Return the comment above the kernel: a description of its work."""
    return (
        f"Each block computes a {schedule.tile_m} x {schedule.tile_n} tile of {name}. Each thread takes its share of"
        f" the products for all of the tile, in registers; the {schedule.threads} threads add up their sums at the end."
        f" Writes {'the sums' if written == 'them' else written}."
    )


def render_register_tile(
    kernel: KernelWriter, group: ContractionGroup, schedule: RegisterTileSchedule, comment: str
) -> RenderedKernel:
    """Render the kernel of a contraction whose tile is in each thread's registers."""
    return _RegisterTileRenderer(kernel, group, schedule).render(comment)


# --- one kernel


class _RegisterTileRenderer:
    def __init__(self, kernel: KernelWriter, group: ContractionGroup, schedule: RegisterTileSchedule) -> None:
        self.kernel, self.group, self.schedule = kernel, group, schedule
        self.scope = Scope(kernel)
        self.rows, self.columns = kernel.size("M", group.m.extent), kernel.size("N", group.n.extent)
        self.has_batch = group.batch.extent.constant != 1
        self.memory = SharedArray("float", "memory", schedule.threads // WARP * schedule.n_sums, 16)

    def render(self, comment: str) -> RenderedKernel:
        schedule, group = self.schedule, self.group
        self._declare()
        self._multiply()
        self._add_up()
        self._write_results()
        grid: list[Expression] = [
            blocks_of(group.m.extent, schedule.tile_m),
            blocks_of(group.n.extent, schedule.tile_n),
        ]
        conditions: Sequence[Expression] = ()
        if self.has_batch:
            grid.append(to_expression(group.batch.extent))
            conditions = grid_conditions(group.batch.extent)
        return rendered(
            *(self.kernel, comment, self.scope.lines, grid, (schedule.threads,), conditions), memory=self.memory
        )

    @cached_property
    def _packing(self) -> Packing:
        """Return packs of terms as wide as both factors can be read."""
        for width in (8, 4, 2):
            extent = divide_exactly(self.group.k.extent, as_index(width))
            if extent is None:
                continue
            pack, item = Variable("pack", 1 << 20, extent), Variable("v", (1 << 20) + 1, as_index(width))
            packing = Packing(pack, item, width)
            if all(_is_packed(factor, self.group.k, packing) for factor in (self.group.left, self.group.right)):
                return packing
        return Packing(Variable("pack", 1 << 20, self.group.k.extent), Variable("v", (1 << 20) + 1, as_index(1)), 1)

    def _declare(self) -> None:
        scope, schedule, group = self.scope, self.schedule, self.group
        sizes = f"TM = {schedule.tile_m}, TN = {schedule.tile_n}, WIDTH = {self._packing.vector}"
        scope.line(f"constexpr int {sizes}, THREADS = {schedule.threads}, WARPS = THREADS / {WARP};")
        scope.line(self.memory.declaration)
        scope.line("auto of_warp = reinterpret_cast<float (*)[TM * TN]>(memory);")
        scope.line("const int m0 = blockIdx.x * TM, n0 = blockIdx.y * TN;")
        if self.has_batch:
            scope.line("const int batch = blockIdx.z;")
            scope.define(group.batch, "batch")
        name_coordinates(self.kernel, as_index(group.m), group.row_shape)
        names_of_k = [variable.name for variable in group.reduced]
        name_coordinates(self.kernel, as_index(group.k), [v.extent for v in group.reduced], names_of_k)

    def _multiply(self) -> None:
        scope, packing = self.scope, self._packing
        self.kernel.use("packs")
        scope.line("float sums[TM * TN] = {};")
        n_packs = self.kernel.size("n_packs", packing.pack.extent)
        loop = scope.open(f"for (int pack = threadIdx.x; pack < {n_packs}; pack += THREADS)")
        loop.define(packing.pack, "pack")
        loop.line("float left[TM][WIDTH], right[TN][WIDTH];")
        self._read(loop, "left", self.group.left, self.group.m, ("i", "TM", self.rows))
        self._read(loop, "right", self.group.right, self.group.n, ("j", "TN", self.columns))
        loop.line("#pragma unroll")
        rows = loop.open("for (int i = 0; i < TM; ++i)")
        rows.line("#pragma unroll")
        columns = rows.open("for (int j = 0; j < TN; ++j)")
        columns.line("#pragma unroll")
        columns.line("for (int v = 0; v < WIDTH; ++v) sums[i * TN + j] += left[i][v] * right[j][v];")
        columns.close()
        rows.close()
        loop.close()

    def _read(self, scope: Scope, name: str, factor: Scalar, along: Variable, text: tuple[str, str, str]) -> None:
        """Read the factor's part of the terms. Rows past the end repeat the last one; their sums are not written."""
        index, size, limit = text
        scalar = factor.substitute({self.group.k: self._packing.flat})
        scope.line("#pragma unroll")
        rows = scope.open(f"for (int {index} = 0; {index} < {size}; ++{index})")
        rows.line(f"const int {along.name} = min({along.name}0 + {index}, {limit} - 1);")
        rows.define(along, along.name)
        if self._packing.vector == 1:
            rows.define(self._packing.lane, "0")
            rows.line(f"{name}[{index}][0] = {rows.value(scalar).text};")
        else:
            self._read_packs(rows, f"{name}[{index}]", scalar)
        rows.close()

    def _read_packs(self, scope: Scope, target: str, scalar: Scalar) -> None:
        packing = self._packing
        scope.hoist([scalar], [packing.lane])
        packed = find_packed([scalar], packing)
        names = {access.digest: packing.load(scope, access) for access in packed}
        scope.line("#pragma unroll")
        lanes = scope.open("for (int v = 0; v < WIDTH; ++v)")
        lanes.define(packing.lane, "v")
        for access in packed:
            lanes.bind(access, packing.item(names[access.digest], access.dtype))
        lanes.line(f"{target}[v] = {lanes.value(scalar).text};")
        lanes.close()

    def _add_up(self) -> None:
        scope, per_lane = self.scope, self.schedule.n_sums // WARP
        scope.line(f"{self.kernel.use('deal_sums')}<TM * TN / 2, {WARP // 2}>(sums);")
        scope.line(f"const int lane = threadIdx.x % {WARP};")
        scope.line("#pragma unroll")
        place = "lane" if per_lane == 1 else f"lane * {per_lane} + c"
        scope.line(f"for (int c = 0; c < {per_lane}; ++c) of_warp[threadIdx.x / {WARP}][{place}] = sums[c];")
        scope.line("__syncthreads();")

    def _write_results(self) -> None:
        loop = self.scope.open("for (int e = threadIdx.x; e < TM * TN; e += THREADS)")
        loop.line("const int m = m0 + e / TN, n = n0 + e % TN;")
        loop.line(f"if (m >= {self.rows} || n >= {self.columns}) continue;")
        loop.line("float total = of_warp[0][e];")
        loop.line("#pragma unroll")
        loop.line("for (int w = 1; w < WARPS; ++w) total += of_warp[w][e];")
        loop.define(self.group.m, "m")
        loop.define(self.group.n, "n")
        loop.bind(Access(self.group.tensor, self.group.at), Text("total", 20))
        write_stores(loop, self.group.stores)
        loop.close()


def _is_packed(factor: Scalar, k: Variable, packing: Packing) -> bool:
    """Return True if every read of the factor that differs within a pack is a vector load."""
    varying = [access for access in accesses(factor.substitute({k: packing.flat})) if packing.lane in access.variables]
    fits = all(access.dtype.itemsize * packing.vector <= MAX_PACK_BYTES for access in varying)
    return fits and len(find_packed(varying, packing)) == len(varying)
