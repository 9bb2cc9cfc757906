"""Contractions with too few results to fill a GPU. Threads of a block, and blocks of a cluster, share the products of
one tile, and add up their partial sums.

A block stages whole runs of both factors in shared memory, all loads in flight at once. Groups of threads then take
strided products of the tile; their sums are combined in shared memory, those of a cluster's blocks over its network.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Constant
from kernel_lsp.core.expression_rules import binary
from kernel_lsp.generate.codegen.elements.elementwise import write_stores
from kernel_lsp.generate.codegen.elements.packs import Packing, pack_along, prefetch, read_packs, reads_ahead
from kernel_lsp.generate.codegen.kernel import (
    KernelWriter,
    RenderedKernel,
    SharedArray,
    blocks_of,
    rendered,
)
from kernel_lsp.generate.codegen.operators import ADD, COMPUTE_TYPE, Text
from kernel_lsp.generate.codegen.products.matmul import declare_batch, name_places, runs_along, spread, with_batch
from kernel_lsp.generate.codegen.products.split_schedule import QUAD, SplitSchedule, n_shared_elements
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import ContractionGroup
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import as_index
from kernel_lsp.generate.ir.scalar import Access, Scalar

LOCAL_NAMES = (
    *("m0", "n0", "k0", "k_first", "k_last", "left_tile", "right_tile", "sums", "left", "right", "e", "m", "n", "k"),
    *("i", "j", "s", "q", "v", "row", "col", "batch", "value", "TM", "TN", "TK", "GROUPS", "CLUSTER", "memory"),
    *("of_group", "group", "lane", "pack", "rank", "total", "run", "fetch"),
    *("left_fetched", "right_fetched"),
)


@dataclass(frozen=True)
class _Factor:
    """One factor and its tile. With `is_along_k`, memory is contiguous along k, and so is the tile."""

    scalar: Scalar
    along: Variable
    name: str
    size: str
    limit: str
    thread: int
    tile: int
    is_along_k: bool

    @property
    def variable(self) -> str:
        return self.along.name


class SplitRenderer:
    def __init__(self, kernel: KernelWriter, group: ContractionGroup, schedule: SplitSchedule) -> None:
        self.kernel, self.group, self.schedule = kernel, group, schedule
        self.scope = Scope(kernel)
        self.type = COMPUTE_TYPE[group.tensor.dtype]
        align = 32 if self.type == "double" else 16
        self.align = f"__align__({align})"
        self.memory = SharedArray(self.type, "memory", n_shared_elements(schedule), align)
        self.n_terms = kernel.size("K", group.k.extent)
        rows, columns = kernel.size("M", group.m.extent), kernel.size("N", group.n.extent)
        self.left = _Factor(
            *(group.left, group.m, "left", "TM", rows, schedule.thread_m, schedule.tile_m),
            runs_along(group.left, group.k),
        )
        self.right = _Factor(
            *(group.right, group.n, "right", "TN", columns, schedule.thread_n, schedule.tile_n),
            runs_along(group.right, group.k),
        )

    def render(self, comment: str) -> RenderedKernel:
        schedule, group = self.schedule, self.group
        self._declare()
        self._main_loop()
        self._add_groups()
        self._write_results()
        rows = binary("*", blocks_of(group.m.extent, schedule.tile_m), Constant(schedule.cluster))
        grid, conditions = with_batch(group, [rows, blocks_of(group.n.extent, schedule.tile_n)])
        return rendered(
            *(self.kernel, comment, self.scope.lines, grid, (schedule.threads,), conditions),
            memory=self.memory,
            attributes=(("cluster", schedule.cluster),) if schedule.cluster > 1 else (),
        )

    def _declare(self) -> None:
        scope, schedule = self.scope, self.schedule
        names = f"TM = {schedule.tile_m}, TN = {schedule.tile_n}, TK = {schedule.tile_k}, GROUPS = {schedule.n_groups}"
        scope.line(f"constexpr int {names};")
        scope.line(f"{self.memory.declaration}  // tiles first, sums of groups then")
        scope.line(f"auto left_tile = reinterpret_cast<{self.type} (*)[{self._stride(self.left)}]>(memory);")
        offset = f"{self._depth(self.left)} * ({self._stride(self.left)})"
        scope.line(
            f"auto right_tile = reinterpret_cast<{self.type} (*)[{self._stride(self.right)}]>(memory + {offset});"
        )
        if schedule.cluster > 1:
            scope.line(
                f"const int rank = blockIdx.x % {schedule.cluster};  // in a cluster that shares a tile's products"
            )
            scope.line(f"const int m0 = blockIdx.x / {schedule.cluster} * TM, n0 = blockIdx.y * TN;")
        else:
            scope.line("const int m0 = blockIdx.x * TM, n0 = blockIdx.y * TN;")
        declare_batch(scope, self.group)
        name_places(self.kernel, self.group)
        self._prefetch()
        self._declare_thread()

    def _declare_thread(self) -> None:
        scope, schedule = self.scope, self.schedule
        n_columns = schedule.tile_n // schedule.thread_n
        lane = "threadIdx.x"
        if schedule.n_groups > 1:
            scope.line(f"const int group = threadIdx.x / {schedule.n_lanes}, lane = threadIdx.x % {schedule.n_lanes};")
            lane = "lane"
        scope.line(f"const int row = {lane} / {n_columns}{self._run(self.left)};")
        scope.line(f"const int col = {lane} % {n_columns}{self._run(self.right)};")
        scope.line(f"{self.type} sums[{schedule.thread_m}][{schedule.thread_n}] = {{}};")

    def _run(self, factor: _Factor) -> str:
        """Return the multiplier of a thread's first row. Neighbouring threads take neighbouring rows of a tile along k,
        and runs of neighbours of a tile across it."""
        width = min(factor.thread, QUAD)
        return "" if factor.is_along_k or width == 1 else f" * {width}"

    def _lies_at(self, factor: _Factor, index: str) -> str:
        """Return the offset of a thread's `index`-th row or column from its first."""
        if factor.is_along_k:
            step = factor.tile // factor.thread
            return f"{index} * {step}" if factor.thread > 1 else "0"
        return spread(index, factor.thread, factor.tile)

    def _stride(self, factor: _Factor) -> str:
        pad = self.schedule.row_stride() - self.schedule.tile_k
        return f"TK + {pad}" if factor.is_along_k else f"{factor.size} + {QUAD}"

    def _depth(self, factor: _Factor) -> str:
        return factor.size if factor.is_along_k else "TK"

    def _main_loop(self) -> None:
        scope, schedule, terms = self.scope, self.schedule, self.n_terms
        first, last = "0", terms
        if schedule.cluster > 1:
            length = self._slice_length()
            scope.line(f"const int k_first = rank * {length}, k_last = min(k_first + {length}, {terms});")
            first, last = "k_first", "k_last"
        self._declare_fetched()
        if self._is_one_step():
            scope.line(f"const int k0 = {first};")
            self._fetch(scope, last)
            self._place(scope)
            self._multiply(scope)
            scope.line("__syncthreads();")
            return
        scope.line("// What the next step needs is on its way while this one multiplies.")
        with scope.open("const auto fetch = [&](int k0)") as fetch:
            self._fetch(fetch, last)
        scope.lines[-1] += ";"
        scope.line(f"fetch({first});")
        with scope.open(f"for (int k0 = {first}; k0 < {last}; k0 += TK)") as loop:
            self._place(loop)
            loop.line(f"if (k0 + TK < {last}) fetch(k0 + TK);")
            self._multiply(loop)
            loop.line("__syncthreads();")

    def _is_one_step(self) -> bool:
        return (self._slice_constant() or self.schedule.tile_k + 1) <= self.schedule.tile_k

    def _is_async(self, factor: _Factor) -> bool:
        """Return True if asynchronous copies fill the tile: a thread issues all of them before it waits for any."""
        packed = self._packed(factor)
        scalar = packed[1] if packed else None
        is_plain = isinstance(scalar, Access) and scalar.mask is None and scalar.dtype == DType.F32
        return is_plain and self._is_one_step() and self.type == "float"

    def _slice_constant(self) -> int | None:
        terms = self.group.k.extent.constant
        if terms is None:
            return None
        per_block = -(-terms // self.schedule.cluster)
        return -(-per_block // QUAD) * QUAD if self.schedule.cluster > 1 else per_block

    def _slice_length(self) -> str:
        """Products per block of a cluster, whole quads."""
        constant = self._slice_constant()
        if constant is not None:
            return str(constant)
        step = QUAD * self.schedule.cluster
        return self.scope.declare("length", "int", f"({self.n_terms} + {step - 1}) / {step} * {QUAD}")

    def _declare_fetched(self) -> None:
        """Declare registers for a thread's loads of each tile. All loads are issued before the first is waited for."""
        for factor in (self.left, self.right):
            if self._is_async(factor):
                continue
            if self._packed(factor) is None:
                self.scope.line(f"{self.type} {factor.name}_fetched[{self._n_fetched(factor)}];")
            else:
                self.scope.line(f"Pack<{self.type}, {QUAD}> {factor.name}_fetched[{self._n_fetched(factor)}];")

    def _n_items(self, factor: _Factor) -> int:
        """Packs or elements of a tile."""
        width = 1 if self._packed(factor) is None else QUAD
        return factor.tile * self.schedule.tile_k // width

    def _n_fetched(self, factor: _Factor) -> int:
        return -(-self._n_items(factor) // self.schedule.threads)

    def _open_items(self, scope: Scope, factor: _Factor) -> Scope:
        """Open the loop over the items of a tile that this thread loads."""
        inner = scope.unroll(f"for (int i = 0; i < {self._n_fetched(factor)}; ++i)")
        inner.line(f"const int e = i * {self.schedule.threads} + threadIdx.x;")
        return inner

    def _is_item(self, factor: _Factor) -> str:
        """Return the condition that the item exists, where threads have different numbers of items."""
        n_items = self._n_items(factor)
        return f"e < {n_items}" if n_items % self.schedule.threads else ""

    def _fetch(self, scope: Scope, last: str) -> None:
        """Load both tiles, four neighbours at a time where memory is contiguous."""
        for factor in (self.left, self.right):
            packed = self._packed(factor)
            with self._open_items(scope, factor) as inner:
                if packed is None:
                    self._fetch_single(inner, factor, last)
                else:
                    self._fetch_packs(inner, factor, last, *packed)

    def _place(self, scope: Scope) -> None:
        """Move the loaded values to shared memory."""
        for factor in (self.left, self.right):
            if self._is_async(factor):
                continue
            with self._open_items(scope, factor) as inner:
                is_packed, place = self._packed(factor) is not None, self._tile_place(factor)
                target = f"*packs<{QUAD}>(&{place})" if is_packed else place
                condition = self._is_item(factor)
                prefix = f"if ({condition}) " if condition else ""
                inner.line(f"{prefix}{target} = {factor.name}_fetched[i];")
        if any(map(self._is_async, (self.left, self.right))):
            scope.line(f"{self.kernel.use('wait_async')}();")
        scope.line("__syncthreads();")

    def _tile_place(self, factor: _Factor) -> str:
        """Return the shared-memory location of item `e` of a tile."""
        is_packed = self._packed(factor) is not None
        length = self._tile_along(factor) // (QUAD if is_packed else 1)
        return f"{factor.name}_tile[e / {length}][e % {length}{f' * {QUAD}' if is_packed else ''}]"

    def _packed(self, factor: _Factor) -> tuple[Packing, Scalar] | None:
        """Return the factor over packs, if every read of it that differs within a pack is a vector load."""
        if self._tile_along(factor) % QUAD:
            return None
        return pack_along(factor.scalar, self.group.k if factor.is_along_k else factor.along, QUAD)

    def _tile_along(self, factor: _Factor) -> int:
        return self.schedule.tile_k if factor.is_along_k else factor.tile

    def _fetch_packs(self, scope: Scope, factor: _Factor, last: str, packing: Packing, scalar: Scalar) -> None:
        name, length = factor.variable, self._tile_along(factor) // QUAD
        if factor.is_along_k:
            scope.line(f"const int {name} = {name}0 + e / {length}, pack = k0 / {QUAD} + e % {length};")
            scope.define(factor.along, name)
            guard = f"{name} < {factor.limit} && pack * {QUAD} < {last}"
        else:
            scope.line(f"const int k = k0 + e / {length}, pack = {name}0 / {QUAD} + e % {length};")
            scope.define(self.group.k, "k")
            guard = f"pack * {QUAD} < {factor.limit} && k < {last}"
        scope.define(packing.pack, "pack")
        if self._is_async(factor):
            self._copy_packs(scope, factor, guard, packing, scalar)
            return
        scope.line(f"{factor.name}_fetched[i] = {{}};")
        with scope.open(f"if ({self._and_item(factor, guard)})") as inside:
            read_packs(inside, f"{factor.name}_fetched[i].item", packing, scalar)

    def _copy_packs(self, scope: Scope, factor: _Factor, guard: str, packing: Packing, scalar: Scalar) -> None:
        assert isinstance(scalar, Access)
        first = scalar.substitute({packing.lane: as_index(0)})
        assert isinstance(first, Access)
        source = f"{self.kernel.pointer(first.tensor)} + {scope.offset(first.tensor, first.index).within(ADD)}"
        condition = self._is_item(factor)
        prefix = f"if ({condition}) " if condition else ""
        copy = self.kernel.use("copy_async")
        scope.line(f"{prefix}{copy}<16>(&{self._tile_place(factor)}, {source}, {guard});")

    def _and_item(self, factor: _Factor, guard: str) -> str:
        condition = self._is_item(factor)
        return f"{condition} && {guard}" if condition else guard

    def _fetch_single(self, scope: Scope, factor: _Factor, last: str) -> None:
        name, length = factor.variable, self._tile_along(factor)
        if factor.is_along_k:
            scope.line(f"const int k = k0 + e % {length}, {name} = {name}0 + e / {length};")
        else:
            scope.line(f"const int k = k0 + e / {length}, {name} = {name}0 + e % {length};")
        scope.define(self.group.k, "k")
        scope.define(factor.along, name)
        scope.line(f"{factor.name}_fetched[i] = 0;")
        with scope.open(f"if ({self._and_item(factor, f'{name} < {factor.limit} && k < {last}')})") as guard:
            guard.line(f"{factor.name}_fetched[i] = {guard.value(factor.scalar).text};")

    def _multiply(self, scope: Scope) -> None:
        schedule = self.schedule
        first, step = ("group", "GROUPS") if schedule.n_groups > 1 else ("0", "1")
        with scope.open("#pragma unroll 2", f"for (int q = {first}; q < TK / {QUAD}; q += {step})") as inner:
            inner.line(
                f"{self.align} {self.type} left[{schedule.thread_m}][{QUAD}], right[{schedule.thread_n}][{QUAD}];"
            )
            for factor in (self.left, self.right):
                self._read_quad(inner, factor, "row" if factor is self.left else "col")
            with inner.unroll(
                f"for (int s = 0; s < {QUAD}; ++s)", f"for (int i = 0; i < {schedule.thread_m}; ++i)"
            ) as rows:
                rows.line("#pragma unroll")
                rows.line(f"for (int j = 0; j < {schedule.thread_n}; ++j) sums[i][j] += left[i][s] * right[j][s];")

    def _read_quad(self, scope: Scope, factor: _Factor, first: str) -> None:
        """Read this thread's rows or columns of a tile, four products of each."""
        name, tile, place = factor.name, f"{factor.name}_tile", self._lies_at(factor, "i")
        width = 1 if factor.is_along_k else min(factor.thread, QUAD)
        with scope.unroll(f"for (int i = 0; i < {factor.thread}; {'++i' if width == 1 else f'i += {width}'})") as inner:
            if factor.is_along_k:
                inner.line(f"*packs<{QUAD}>({name}[i]) = *packs<{QUAD}>(&{tile}[{first} + {place}][q * {QUAD}]);")
            else:
                with inner.unroll(f"for (int s = 0; s < {QUAD}; ++s)") as products:
                    at = f"{tile}[q * {QUAD} + s][{first} + {place}]"
                    products.line(f"const Pack<{self.type}, {width}> run = *packs<{width}>(&{at});")
                    products.line("#pragma unroll")
                    products.line(f"for (int v = 0; v < {width}; ++v) {name}[i + v][s] = run.item[v];")

    def _add_groups(self) -> None:
        """Store every group's sums of the tile in shared memory."""
        scope, schedule = self.scope, self.schedule
        scope.line(f"auto of_group = reinterpret_cast<{self.type} (*)[TM * TN]>(memory);")
        with scope.unroll(f"for (int i = 0; i < {schedule.thread_m}; ++i)") as rows:
            rows.line("#pragma unroll")
            place = f"(row + {self._lies_at(self.left, 'i')}) * TN + col + {self._lies_at(self.right, 'j')}"
            group = "group" if schedule.n_groups > 1 else "0"
            rows.line(f"for (int j = 0; j < {schedule.thread_n}; ++j) of_group[{group}][{place}] = sums[i][j];")
        scope.line("__syncthreads();")

    def _write_results(self) -> None:
        schedule, scope = self.schedule, self.scope
        if schedule.cluster > 1:
            self._write_cluster()
            return
        with scope.open(self._own_elements()) as inner:
            self._sum_of_groups(inner)
            self._write_result(inner)

    def _sum_of_groups(self, scope: Scope) -> None:
        scope.line(f"{self.type} total = of_group[0][e];")
        if self.schedule.n_groups > 1:
            scope.line("#pragma unroll")
            scope.line("for (int i = 1; i < GROUPS; ++i) total += of_group[i][e];")

    def _write_cluster(self) -> None:
        """Finish a part of the tile in each block of a cluster. The order of sums is the same in all parts."""
        schedule, scope = self.schedule, self.scope
        threads, n_blocks = schedule.threads, schedule.cluster
        with scope.open(f"for (int e = threadIdx.x; e < TM * TN; e += {threads})") as inner:
            self._sum_of_groups(inner)
            inner.line("of_group[GROUPS][e] = total;")
        scope.line(f"{self.kernel.use('cluster_sync')}();")
        with scope.open(self._own_elements()) as last:
            last.line(f"{self.type} total = 0;")
            last.line("#pragma unroll")
            last.line(f"for (int i = 0; i < {n_blocks}; ++i) total += read_peer(&of_group[GROUPS][e], i);")
            self._write_result(last)
        scope.line("cluster_sync();  // no block may end while another reads its sums")

    def _own_elements(self) -> str:
        """Open the loop over the elements that this thread finishes: the block's own, or its share of the cluster's
        tile."""
        threads, n_blocks = self.schedule.threads, self.schedule.cluster
        if n_blocks == 1:
            return f"for (int e = threadIdx.x; e < TM * TN; e += {threads})"
        share = self.schedule.tile_m * self.schedule.tile_n // n_blocks
        return f"for (int e = rank * {share} + threadIdx.x; e < (rank + 1) * {share}; e += {threads})"

    def _prefetch(self) -> None:
        """Prefetch the operands of the epilogue other than the sums."""
        scalars = [store.scalar for store in self.group.stores]
        reads = reads_ahead(scalars, (self.group.batch, self.group.m, self.group.n))
        plain = [access for access in reads if access.tensor is not self.group.tensor]
        if not plain:
            return
        with self.scope.open(self._own_elements()) as inner:
            inner.line("const int m = m0 + e / TN, n = n0 + e % TN;")
            inner.define(self.group.m, "m")
            inner.define(self.group.n, "n")
            with inner.open(f"if (m < {self.left.limit} && n < {self.right.limit})") as guard:
                prefetch(guard, plain)

    def _write_result(self, scope: Scope) -> None:
        scope.line("const int m = m0 + e / TN, n = n0 + e % TN;")
        scope.line(f"if (m >= {self.left.limit} || n >= {self.right.limit}) continue;")
        scope.define(self.group.m, "m")
        scope.define(self.group.n, "n")
        scope.bind(Access(self.group.tensor, self.group.at), Text("total", 20))
        write_stores(scope, self.group.stores)
