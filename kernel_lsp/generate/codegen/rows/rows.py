"""Reductions along rows, with all pointwise definitions around them.

If memory is contiguous along a row, the threads of a block or warp share a row and combine by shuffles. Otherwise
consecutive threads take different rows, so that reads stay coalesced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Binary, Constant, Expression
from kernel_lsp.generate.codegen.accumulator import Accumulator, OnlinePair, combination_of, combine_columns, counted
from kernel_lsp.generate.codegen.elements.elementwise import write_stores
from kernel_lsp.generate.codegen.elements.packs import Packing, bind_neighbours, find_packed
from kernel_lsp.generate.codegen.kernel import (
    KernelWriter,
    RenderedKernel,
    blocks_of,
    divisible,
    name_coordinates,
    rendered,
)
from kernel_lsp.generate.codegen.operators import ATOM, Text, loaded, stored
from kernel_lsp.generate.codegen.rows.part_masks import PartMasks
from kernel_lsp.generate.codegen.rows.register_values import RegisterValues, divide_once, hold_values
from kernel_lsp.generate.codegen.rows.row_cache import RowCache
from kernel_lsp.generate.codegen.rows.row_reads import prefetch_row, prefetch_weights, read_late, read_once
from kernel_lsp.generate.codegen.rows.row_schedule import WARP, RowSchedule, blocks_of_positions
from kernel_lsp.generate.codegen.rows.whole_values import find_whole
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import RowGroup, RowReduction, Store, own_stores, row_index
from kernel_lsp.generate.fusion.row_patterns import Follower, Pair, find_pairs
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index, divide_exactly
from kernel_lsp.generate.ir.scalar import Access, Scalar
from kernel_lsp.generate.ir.sizes import to_expression
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.ir.workload import Workload

LOCAL_NAMES = ("row", "my_row", "is_row", "first_row", "col", "pack", "v", "item", "rank", "lane", "at")

MANY_ITEMS = 4
"""Minimum packs of a row that a thread keeps for its kernel to take inverses of sizes: a batch norm of (32, 96, 56, 56)
in f32 with a SiLU, with 13 packs per thread, has 2130 instructions so, 2665 with divisions."""

RunningValue = Accumulator | OnlinePair


class RowRenderer:
    """Writes the kernel of a row group in which one thread, warp or block computes a row."""

    def __init__(
        self, kernel: KernelWriter, group: RowGroup, schedule: RowSchedule, workload: Workload | None = None
    ) -> None:
        group, held = hold_values(whole := divide_once(group), schedule)
        self.kernel, self.group, self.schedule = kernel, group, schedule
        kernel.divides_often = schedule.cached and schedule.items >= MANY_ITEMS
        self.register_values, self.level = RegisterValues(held, group.column, schedule), 0
        self.terms_of: frozenset[Tensor] = frozenset()
        self.scope = Scope(kernel)
        self.pairs = self._active_pairs(whole)
        self._followers: Sequence[Follower] = ()
        total = group.column.extent
        packs = divide_exactly(total, as_index(schedule.vector))
        n_packs = packs if packs is not None else total
        self.packing = Packing(
            Variable("pack" if schedule.vector > 1 else "col", 1 << 20, n_packs),
            Variable("v", (1 << 20) + 1, as_index(schedule.vector)),
            schedule.vector,
            read_once(group, schedule) if schedule.streaming else frozenset(),
            schedule.streaming,
            read_late(group, schedule),
            group.line or total,
        )
        self.masks = PartMasks(self.packing, None if schedule.cached else workload)
        self.cache = self._new_cache()
        self.cache.fills_first_pass = bool(held) and not schedule.held
        self.levels = 1 + max(
            [reduction.level for reduction in group.reductions] + [level for level, _ in group.stores], default=0
        )

    def _new_cache(self) -> RowCache:
        return RowCache(self.kernel, self.group, self.schedule, self.packing)

    def render(self, comment: str) -> RenderedKernel:
        """Return the kernel with `comment` above it."""
        self._begin()
        self._find_wholes()
        for level in range(self.levels):
            self._pass(level)
        self._finish()
        how = ((blocks_of(self.group.row.extent, self.schedule.rows),), self._block(), self._conditions())
        n_blocks = blocks_of_positions(self.group, self.schedule, self.kernel.index_type)
        return rendered(self.kernel, comment, self.scope.lines, *how, min_blocks=n_blocks)

    def _active_pairs(self, whole: RowGroup) -> tuple[Pair, ...]:
        """Return the pairs that one pass over memory computes, of the group before values of it are kept."""
        return find_pairs(whole) if self.schedule.online and not self.schedule.cached else ()

    def _block(self) -> tuple[int, ...]:
        return (self.schedule.threads * self.schedule.rows,)

    def _begin(self) -> None:
        """Declare the row, and return early where there is none."""
        scope, schedule = self.scope, self.schedule
        name = "row"
        scope.define(self.group.row, name)
        name_coordinates(self.kernel, as_index(self.group.row), self.group.row_shape)
        if self.group.row.extent.constant == 1 and schedule.rows == 1:
            scope.named[as_index(self.group.row).digest] = Text("0", 20)
            scope.variables[self.group.row] = Text("0", 20)
            return
        block_row = f"blockIdx.x * {schedule.rows} + " if schedule.rows > 1 else "blockIdx.x"
        lane = self._row_lane() if schedule.rows > 1 else ""
        text = f"{'(long long)' if self.kernel.index_type == 'long long' else ''}{block_row}{lane}"
        if schedule.rows == 1:
            scope.line(f"const {self.kernel.index_type} {name} = {text};")
            return
        n_rows = self.kernel.size("n_rows", self.group.row.extent)
        if self._is_guarded():
            scope.line(f"const {self.kernel.index_type} my_row = {text};")
            scope.line(f"const bool is_row = my_row < {n_rows};")
            scope.line(
                f"const {self.kernel.index_type} {name} = is_row ? my_row : {n_rows} - 1;  // all threads combine"
            )
            return
        scope.line(f"const {self.kernel.index_type} {name} = {text};")
        scope.line(f"if ({name} >= {n_rows}) return;")

    def _row_lane(self) -> str:
        if self.schedule.threads == 1:
            return "threadIdx.x"
        if not self.group.is_column_contiguous:
            return f"threadIdx.x % {self.schedule.rows}"
        return f"threadIdx.x / {self.schedule.threads}"

    def _is_guarded(self) -> bool:
        """Return True if threads without a row must not exit, because other threads synchronize with them."""
        if self.group.wholes and self.schedule.rows > 1:
            return True
        if not self.group.is_column_contiguous:
            return self.schedule.threads > 1
        return 1 < self.schedule.threads < WARP and self.schedule.rows > 1

    def _find_wholes(self) -> None:
        """Compute whole reductions in every block. The first elements of its rows are loaded meanwhile."""
        prefetch_weights(self.scope, self.group, self.schedule)
        if self.schedule.reads_first:
            self.cache.read_first(self.scope, self._column_lane())
        elif self.group.wholes:
            prefetch_row(self.scope, self.group, self._column_lane())
        for whole in self.group.wholes:
            find_whole(self.scope, self.group, whole, self.schedule.threads * self.schedule.rows)

    def _pass(self, level: int) -> None:
        self.level = level
        together = self._found_together()
        entries = [entry for entry in self._entries() if entry.level == level and entry.tensor not in together]
        stores = [store for store_level, store in self.group.stores if store_level == level]
        if entries or stores:
            self._finish_pass(entries, self._sweep(entries, stores))

    def _found_together(self) -> set[Tensor]:
        """Return the reductions that the pass of another one finds."""
        return {each.tensor for each in (*(p.second for p in self.pairs), *(f.entry for f in self._followers))}

    def _entries(self) -> Sequence[RowReduction]:
        """Return the reductions that the passes compute."""
        return self.group.reductions

    def _inner_variables(self) -> list[Variable]:
        """Return the variables that only the loop over the row defines."""
        return [self.packing.pack, self.packing.lane]

    def _sweep(self, entries: Sequence[RowReduction], stores: Sequence[Store]) -> list[RunningValue]:
        """Loop over the row once; return the accumulator of each entry."""
        terms = [Store(entry.tensor, (), self._summed(entry)) for entry in entries]
        work = self.masks.state_once([*terms, *self.packing.substituted(stores, self.group.column)])
        scalars, packed_stores = [store.scalar for store in work[: len(terms)]], work[len(terms) :]
        everything = [*scalars, *(store.scalar for store in packed_stores)]
        self.scope.hoist(everything, self._inner_variables())
        accumulators = [self._accumulator(entry, scalar) for entry, scalar in zip(entries, scalars, strict=True)]
        if self.schedule.cached:
            self.cache.declare(self.scope, self._n_items())
            self.register_values.declare(self.scope, self._n_items())
            self._fill_cache(everything)
        with self._open_loop() as inner:
            self._body(inner, scalars, accumulators, packed_stores)
        return accumulators

    def _fill_cache(self, scalars: Sequence[Scalar]) -> None:
        """Load the cached part of a row before any computation: a branch around each pack, or the barriers of a
        reduction, would keep the loads from being in flight together."""
        wanted = [access for access in self.cache.shared_reads() if not self.cache.is_filled(access)]
        now = {access.digest for access in self.cache.reads_of(scalars)}
        is_in_flight = self._is_whole() and all(access.digest in now for access in wanted)
        if not wanted or (is_in_flight and not self._fills_ahead()):
            return
        with self._open_loop() as inner:
            arrays = [self.cache.load(inner, access) for access in wanted]
        if self.cache.holds_loads and self._is_whole():
            self.cache.hold(self.scope, arrays, self._n_items())

    def _fills_ahead(self) -> bool:
        """Return True if something follows the loads before the first use."""
        return self.schedule.staged or self.cache.holds_loads

    def _is_whole(self) -> bool:
        """Return True if all threads that share a row have the same number of packs."""
        return self._limit() == str(self._n_items() * self.schedule.stride)

    def _finish_pass(self, entries: Sequence[RowReduction], accumulators: Sequence[RunningValue]) -> None:
        """Combine over the threads of the row."""
        together = self._combine_together(accumulators)
        for entry, accumulator in zip(entries, accumulators, strict=True):
            if isinstance(accumulator, OnlinePair):
                self._combine_online(accumulator)
                continue
            if accumulator not in together:
                self._combine(entry, accumulator)
            self._bind(entry, accumulator.result)

    def _combine_together(self, accumulators: Sequence[RunningValue]) -> list[Accumulator]:
        """Combine several sums, and several maxima, over the threads of a block at once; return them."""
        found: list[Accumulator] = []
        for kind, helper in (("sum", "block_sums"), ("max", "block_maxima")) if self._combines_blocks() else ():
            plain = [accumulator for accumulator in accumulators if isinstance(accumulator, Accumulator)]
            same = [a for a in plain if combination_of(a.kind, a.dtype)[0] == kind]
            if len(same) > 1 and len({a.dtype for a in same}) == 1:
                names = ", ".join(accumulator.name for accumulator in same)
                self.scope.line(f"{self.kernel.use(helper, same[0].dtype)}<{self.schedule.threads}>({names});")
                found += same
        if not self.group.is_column_contiguous and self.schedule.threads > 1:
            found = combine_columns(self.scope, accumulators, self.schedule.threads, self.schedule.rows)
        return found

    def _combines_blocks(self) -> bool:
        return self.group.is_column_contiguous and self.schedule.threads > WARP

    def _combine_online(self, online: OnlinePair) -> None:
        """Combine a pair over the threads of the row."""
        first, second = self._combine_pair(online, self._count())
        self._bind(online.pair.first, Text(first, ATOM))
        self._bind(online.pair.second, Text(second, ATOM))

    def _combine_pair(self, online: OnlinePair, count: str) -> tuple[str, str]:
        """Combine a pair over the threads of a block, which have `count` elements; return the names of both."""
        pair, scope = online.pair, self.scope
        if pair.kind == "exponentials":
            own = scope.declare("own_peak", "float", online.first)
            scope.line(self._combining(pair.first, online.first))
            pivot = self._peak_pivot(online.first)
            scope.line(f"{online.second} *= expf({own} - {pivot});")
            scope.line(self._combining(pair.second, online.second))
            return online.first, online.second
        total = scope.declare(self._name_of(pair.first), "float", f"{online.first} * {online.count}", is_const=False)
        scope.line(self._combining(pair.first, total))
        distance = scope.declare("distance", "float", f"{online.first} - {total} / {count}")
        scope.line(f"{online.second} += {online.count} * {distance} * {distance};")
        scope.line(self._combining(pair.second, online.second))
        return total, online.second

    def _peak_pivot(self, peak: str) -> str:
        """Return the pivot of the exponentials of a row, or of part of it."""
        return peak

    def _count(self) -> str:
        """Return the number of columns as a float."""
        size = self._n_columns()
        return f"{size}.0f" if size.isdigit() else f"(float){size}"

    def _bind(self, entry: RowReduction, text: Text) -> None:
        """Bind the result of a reduction to its name for the rest of the kernel."""
        self.scope.bind(Access(entry.tensor, self._row_index(entry)), text)

    def _summed(self, entry: RowReduction) -> Scalar:
        """Return the scalar that a reduction combines; blocks exchange counts in the result's type."""
        count = counted(entry.kind, entry.scalar, self.kernel) if self.schedule.blocks == 1 else None
        return self._over_packs(count or entry.scalar)

    def _over_packs(self, scalar: Scalar) -> Scalar:
        return scalar.substitute({self.group.column: self.packing.flat})

    def _accumulator(self, entry: RowReduction, scalar: Scalar) -> RunningValue:
        pair = next((pair for pair in self.pairs if pair.first is entry), None)
        if pair is not None and self._is_online():
            first = "mean_so_far" if pair.kind == "moments" else self._name_of(entry)
            return OnlinePair.start(self.scope, pair, first, self._name_of(pair.second))
        is_count = scalar.dtype != entry.scalar.dtype
        return Accumulator.start(
            self.scope, self._name_of(entry), entry.kind, scalar.dtype, entry.tensor.dtype, is_count=is_count
        )

    def _is_online(self) -> bool:
        return not self.schedule.cached

    def _name_of(self, entry: RowReduction) -> str:
        name = entry.tensor.name
        return f"{name}_value" if self.kernel.is_parameter(name) else name

    def _open_loop(self) -> Scope:
        """Open the loop over this thread's packs."""
        limit, lane, stride = self._limit(), self._column_lane(), self.schedule.stride
        kernel_type = self.kernel.index_type
        if self.schedule.cached:
            return self._open_unrolled(self.packing.pack.name, lane, limit)
        name = self.packing.pack.name
        step = f"{name} += {stride}" if stride > 1 else f"++{name}"
        if not self.group.is_column_contiguous or stride > WARP or (self.pairs and stride == WARP):
            self.scope.line("#pragma unroll 4")
        header = f"{kernel_type} {name} = {lane}; {name} < {limit}; {step}"
        if self._goes_backward():
            header = (
                f"{kernel_type} {name} = ({limit} - 1 - {lane} + {stride}) / {stride} * {stride} + {lane} - {stride}; "
            )
            header += f"{name} >= 0; {name} -= {stride}"
        inner = self.scope.open(f"for ({header})")
        inner.define(self.packing.pack, name)
        return inner

    def _goes_backward(self) -> bool:
        """Return True if this pass walks over the row from its end."""
        return False

    def _open_unrolled(self, name: str, lane: str, limit: str) -> Scope:
        stride, n_items = self.schedule.stride, self._n_items()
        item = self.scope.unroll(f"for (int item = 0; item < {n_items}; ++item)")
        item.declare_if_used(name, f"const {self.cache.pack_type} {name} = item * {stride} + {lane};")
        item.define(self.packing.pack, name)
        if self._is_whole():
            return item
        return item.open(f"if ({name} < {limit})", closes_this=True)

    def _n_columns(self) -> str:
        return str(self.schedule.columns_of(self.group) or self.kernel.size("n_columns", self.group.column.extent))

    def _limit(self) -> str:
        size = self._n_columns()
        if self.schedule.vector == 1:
            return size
        return str(int(size) // self.schedule.vector) if size.isdigit() else f"{size} / {self.schedule.vector}"

    def _n_items(self) -> int:
        """Return the number of packs of a row that a thread keeps."""
        if self.schedule.items:
            return self.schedule.items
        return -(-int(self._limit()) // self.schedule.stride)

    def _conditions(self) -> tuple[Expression, ...]:
        """Return the `where:` lines of the schedule: whole packs, and room for the row."""
        extent = self.group.column.extent
        conditions = (*divisible(self.group.line or extent, self.schedule.vector), *self.masks.conditions)
        if not self.schedule.items:
            return conditions
        is_whole, capacity = self.schedule.is_whole, Constant(self.schedule.capacity)
        bound = Binary("==" if is_whole else "<=", to_expression(extent), capacity)
        return (bound,) if is_whole else (*conditions, bound)

    def _column_lane(self) -> str:
        if self.schedule.threads == 1:
            return "0"
        if not self.group.is_column_contiguous:
            return f"threadIdx.x / {self.schedule.rows}"
        return f"threadIdx.x % {self.schedule.threads}" if self.schedule.rows > 1 else "threadIdx.x"

    def _body(
        self,
        scope: Scope,
        scalars: Sequence[Scalar],
        accumulators: Sequence[RunningValue],
        stores: Sequence[Store],
    ) -> None:
        everything = [*scalars, *(store.scalar for store in stores)]
        name_coordinates(self.kernel, self.packing.flat, self.group.column_shape)
        if self.schedule.vector > 1:
            scope.hoist(everything, [self.packing.lane])
        packed = find_packed(everything, self.packing) if self.schedule.vector > 1 else self.cache.reads_of(everything)
        loads = {access.digest: self.cache.load(scope, access) for access in packed}
        self.masks.load(scope, packed)
        targets = [self._declare_result(scope, store) for store in stores]
        online = [entry for entry in accumulators if isinstance(entry, OnlinePair)]
        for pair in online:
            pair.begin_pack(scope, self.schedule.vector)
        lane_scope = scope
        if self.schedule.vector > 1:
            divisions = scope.hoist_lanes(everything, self.packing.lane)
            lane_scope = scope.unroll(f"for (int v = 0; v < {self.schedule.vector}; ++v)")
            lane_scope.define(self.packing.lane, "v")
            lane_scope.named |= divisions
        for access in packed:
            lane_scope.bind(access, self._item(loads[access.digest], access.dtype))
        if lane_scope is not scope:
            bind_neighbours(lane_scope, self.packing, everything, {each: loads[each.digest] for each in packed})
        self._compute(lane_scope, scalars, accumulators, stores, targets)
        if lane_scope is not scope:
            lane_scope.close()
        self._end_packs(scope, online)
        for store, target in zip(stores, targets, strict=True):
            if target is not None:
                with self._in_rows(scope) as inner:
                    self.packing.store(inner, store, target)

    def _end_packs(self, scope: Scope, online: Sequence[OnlinePair]) -> None:
        """Combine a pack with the earlier ones."""
        for pair in online:
            pair.end_pack(scope)

    def _compute(
        self,
        scope: Scope,
        scalars: Sequence[Scalar],
        accumulators: Sequence[RunningValue],
        stores: Sequence[Store],
        targets: Sequence[str | None],
    ) -> None:
        self.register_values.bind(scope, self.level, self.packing.flat, self.terms_of)
        texts = scope.values([*scalars, *(store.scalar for store in stores)])
        for scalar, text in zip(scalars, texts, strict=False):
            scope.bind(scalar, text)
        for accumulator, scalar in zip(accumulators, scalars, strict=True):
            element = scope.value(scalar)
            if isinstance(accumulator, OnlinePair):
                accumulator.add(scope, "v" if self.schedule.vector > 1 else "0", element.text)
            elif accumulator.returns_position:
                accumulator.add_candidate(scope, element, scope.index(self.packing.flat))
            else:
                accumulator.add(scope, element)
        for store, target, text in zip(stores, targets, texts[len(scalars) :], strict=True):
            value = stored(text, store.scalar.dtype, store.tensor.dtype)
            if target is not None:
                scope.line(f"{target}.item[v] = {value};")
                continue
            self._store_element(scope, store, value)

    def _store_element(self, scope: Scope, store: Store, value: str) -> None:
        """Write one element of a result."""
        offset = scope.offset(store.tensor, store.index).text
        with self._in_rows(scope) as inner:
            inner.line(f"{self.kernel.target(store.tensor)}[{offset}] = {value};")

    @contextmanager
    def _in_rows(self, scope: Scope) -> Iterator[Scope]:
        """Yield the scope of stores to this row, under a condition where some threads have no row."""
        if not self._is_guarded():
            yield scope
            return
        with scope.open("if (is_row)") as inner:
            yield inner

    def _item(self, name: str, dtype: DType) -> Text:
        return self.packing.item(name, dtype) if self.schedule.vector > 1 else loaded(name, dtype)

    def _declare_result(self, scope: Scope, store: Store) -> str | None:
        return self.packing.declare_result(scope, store) if self.schedule.vector > 1 else None

    def _combine(self, entry: RowReduction, accumulator: Accumulator) -> None:
        """Combine a reduction over the threads of the block that share the row."""
        call = self._combiner(entry.kind, accumulator)
        if call:
            self.scope.line(call)

    def _combining(self, entry: RowReduction, name: str) -> str:
        """Return the statement that combines the variable `name` over the threads of the block."""
        return self._combiner(entry.kind, Accumulator(entry.kind, name, "", entry.tensor.dtype))

    def _row_index(self, entry: RowReduction) -> tuple[Index, ...]:
        return row_index(as_index(self.group.row), self.group.row_shape, entry.tensor)

    def _combiner(self, kind: str, accumulator: Accumulator) -> str:
        threads = self.schedule.threads
        if threads == 1:
            return ""
        base, dtype = combination_of(kind, accumulator.dtype)
        if self.group.is_column_contiguous:
            scope_name = "block" if threads > WARP else "warp"
            template = f"<{threads}>"
        else:
            scope_name, template = "column", f"<{threads}, {self.schedule.rows}>"
        helper = self.kernel.use(f"{scope_name}_{base}", dtype)
        if base == "argmax":
            return f"{helper}{template}({accumulator.name}, {accumulator.index_name});"
        return f"{accumulator.name} = {helper}{template}({accumulator.name});"

    def _finish(self) -> None:
        """Write the per-row results, by one thread."""
        stores = [*self.group.row_stores, *own_stores(self.group.reductions, self._row_index)]
        if not stores:
            return
        if condition := self._leader_condition():
            with self.scope.open(f"if ({condition})") as leader:
                write_stores(leader, stores)
        else:
            write_stores(self.scope, stores)

    def _leader_condition(self) -> str:
        conditions = []
        if self._is_guarded():
            conditions.append("is_row")
        if self.schedule.threads > 1:
            conditions.append(f"{self._column_lane()} == 0")
        return " && ".join(conditions)
