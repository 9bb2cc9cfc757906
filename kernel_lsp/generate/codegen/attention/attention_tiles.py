"""Tiles of an attention's factors in shared memory, and the scores of a warp's rows with those of a tile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Expression
from kernel_lsp.core.expression_rules import binary
from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES, Packing, find_packed
from kernel_lsp.generate.codegen.kernel import KernelWriter, blocks_of, name_coordinates
from kernel_lsp.generate.codegen.operators import AND, ATOM, MULTIPLY, UNARY, Text, convert, stored
from kernel_lsp.generate.codegen.rows.row_schedule import WARP
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import AttentionGradientGroup, AttentionGroup
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.scalar import Access, Argument, Scalar, accesses, nodes
from kernel_lsp.generate.ir.sizes import to_expression
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.generate.structure.attention_patterns import PRODUCT, condition_of_seen, last_key_of, score_of_seen

ROWS_PER_WARP = 16
MIN_COLUMNS = 16
MAX_BITS = 64
"""Maximum columns of a tile whose entries a lane counts in 32 bits: it has half as many."""
KINDS = {DType.F32: "f32", DType.F16: "f16", DType.BF16: "bf16"}


@dataclass(frozen=True)
class TileSchedule:
    """Tile sizes: `warps` of 16 rows each per block, which owns them; `columns` per tile of what it loops over.
    Registers leave room for `resident` blocks on a multiprocessor. With `uses_warpgroups`, four warps multiply
    together, by `wgmma`, and `copying` others copy tiles."""

    warps: int
    columns: int
    resident: int = 1
    uses_warpgroups: bool = False
    copying: int = 0


def default_schedule(
    group: AttentionGroup | AttentionGradientGroup,
    workload: Workload,
    fits: Callable[[TileSchedule], bool],
) -> TileSchedule:
    """Return tiles that fit, of the fewest rows that fill the GPU, and of no more columns than there are."""
    rows, columns = group.m.extent, group.key.extent
    if isinstance(group, AttentionGradientGroup) and not group.is_by_query:
        rows, columns = columns, rows
    warps, wanted = 4, 64
    if group.value.dtype == DType.F32:  # 3305 us with 16 keys and 3477 with 32, of 16384 causal queries on an H200
        wanted = 16 if isinstance(group, AttentionGroup) else 32
    while wanted > MIN_COLUMNS and wanted > workload.size(columns):  # shorter to compile
        wanted //= 2
    n_rows, n_batch = workload.size(rows), workload.size(group.batch.extent)
    while warps > 1 and -(-n_rows // (warps * ROWS_PER_WARP)) * n_batch < workload.n_multiprocessors:
        warps //= 2
    sizes = (max(wanted, MIN_COLUMNS), max(wanted // 2, MIN_COLUMNS), MIN_COLUMNS)
    return next(schedule for size in sizes if fits(schedule := TileSchedule(warps, size)))


@dataclass(frozen=True)
class TileAxis:
    """Queries or keys: their variable, its name, the first one of a tile, the size of a tile, and their number."""

    variable: Variable
    name: str
    start: str
    size: str
    limit: str


class TileRenderer(ABC):
    """Renders what the kernels of an attention share. A block has the rows of one tile along `rows`, 16 per warp, and
    loops over tiles along `columns`."""

    def __init__(
        self, kernel: KernelWriter, group: AttentionGroup | AttentionGradientGroup, schedule: TileSchedule
    ) -> None:
        self.kernel, self.group, self.schedule = kernel, group, schedule
        self.n_rows, self.n_threads = schedule.warps * ROWS_PER_WARP, schedule.warps * WARP
        self.scope = Scope(kernel)
        self.dtype = group.value.dtype
        self.kind = KINDS[self.dtype]
        self.n_queries = kernel.size("n_queries", group.m.extent)
        self.n_keys = kernel.size("n_all_keys", group.key.extent)

    @property
    @abstractmethod
    def rows(self) -> TileAxis:
        """Return what a block owns."""

    @property
    @abstractmethod
    def columns(self) -> TileAxis:
        """Return what a block loops over."""

    def _grid(self) -> Expression:
        """Return the number of blocks."""
        n_tiles = blocks_of(self.rows.variable.extent, self.n_rows)
        return binary("*", n_tiles, to_expression(self.group.batch.extent))

    def _declare_batch(self) -> None:
        """Declare the block's item of the batch."""
        if self.group.batch.extent.constant == 1:
            self.scope.define(self.group.batch, "0")
            return
        self.scope.line(f"const {self.kernel.index_type} batch = blockIdx.x / n_tiles;")
        self.scope.define(self.group.batch, "batch")

    def _open_results(self, size: str, column: Variable) -> Scope:
        """Open the loop over a lane's results, and in it the condition that their row exists."""
        fragment, rows = self.open_fragment(self.scope, size), self.rows
        fragment.line(f"const {self.kernel.index_type} {rows.name} = row + c / 2 * 8;")
        fragment.line("const int col = n * 8 + lane % 4 * 2 + c % 2;")
        guard = fragment.open(f"if ({rows.name} < {rows.limit})", closes_this=True)
        guard.define(rows.variable, rows.name)
        guard.define(column, "col")
        return guard

    def last_key(self) -> Index | None:
        """Return c where no query m sees a key beyond m + c; None where there is no such number."""
        last = last_key_of(self.group.score, self.group.m, self.group.key)
        return last if last is not None and not last.variables else None

    def shifted(self, text: str, shift: Index, sign: str = "+") -> str:
        """Return the text of a position plus or minus a shift."""
        return text if shift == as_index(0) else f"{text} {sign} {self.scope.index(shift).within(ATOM)}"

    def load_tile(
        self,
        scope: Scope,
        scalar: Scalar,
        axis: TileAxis,
        column: Variable,
        start: str,
        to: str,
        n_rows: int,
        threads: tuple[str, str] | None = None,
    ) -> None:
        """Copy rows of a factor, from `start` on, to shared memory in packs; rows out of bounds are zeros.

        `to` is the address of element `{place}` of row `{row}`. `threads` are the number of a thread and their count.
        """
        vector = MAX_PACK_BYTES // self.dtype.itemsize
        n_packs = int(column.extent.constant or 0) // vector
        packing = Packing(
            Variable("pack", 1 << 20, as_index(n_packs)), Variable("v", (1 << 20) + 1, as_index(vector)), vector
        )
        body = scalar.substitute({column: packing.flat})
        scope.line("#pragma unroll" if threads is None else "#pragma unroll 4")
        thread, n_threads = threads or ("threadIdx.x", str(self.n_threads))
        with scope.open(f"for (int e = {thread}; e < {n_rows * n_packs}; e += {n_threads})") as loop:
            begin = "" if start == "0" else f"{start} + "
            loop.line(f"const {self.kernel.index_type} {axis.name} = {begin}e / {n_packs};")
            loop.line(f"const int pack = e % {n_packs};")
            loop.define(axis.variable, axis.name)
            loop.define(packing.pack, "pack")
            to = to.format(row=f"e / {n_packs}", place=f"pack * {vector}")
            packed = find_packed([body], packing)
            if body.digest in [access.digest for access in packed]:
                address = packing.address(loop, packed[0])
                loop.line(f"copy_async<16>({to}, {address}, {axis.name} < {axis.limit});")
            else:
                self._write_pack(loop, body, packing, packed, f"{axis.name} < {axis.limit}", to)

    def _write_pack(
        self, scope: Scope, body: Scalar, packing: Packing, packed: list[Access], condition: str, to: str
    ) -> None:
        type_ = f"Pack<{self.dtype.cuda_type}, {packing.vector}>"
        scope.line(f"{type_} part{{}};")
        with scope.open(f"if ({condition})") as inner:
            self._compute_pack(inner, body, packing, {access: packing.load(inner, access) for access in packed})
        scope.line(f"*reinterpret_cast<{type_}*>({to}) = part;")

    def _compute_pack(self, scope: Scope, body: Scalar, packing: Packing, packs: Mapping[Access, str]) -> None:
        with scope.unroll(f"for (int v = 0; v < {packing.vector}; ++v)") as lane:
            lane.define(packing.lane, "v")
            for access, name in packs.items():
                lane.bind(access, packing.item(name, access.dtype))
            lane.line(f"part.item[v] = {stored(lane.value(body), body.dtype, self.dtype)};")

    def write_scores(self, scope: Scope) -> None:
        """Apply the user's scale and mask to the products. A tile within bounds, of which every query sees every key,
        needs no mask."""
        group, rows, columns = self.group, self.rows, self.columns
        self.redo_products(scope, "scores", (group.query_part, group.key_part), group.head)
        seen = score_of_seen(group.score, group.m, group.key)
        if seen is None:
            scope.line("bool is_seen = false;  // by any query")
            self._write_masked_scores(scope)
            return
        conditions = [f"{axis.start} + {axis.size} <= {axis.limit}" for axis in (columns, rows)]
        last = self.last_key()
        if last is not None:
            key, m = (columns, rows) if columns.name == "key" else (rows, columns)
            conditions.append(f"{key.start} + {key.size} - 1 <= {self.shifted(m.start, last)}")
        elif last_key_of(group.score, group.m, group.key) is not None:
            conditions = ["false"]
        scope.line(f"bool is_seen = {' && '.join(conditions)};  // by every query; else: by any")
        if next(accesses(seen), None) is None:
            self._write_score_of_seen(scope, seen)
            with scope.open("if (!is_seen)") as rest:
                self._write_mask(rest)
            return
        with scope.open("if (is_seen)") as whole:
            self._write_score_of_seen(whole, seen)
        with scope.open("else") as rest:
            self._write_masked_scores(rest)

    def _write_score_of_seen(self, scope: Scope, seen: Scalar) -> None:
        with self.open_fragment(scope, self.columns.size) as inner:
            self.declare_place(inner)
            inner.line(f"scores[n][c] = {self._score(inner, seen)};")

    def _write_mask(self, scope: Scope) -> None:
        """Hide the scores of keys that a query does not see, and those out of bounds."""
        self._hide_lane(scope)
        with self.open_fragment(scope, self.columns.size) as inner:
            self.declare_place(inner)
            condition = condition_of_seen(self.group.score)
            seen = "" if condition is None else f" && {inner.value(condition).within(AND)}"
            inner.line(f"if (!(m < {self.n_queries} && key < {self.n_keys}{seen})) scores[n][c] = -CUDART_INF_F;")
            inner.line("is_seen |= scores[n][c] != -CUDART_INF_F;")

    def _hide_lane(self, scope: Scope) -> None:
        """Declare the lane anew, so that what follows from it takes no registers in the loop around a rare branch."""
        scope.line(f"const int lane = {self.kernel.use('opaque')}(threadIdx.x % 32);")

    def declare_place(self, scope: Scope) -> None:
        rows, columns = self.rows, self.columns
        row, column = "row + c / 2 * 8", f"{columns.start} + n * 8 + lane % 4 * 2 + c % 2"
        scope.line(f"const {self.kernel.index_type} {rows.name} = {row}, {columns.name} = {column};")
        scope.define(rows.variable, rows.name)
        scope.define(columns.variable, columns.name)
        name_coordinates(self.kernel, as_index(self.group.batch), ())

    def _write_masked_scores(self, scope: Scope) -> None:
        with self.open_fragment(scope, self.columns.size) as inner:
            self.declare_place(inner)
            inner.line("float score = -CUDART_INF_F;  // out of bounds")
            with inner.open(f"if (m < {self.n_queries} && key < {self.n_keys})") as guard:
                guard.line(f"score = {self._score(guard, self.group.score)};")
            inner.line("scores[n][c] = score;")
            inner.line("is_seen |= score != -CUDART_INF_F;")

    def _score(self, scope: Scope, score: Scalar) -> str:
        product = "scores[n][c]"
        for node in nodes(score):
            if isinstance(node, Argument) and node.name == PRODUCT:
                scope.bind(node, convert(Text(product, ATOM), DType.F32, node.dtype))
        return scope.value(score).text

    def redo_products(self, scope: Scope, name: str, factors: tuple[Scalar, Scalar], term: Variable) -> None:
        """Recompute products of infinities in f32: an infinity cannot be split into TF32 parts. The loops stay out of
        the way of ordinary tiles, whose registers they would take."""
        if self.kind != "f32":
            return
        probe = f"{name}_probe"
        scope.line(f"float {probe} = 0.0f;  // NaN where a product is not finite")
        with self.open_fragment(scope, self.columns.size) as inner:
            inner.line(f"{probe} = fmaf({name}[n][c], 0.0f, {probe});")
        with scope.open(f"if ({probe} != 0.0f)") as redo:
            self._hide_lane(redo)
            is_wide = self.schedule.columns > MAX_BITS
            bits, suffix, first = ("unsigned long long", "ull", "__ffsll") if is_wide else ("unsigned", "u", "__ffs")
            redo.line(f"{bits} odd = 0;  // a bit for each")
            with self.open_fragment(redo, self.columns.size) as inner:
                inner.line(f"odd |= isfinite({name}[n][c]) ? 0{suffix} : 1{suffix} << (n * 4 + c);")
            with redo.open("#pragma unroll 1", "for (; odd != 0; odd &= odd - 1)") as each:
                each.line(f"const int e = {first}(odd) - 1;")
                self._write_redone(each, factors, term)
                with self.open_fragment(each, self.columns.size) as inner:
                    inner.line(f"{name}[n][c] = n * 4 + c == e ? product : {name}[n][c];")

    def _write_redone(self, scope: Scope, factors: tuple[Scalar, Scalar], term: Variable) -> None:
        scope.line("const int n = e / 4, c = e % 4;")
        self.declare_place(scope)
        scope.line(f"if (m >= {self.n_queries} || key >= {self.n_keys}) continue;")
        scope.line("float product = 0.0f;  // the parts of an infinity are no numbers")
        with scope.open("#pragma unroll 1", f"for (int d = 0; d < {term.extent.constant}; ++d)") as loop:
            loop.define(term, "d")
            left, right = loop.values(list(factors))
            loop.line(f"product += {left.within(MULTIPLY)} * {right.within(UNARY)};")

    def open_fragment(self, scope: Scope, size: str) -> Scope:
        """Open the loops over the entries of a warp's fragments of `size` columns."""
        return scope.unroll(f"for (int n = 0; n < {size} / 8; ++n)", "for (int c = 0; c < 4; ++c)")


def padded(first: str) -> str:
    """Return the address of an element in an array `tiles` of padded rows, from row `first` on."""
    return f"&tiles[{first}{{row}}][{{place}}]"


def stride_of(group: AttentionGroup | AttentionGradientGroup, *columns: Variable) -> int:
    """Return the elements between rows of a tile: 16 bytes more than a row, which is a multiple of 32 or 64 bytes."""
    widest = max(int(variable.extent.constant or 0) for variable in columns)
    return widest + MAX_PACK_BYTES // group.value.dtype.itemsize
