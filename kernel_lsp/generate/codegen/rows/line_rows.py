"""Rows that the blocks of a cluster share by whole lines, whose sums are wanted as well.

The gradient of a group norm needs sums over each group and over each channel of it: a block keeps some of the channels
in registers, one after the other, and finds both from one read of memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kernel_lsp.core.expression import Binary, Constant, Expression
from kernel_lsp.generate.codegen.accumulator import Accumulator
from kernel_lsp.generate.codegen.elements.elementwise import write_stores
from kernel_lsp.generate.codegen.kernel import KernelWriter, divisible
from kernel_lsp.generate.codegen.operators import ADD, ATOM, COMPUTE_TYPE, MULTIPLY, Text
from kernel_lsp.generate.codegen.rows.row_schedule import RowSchedule
from kernel_lsp.generate.codegen.rows.rows import RunningValue
from kernel_lsp.generate.codegen.rows.shared_rows import SharedRowRenderer
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import RowGroup, RowReduction, Store, own_stores
from kernel_lsp.generate.fusion.row_algebra import factors_of, product_of
from kernel_lsp.generate.fusion.row_patterns import Pair
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index, substitute
from kernel_lsp.generate.ir.scalar import Access, Scalar
from kernel_lsp.generate.ir.sizes import reshape, to_expression

LOCAL_NAMES = ("line", "within", "at")
COLUMN_SERIAL = -(1 << 20)
"""Serial number of the column of a line; fusion numbers its own variables from -1 down."""


def by_lines(group: RowGroup) -> RowGroup:
    """Return the group with columns of lines instead of those of rows."""
    assert group.line is not None
    assert group.line_number is not None
    within = Variable("col", COLUMN_SERIAL, group.line)
    replacements = {group.column: as_index(group.line_number) * group.line + as_index(within)}

    def moved(entry: RowReduction) -> RowReduction:
        return replace(entry, scalar=entry.scalar.substitute(replacements))

    return replace(
        group,
        column=within,
        column_shape=(group.line,),
        reductions=tuple(map(moved, group.reductions)),
        line_sums=tuple(map(moved, group.line_sums)),
        stores=tuple((level, _placed(store, replacements)) for level, store in group.stores),
        is_by_lines=True,
    )


def _placed(store: Store, replacements: Mapping[Variable, Index]) -> Store:
    index = tuple(substitute(each, replacements) for each in store.index)
    return Store(store.tensor, index, store.scalar.substitute(replacements))


class LineRowRenderer(SharedRowRenderer):
    """Writes the kernel of a row group with sums over the lines of its rows."""

    def __init__(self, kernel: KernelWriter, group: RowGroup, schedule: RowSchedule) -> None:
        super().__init__(kernel, by_lines(group), schedule)
        assert self.group.line_number is not None
        self.line_number = self.group.line_number
        self.arrays: dict[RowReduction, str] = {}
        self.of_lines = {entry: found for entry in self.group.reductions if (found := self._weighted_lines(entry))}
        self._pending: list[Accumulator] = []

    def _declare_lane(self) -> None:
        """Declare nothing: threads have a place in each line."""

    def _leader_condition(self) -> str:
        return "rank == 0 && threadIdx.x == 0"

    def _entries(self) -> Sequence[RowReduction]:
        entries = (entry for entry in self.group.reductions if entry not in self.of_lines)
        return (*entries, *self.group.line_sums)

    def _weighted_lines(self, entry: RowReduction) -> tuple[RowReduction, Scalar | None] | None:
        """Return the sum of a line that a sum of the row adds up, and its factor in each line, None for 1."""
        factors = factors_of(entry.scalar)
        inner = sorted(factor.digest for factor in factors if self.group.column in factor.variables)
        outer = [factor for factor in factors if self.group.column not in factor.variables]
        for line in self.group.line_sums:
            is_same = inner == sorted(factor.digest for factor in factors_of(line.scalar))
            if is_same and entry.kind == "sum" and entry.level == 0 and entry.tensor.dtype == line.tensor.dtype:
                return line, product_of(outer) if outer else None
        return None

    def _adds_lines(self) -> bool:
        return self.level == 0 and bool(self.of_lines)

    def _found_of_lines(self) -> dict[RowReduction, str]:
        found: dict[RowReduction, str] = {}
        for entry, (line, factor) in self.of_lines.items() if self.level == 0 else ():
            dtype = entry.tensor.dtype
            name = self.scope.declare(self._name_of(entry), COMPUTE_TYPE[dtype], "0", is_const=False)
            found[entry] = name
            with self._open_own_lines(self.scope) as scope:
                value = f"{self.arrays[line]}[at]"
                if factor is not None:
                    value = f"{scope.value(factor).within(MULTIPLY)} * {value}"
                scope.line(f"{name} += {value};")
        return found

    def _open_own_lines(self, scope: Scope) -> Scope:
        """Open the loop over the lines of this block."""
        inner = scope.unroll(f"for (int at = 0; at < {self.schedule.lines}; ++at)")
        first = f"rank * {self.schedule.lines} + at" if self.schedule.lines > 1 else "rank"
        inner.declare_if_used("line", f"const int line = {first};")
        inner.define(self.line_number, "line")
        return inner

    def _inner_variables(self) -> list[Variable]:
        return [*super()._inner_variables(), self.line_number]

    def _n_items(self) -> int:
        return self.schedule.lines * self.schedule.items

    def _is_whole(self) -> bool:
        return self._limit() == str(self.schedule.items * self.schedule.threads)

    def _open_unrolled(self, name: str, lane: str, limit: str) -> Scope:
        schedule = self.schedule
        item = self.scope.unroll(f"for (int item = 0; item < {self._n_items()}; ++item)")
        step = f"item % {schedule.items} * {schedule.threads} + " if schedule.items > 1 else ""
        item.line(f"const int {name} = {step}threadIdx.x;")
        item.define(self.packing.pack, name)
        item.define(self.line_number, Text(self._line_of("item"), ADD))
        if self._is_whole():
            return item
        return item.open(f"if ({name} < {limit})", closes_this=True)

    def _line_of(self, item: str) -> str:
        """Return the number of the line to which an item of this block belongs."""
        first = f"rank * {self.schedule.lines}" if self.schedule.lines > 1 else "rank"
        return f"{first} + {self._own_line(item)}" if self.schedule.lines > 1 else first

    def _own_line(self, item: str) -> str:
        """Return the place of an item's line among those of its block."""
        return f"{item} / {self.schedule.items}" if self.schedule.items > 1 else item

    def _conditions(self) -> tuple[Expression, ...]:
        extent, schedule = self.group.column.extent, self.schedule
        conditions = divisible(extent, schedule.vector)
        if extent.constant is not None:
            return conditions
        capacity = schedule.items * schedule.threads * schedule.vector
        return (*conditions, Binary("<=", to_expression(extent), Constant(capacity)))

    def _accumulator(self, entry: RowReduction, scalar: Scalar) -> RunningValue:
        if entry not in self.group.line_sums:
            return super()._accumulator(entry, scalar)
        dtype = entry.tensor.dtype
        array = self.scope.names.take(f"{entry.tensor.name}_of_line")
        self.scope.line(f"{COMPUTE_TYPE[dtype]} {array}[{self.schedule.lines}] = {{}};")
        self.arrays[entry] = array
        place = self._own_line("item") if self.schedule.lines > 1 else "0"
        return Accumulator(entry.kind, f"{array}[{place}]", "", dtype)

    def _finish_pass(self, entries: Sequence[RowReduction], accumulators: Sequence[RunningValue]) -> None:
        own = [(e, a) for e, a in zip(entries, accumulators, strict=True) if e not in self.group.line_sums]
        self._pending = [
            Accumulator(entry.kind, f"{self.arrays[entry]}[{line}]", "", entry.tensor.dtype)
            for entry in entries
            if entry in self.group.line_sums
            for line in range(self.schedule.lines)
        ]
        super()._finish_pass([entry for entry, _ in own], [accumulator for _, accumulator in own])

    def _count_of_warps(self, entries: Sequence[RowReduction]) -> str:
        """Return nothing: the sums of lines are combined with the first sum."""
        return ""

    def _combine_together(self, accumulators: Sequence[RunningValue]) -> list[Accumulator]:
        """Add up the sums of the row and of its lines over the threads of a block."""
        pending, self._pending = self._pending, []
        together = super()._combine_together([*accumulators, *pending])
        for accumulator in pending:
            if accumulator not in together:
                self.scope.line(self._combiner(accumulator.kind, accumulator))
        return together

    def _finish(self) -> None:
        super()._finish()
        with self.scope.open("if (threadIdx.x == 0)") as leader, self._open_own_lines(leader) as scope:
            for entry, array in self.arrays.items():
                scope.bind(Access(entry.tensor, self._line_index(entry)), Text(f"{array}[at]", ATOM))
            own = own_stores(self.group.line_sums, self._line_index)
            write_stores(scope, [*self.group.line_stores, *own])

    def _line_index(self, entry: RowReduction) -> tuple[Index, ...]:
        lines = self.line_number.extent
        flat = as_index(self.group.row) * lines + as_index(self.line_number)
        return reshape((flat,), (self.group.row.extent * lines,), entry.tensor.shape)

    def _count(self) -> str:
        size = self.kernel.size("n_columns", self.group.column.extent)
        return f"(float)({size} * {self.line_number.extent.constant})"

    def _part_count(self) -> str:
        size = self.kernel.size("n_columns", self.group.column.extent)
        return f"(float)({size} * {self.schedule.lines})" if self.schedule.lines > 1 else f"(float){size}"

    def _pair_call(self, pair: Pair, parts: dict[RowReduction, str], found: dict[RowReduction, str]) -> str:
        if pair.kind == "exponentials":
            return super()._pair_call(pair, parts, found)
        helper, total = self.kernel.use("parts_even_squares"), found[pair.first]
        both = f"{parts[pair.second]}, {parts[pair.first]}"
        return f"{helper}<{self.schedule.blocks}>({both}, {total} / {self._count()}, {self._part_count()})"
