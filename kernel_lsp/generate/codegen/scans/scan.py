"""Scans along rows: sums, products, extrema with their positions, log-sum-exps.

If memory is contiguous along a row, warps take consecutive elements in packs and combine by shuffles. Otherwise
consecutive threads take different rows, and threads that share a row combine through shared memory. A tile is the part
of a row that its threads process at once. One block walks a row's tiles in turn, or each tile has a block of its own;
such blocks pass the prefix on through `zeroed` words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Constant, Expression
from kernel_lsp.core.expression_rules import binary
from kernel_lsp.generate.codegen.elements.packs import Packing, find_packed
from kernel_lsp.generate.codegen.kernel import (
    KernelWriter,
    RenderedKernel,
    blocks_of,
    divisible,
    name_coordinates,
    rendered,
)
from kernel_lsp.generate.codegen.operators import ATOM, Text, convert, loaded, stored
from kernel_lsp.generate.codegen.rows.row_schedule import WARP
from kernel_lsp.generate.codegen.scans.scan_schedule import OPERATORS, ScanSchedule, ScanState
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import ScanGroup, Store
from kernel_lsp.generate.fusion.scans import POSITIONS, RUNNING, RUNNING_POSITION
from kernel_lsp.generate.ir.atoms import Atom, Symbol, Variable
from kernel_lsp.generate.ir.index import Index, as_index, divide_exactly
from kernel_lsp.generate.ir.scalar import Access, Argument, Scalar, nodes
from kernel_lsp.generate.ir.sizes import to_expression

_PLACES = ("row", "my_row", "is_row", "col", "pack", "v", "item", "tile", "place", "number", "n_tiles", "offset")
LOCAL_NAMES = (*_PLACES, "value", "start", "total", "carry", "before")
RUNNING_NAMES = {"sum": "sum", "prod": "product", "logsumexp": "log_sum", "max": "largest", "min": "smallest"}


def render_scan(kernel: KernelWriter, group: ScanGroup, schedule: ScanSchedule, comment: str) -> RenderedKernel:
    """Return the kernel of a scan."""
    layout = _Rows if group.is_column_contiguous else _SideBySide
    return layout(kernel, group, schedule).render(comment)


class _Layout(ABC):
    """Base class of scan kernels. Subclasses assign elements to threads."""

    def __init__(self, kernel: KernelWriter, group: ScanGroup, schedule: ScanSchedule) -> None:
        self.kernel, self.group, self.schedule = kernel, group, schedule
        self.state = ScanState.of(group)
        self.scope = Scope(kernel)
        self.packing = _packing(group.column.extent, schedule.vector)
        self.body = group.scalar.substitute({group.column: self.packing.flat})
        self.stores = self.packing.substituted(group.stores, group.column)
        kernel.use(OPERATORS[group.kind])

    def render(self, comment: str) -> RenderedKernel:
        place = self._begin_chain() if self.schedule.chained else ""
        self._begin_row(place)
        self.scope.hoist([self.body, *(store.scalar for store in self.stores)], [self.packing.pack, self.packing.lane])
        self._declare_offset()
        if self.schedule.chained:
            self._tile(self.scope)
        else:
            self._walk()
        conditions = divisible(self.group.column.extent, self.schedule.vector)
        return rendered(self.kernel, comment, self.scope.lines, (self._grid(),), self._block(), conditions)

    def _walk(self) -> None:
        """Walk the tiles of a row in turn, by one block."""
        self.scope.line(f"{self.state.carry} carry = {self.state.carry_operator}::identity();")
        type_, limit = self.kernel.index_type, self._limit()
        with self.scope.open(f"for ({type_} tile = 0; tile < {limit}; tile += {self._tile_packs})") as inner:
            self._tile(inner)
            inner.line(f"carry = {_combined(self.group.kind, self.state.carry_operator, 'carry', 'total')};")

    def _tile(self, scope: Scope) -> None:
        """Load a tile, scan it, combine it with its prefix, store it."""
        n_values = self.schedule.items * self.schedule.vector
        scope.line(f"{self.state.state} value[{n_values}];")
        self._items(scope, self._load)
        scope.line(f"{self.state.state} start;  // of the tile's elements before those of this {self._owner}")
        scope.line(f"const {self.state.state} total = {self._scan_call()};")
        carry = self._look_back() if self.schedule.chained else "carry"
        if self.schedule.chained:
            scope.line(f"const {self.state.carry} carry = {carry};")
        before = _combined(self.group.kind, self.state.carry_operator, "carry", "start")
        if self.state.carry != self.state.state:
            before = f"({self.state.state})({before})"
        scope.line(f"const {self.state.state} before = {before};")
        self._items(scope, self._store)

    def _items(self, scope: Scope, write: Callable[[Scope], None]) -> None:
        """Open a loop over this thread's packs of a tile."""
        with scope.unroll(f"for (int item = 0; item < {self.schedule.items}; ++item)") as inner:
            name = self.packing.pack.name
            inner.line(f"const {self.kernel.index_type} {name} = {self._position()};")
            inner.define(self.packing.pack, name)
            name_coordinates(self.kernel, self.packing.flat, (self.group.column.extent,))
            write(inner)

    def _load(self, scope: Scope) -> None:
        inner = scope
        if self._may_overhang():
            self._fill_identity(scope)
            inner = scope.open(f"if ({self.packing.pack.name} < {self._limit()})")
        packed = self._packed([self.body])
        names = {access.digest: self.packing.load(inner, access) for access in packed}
        lane = self._open_lanes(inner)
        for access in packed:
            item = self.packing.item_of(names[access.digest], access.tensor, access.index)
            lane.bind(access, loaded(item, access.dtype))
        text = lane.value(self.body).text
        if self.group.kind in POSITIONS:
            is_narrowed = self.kernel.index_type == "long long" and ", int>" in self.state.state
            position = lane.index(self.packing.flat)
            text = f"{{{text}, {f'(int){position.within(ATOM)}' if is_narrowed else position.text}}}"
        lane.line(f"value[{self._slot()}] = {text};")
        self._close(scope, inner, lane)

    def _fill_identity(self, scope: Scope) -> None:
        lane = self._open_lanes(scope)
        lane.line(f"value[{self._slot()}] = {self.state.operator}::identity();")
        if lane is not scope:
            lane.close()

    def _store(self, scope: Scope) -> None:
        guard = self._store_guard()
        inner = scope.open(f"if ({guard})") if guard else scope
        scalars = [store.scalar for store in self.stores]
        packed = self._packed(scalars)
        names = {access.digest: self.packing.load(inner, access) for access in packed}
        targets = [self._declare_result(inner, store) for store in self.stores]
        lane = self._open_lanes(inner)
        for access in packed:
            item = self.packing.item_of(names[access.digest], access.tensor, access.index)
            lane.bind(access, loaded(item, access.dtype))
        self._bind_running(lane, scalars)
        for store, target, text in zip(self.stores, targets, lane.values(scalars), strict=True):
            value = stored(text, store.scalar.dtype, store.tensor.dtype)
            if target is None:
                offset = lane.offset(store.tensor, store.index).text
                lane.line(f"{self.kernel.target(store.tensor)}[{offset}] = {value};")
            else:
                lane.line(f"{self.packing.item_of(target, store.tensor, store.index)} = {value};")
        if lane is not inner:
            lane.close()
        for store, target in zip(self.stores, targets, strict=True):
            if target is not None:
                self.packing.store(inner, store, target)
        if inner is not scope:
            inner.close()

    def _bind_running(self, scope: Scope, scalars: Sequence[Scalar]) -> None:
        """Bind the running value of the element to the name that the stores use."""
        kind = self.group.kind
        text = _combined(kind, self.state.operator, "before", f"value[{self._slot()}]")
        wanted = RUNNING_NAMES[POSITIONS.get(kind, kind)]
        if self.kernel.is_parameter(wanted):
            wanted = f"{wanted}_value"
        name = scope.declare(wanted, self.state.state, text)
        dtype = self.group.scalar.dtype
        texts = {RUNNING: (name, dtype)}
        if kind in POSITIONS:
            texts = {RUNNING: (f"{name}.value", dtype), RUNNING_POSITION: (f"{name}.position", DType.I64)}
        for node in nodes(*scalars):
            if isinstance(node, Argument):
                running, own = texts[node.name]
                scope.bind(node, convert(Text(running, ATOM), own, node.dtype))

    def _packed(self, scalars: Sequence[Scalar]) -> list[Access]:
        return find_packed(scalars, self.packing) if self.schedule.vector > 1 else []

    def _declare_result(self, scope: Scope, store: Store) -> str | None:
        return self.packing.declare_result(scope, store) if self.schedule.vector > 1 else None

    def _open_lanes(self, scope: Scope) -> Scope:
        if self.schedule.vector == 1:
            return scope
        inner = scope.unroll(f"for (int v = 0; v < {self.schedule.vector}; ++v)")
        inner.define(self.packing.lane, "v")
        return inner

    def _close(self, outer: Scope, *inner: Scope) -> None:
        for scope in reversed(dict.fromkeys(inner)):
            if scope is not outer:
                scope.close()

    def _slot(self) -> str:
        return "item" if self.schedule.vector == 1 else f"item * {self.schedule.vector} + v"

    @property
    def _tile_packs(self) -> int:
        return self.schedule.threads * self.schedule.items

    def _limit(self) -> str:
        """Return the number of packs of a row."""
        name = "n_packs" if self.schedule.vector > 1 else "n_columns"
        return self.kernel.size(name, self.packing.pack.extent)

    def _may_overhang(self) -> bool:
        """Return True if the last tile of a row may exceed the remaining columns."""
        n_columns = self.group.column.extent.constant
        return n_columns is None or n_columns % (self._tile_packs * self.schedule.vector) != 0

    def _n_tiles(self, per_tile: int = 1) -> Expression:
        return blocks_of(self.group.column.extent, self._tile_packs * self.schedule.vector * per_tile)

    def _n_tiles_text(self) -> str:
        limit = self._limit()
        if limit.isdigit():
            return str(-(-int(limit) // self._tile_packs))
        return f"({limit} + {self._tile_packs - 1}) / {self._tile_packs}"

    def _declare_row(self, text: str) -> None:
        if self.kernel.index_type == "long long":
            text = f"(long long){text}"
        self.scope.line(f"const {self.kernel.index_type} row = {text};")
        self._define_row("row")

    def _define_row(self, text: str) -> None:
        self.scope.define(self.group.row, text)
        if text == "0":
            self.scope.named[as_index(self.group.row).digest] = Text("0", ATOM)
        name_coordinates(self.kernel, as_index(self.group.row), self.group.row_shape)

    def _begin_chain(self) -> str:
        """Take a ticket in the order in which blocks start, and derive the tile from it."""
        per_group = self._tiles_per_group()
        n_messages = binary("+", self._n_tiles(), self._n_tiles(per_group))
        n_words = binary(
            "*", binary("*", to_expression(self.group.row.extent), n_messages), Constant(self.state.n_words)
        )
        self.words = self.kernel.zeroed_words("words", binary("+", n_words, Constant(1)))
        self.scope.line(f"const int place = take_place({self.words});")
        return self._divide_place()

    def _divide_place(self) -> str:
        """Declare `tile`; return the text of the row, or of the first row of the block."""
        n_rows = self._n_row_blocks_text()
        type_ = self.kernel.index_type
        number = "place" if n_rows == "1" else f"place / {n_rows}"
        comment = "" if n_rows == "1" else "  // rows take turns"
        self.scope.line(f"const int n_tiles = {self._n_tiles_text()}, number = {number};{comment}")
        self.scope.line(f"const {type_} tile = ({type_})number * {self._tile_packs};".replace("(int)", ""))
        return "0" if n_rows == "1" else f"place % {n_rows}"

    _owner: str

    @abstractmethod
    def _begin_row(self, place: str) -> None: ...

    @abstractmethod
    def _declare_offset(self) -> None: ...

    @abstractmethod
    def _position(self) -> str: ...

    @abstractmethod
    def _scan_call(self) -> str: ...

    @abstractmethod
    def _look_back(self) -> str: ...

    @abstractmethod
    def _store_guard(self) -> str: ...

    @abstractmethod
    def _tiles_per_group(self) -> int: ...

    @abstractmethod
    def _n_row_blocks_text(self) -> str: ...

    def _grid(self) -> Expression:
        n_blocks = blocks_of(self.group.row.extent, self.schedule.rows)
        return binary("*", n_blocks, self._n_tiles()) if self.schedule.chained else n_blocks

    @abstractmethod
    def _block(self) -> tuple[int, ...]: ...


class _Rows(_Layout):
    _owner = "warp"

    def _begin_row(self, place: str) -> None:
        rows = self.schedule.rows
        if self.group.row.extent.constant == 1:
            self._define_row("0")
        elif rows == 1:
            self._declare_row(place or "blockIdx.x")
        else:
            self._declare_row(f"blockIdx.x * {rows} + threadIdx.y")
            self.scope.line(f"if (row >= {self.kernel.size('n_rows', self.group.row.extent)}) return;")

    def _declare_offset(self) -> None:
        """Declare the offset: each warp has `items` consecutive runs of 32 packs."""
        run = WARP * self.schedule.items
        text = f"threadIdx.x / 32 * {run} + threadIdx.x % 32" if self.schedule.threads > WARP else "threadIdx.x"
        self.scope.line(f"const int offset = {text};  // of this thread's first {self.packing.pack.name} in a tile")

    def _position(self) -> str:
        return f"tile + offset + item * {WARP}"

    def _scan_call(self) -> str:
        self._use_shuffles()
        schedule = self.schedule
        exclusive = "true" if self.group.is_exclusive else "false"
        sizes = f"{schedule.threads}, {schedule.items}, {schedule.vector}, {exclusive}"
        return f"tile_scan<{self.state.operator}, {sizes}>(value, start)"

    def _use_shuffles(self) -> None:
        if self.group.kind in POSITIONS:
            self.kernel.use("shuffle_extreme")

    def _look_back(self) -> str:
        row = "0" if self.group.row.extent.constant == 1 else "row"
        return f"look_back<{self.state.carry_operator}>({self.words} + 1, {row}, n_tiles, number, total)"

    def _store_guard(self) -> str:
        return f"{self.packing.pack.name} < {self._limit()}" if self._may_overhang() else ""

    def _tiles_per_group(self) -> int:
        return WARP

    def _n_row_blocks_text(self) -> str:
        return self.kernel.size("n_rows", self.group.row.extent)

    def _block(self) -> tuple[int, ...]:
        return (self.schedule.threads, self.schedule.rows) if self.schedule.rows > 1 else (self.schedule.threads,)


class _SideBySide(_Layout):
    _owner = "thread"

    def _begin_row(self, place: str) -> None:
        width = self.schedule.rows
        n_rows = self.kernel.size("n_rows", self.group.row.extent)
        type_ = self.kernel.index_type
        cast = "(long long)" if type_ == "long long" else ""
        block = f"({place})" if place else "blockIdx.x"
        self.scope.line(f"const {type_} my_row = {cast}{block} * {width} + threadIdx.x;")
        self.scope.line(f"const bool is_row = my_row < {n_rows};")
        self.scope.line(f"const {type_} row = is_row ? my_row : {n_rows} - 1;  // all threads combine")
        self._define_row("row")

    def _declare_offset(self) -> None:
        """Declare the offset: each thread has `items` consecutive elements."""

    def _position(self) -> str:
        return f"tile + threadIdx.y * {self.schedule.items} + item"

    def _scan_call(self) -> str:
        schedule = self.schedule
        exclusive = "true" if self.group.is_exclusive else "false"
        sizes = f"{schedule.rows}, {schedule.threads}, {schedule.items}, {exclusive}"
        return f"column_scan<{self.state.operator}, {sizes}>(value, start)"

    def _look_back(self) -> str:
        n_rows = self.kernel.size("n_rows", self.group.row.extent)
        types = f"{self.state.carry_operator}, {self.schedule.rows}, {self.schedule.threads}"
        return f"column_look_back<{types}>({self.words} + 1, {n_rows}, my_row, n_tiles, number, total)"

    def _store_guard(self) -> str:
        return f"is_row && col < {self._limit()}" if self._may_overhang() else "is_row"

    def _tiles_per_group(self) -> int:
        return self.schedule.threads

    def _n_row_blocks_text(self) -> str:
        n_rows, width = self.kernel.size("n_rows", self.group.row.extent), self.schedule.rows
        if n_rows.isdigit():
            return str(-(-int(n_rows) // width))
        return f"(({n_rows} + {width - 1}) / {width})"

    def _block(self) -> tuple[int, ...]:
        return (self.schedule.rows, self.schedule.threads)


def _packing(n_columns: Index, vector: int) -> Packing:
    """Return the packing of a row. A size that the launch's condition makes a multiple of `vector` counts as one in
    positions."""
    lane = Variable("v", (1 << 20) + 1, as_index(vector))
    n_packs = divide_exactly(n_columns, as_index(vector))
    multiples: dict[Atom, Index] = {}
    if n_packs is None:
        (((symbol,), _),) = n_columns.terms
        assert isinstance(symbol, Symbol)
        quotient = binary("//", to_expression(n_columns), Constant(vector))
        n_packs = as_index(Symbol(f"{symbol.name}_packs", 0, quotient, None))
        multiples = {symbol: n_packs * vector}
    pack = Variable("pack" if vector > 1 else "col", 1 << 20, n_packs)
    return Packing(pack, lane, vector, may_reverse=True, multiples=multiples)


def _combined(kind: str, operator: str, earlier: str, later: str) -> str:
    """Return the combination of two states, in plain arithmetic where possible."""
    if kind in ("sum", "prod"):
        return f"{earlier} {'+' if kind == 'sum' else '*'} {later}"
    return f"{operator}::combine({earlier}, {later})"
