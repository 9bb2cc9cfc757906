"""Values that several passes over a row need: computed once, then kept in registers.

A softmax's gradient needs ``exp(x - peak)`` in three passes, and the inverse of its sum for every element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.kernel import REGISTERS_PER_BLOCK
from kernel_lsp.generate.codegen.operators import ATOM, COMPUTE_TYPE, Text
from kernel_lsp.generate.codegen.rows.row_schedule import MAX_CACHED_BYTES, RowSchedule
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.graph import COSTLY
from kernel_lsp.generate.fusion.groups import RowGroup
from kernel_lsp.generate.fusion.row_patterns import find_pairs
from kernel_lsp.generate.ir.index import Index, Variable
from kernel_lsp.generate.ir.scalar import Access, Argument, Constant, Operation, Scalar, nodes, operation, transformed

KEPT = COSTLY | {"div", "sqrt", "rsqrt"}
"""Operations of many instructions: kept rather than computed again."""
COMPUTING_REGISTERS = 28
"""Registers that a pass needs besides."""


@dataclass(frozen=True)
class KeptValue:
    """`scalar`, an operation called `name`, is computed in the pass of its `level`; later passes read `argument`."""

    name: str
    argument: Argument
    scalar: Scalar
    level: int


class KeptValues:
    """The arrays of a kernel's kept values."""

    def __init__(self, values: Sequence[KeptValue], column: Variable, schedule: RowSchedule) -> None:
        self._values, self._column, self._schedule = values, column, schedule
        self._arrays: dict[bytes, str] = {}

    def declare(self, scope: Scope, n_items: int) -> None:
        """Declare an array of `n_items` packs for every value, once."""
        for value in self._values if not self._arrays else ():
            name = scope.names.take(f"kept_{value.name}")
            lanes = f"[{self._schedule.vector}]" if self._schedule.vector > 1 else ""
            scope.line(f"{COMPUTE_TYPE[value.scalar.dtype]} {name}[{n_items}]{lanes};")
            self._arrays[value.argument.digest] = name

    def bind(self, scope: Scope, level: int, flat: Index) -> None:
        """Name the values of earlier passes in `scope`; compute and name those of this one."""
        lane = "[v]" if self._schedule.vector > 1 else ""
        for value in self._values:
            if value.level > level:
                continue
            text = Text(f"{self._arrays[value.argument.digest]}[item]{lane}", ATOM)
            if value.level == level:
                scalar = value.scalar.substitute({self._column: flat})
                scope.line(f"{text.text} = {scope.value(scalar).text};")
                scope.bind(scalar, text)
            scope.bind(value.argument, text)


def keep_values(group: RowGroup, schedule: RowSchedule) -> tuple[RowGroup, tuple[KeptValue, ...]]:
    """Return the group in which later passes read what an earlier one computed, and those values; none where the row
    is not cached, or registers do not suffice."""
    if not schedule.cached or schedule.blocks > 1:
        return group, ()
    finder = _Finder(group)
    found = finder.group(), tuple(finder.kept)
    return found if finder.kept and _fits(*found, schedule) else (group, ())


def divide_once(group: RowGroup) -> RowGroup:
    """Return the group with products by ``1 / sum`` instead of quotients by a sum of exponentials, which is at least 1
    or NaN: one division per row."""
    sums = {pair.second.tensor for pair in find_pairs(group) if pair.kind == "exponentials"}
    if not sums:
        return group

    def divided(scalar: Scalar) -> Scalar:
        if (
            not isinstance(scalar, Operation)
            or scalar.name != "div"
            or group.column not in scalar.operands[0].variables
        ):
            return scalar
        dividend, divisor = scalar.operands
        if not isinstance(divisor, Access) or divisor.tensor not in sums:
            return scalar
        one = Constant(1.0, divisor.dtype)
        return operation("mul", scalar.dtype, dividend, operation("div", one.dtype, one, divisor))

    return _mapped(group, lambda scalar, _: transformed(scalar, divided))


# --- which values to keep


class _Finder:
    """Finds the costly values that several passes need."""

    def __init__(self, group: RowGroup) -> None:
        self._group = group
        self.kept: list[KeptValue] = []
        self._first: dict[bytes, int] = {}
        self._found: dict[tuple[bytes, int], Scalar] = {}
        for level, scalar in sorted(_scalars(group), key=lambda entry: entry[0]):
            self._note(scalar, level)

    def group(self) -> RowGroup:
        """Return the group whose later passes read kept values."""
        return _mapped(self._group, self._visit)

    def _note(self, scalar: Scalar, level: int) -> None:
        """Note the first level that computes each operation."""
        if isinstance(scalar, Operation) and scalar.digest not in self._first:
            self._first[scalar.digest] = level
            for operand in scalar.operands:
                self._note(operand, level)

    def _is_worth_keeping(self, scalar: Operation, level: int) -> bool:
        """Return True if an earlier pass computes the value of each element, by more than a few instructions."""
        varies = self._group.column in scalar.variables and scalar.dtype.is_floating
        return varies and scalar.name in KEPT and self._first[scalar.digest] < level

    def _visit(self, scalar: Scalar, level: int) -> Scalar:
        """Return the scalar as a pass of `level` computes it."""
        if not isinstance(scalar, Operation):
            return scalar
        first = self._first[scalar.digest]
        is_kept = self._is_worth_keeping(scalar, level)
        key = (scalar.digest, first if is_kept else level)
        if key not in self._found:
            operands = tuple(self._visit(operand, key[1]) for operand in scalar.operands)
            self._found[key] = scalar.rebuilt(operands) if operands != scalar.operands else scalar
        return self._keep(scalar, self._found[key], first) if is_kept else self._found[key]

    def _keep(self, scalar: Operation, computed: Scalar, level: int) -> Argument:
        """Return the argument that stands for a value that an earlier level computes."""
        argument = Argument(f"kept {scalar.digest.hex()}", scalar.dtype, scalar.variables)
        if all(value.argument != argument for value in self.kept):
            self.kept.append(KeptValue(scalar.name, argument, computed, level))
        return argument


def _fits(group: RowGroup, kept: Sequence[KeptValue], schedule: RowSchedule) -> bool:
    """Return True if the registers of a thread fit what lives between any two passes."""
    n_columns = group.column.extent.constant or schedule.items * schedule.stride * schedule.vector
    n_elements = -(-n_columns // (schedule.vector * schedule.stride)) * schedule.vector
    uses: dict[bytes, tuple[int, set[int]]] = {
        value.argument.digest: (8 if value.scalar.dtype == DType.F64 else 4, {value.level}) for value in kept
    }
    entries = [*_scalars(group), *((value.level, value.scalar) for value in kept)]
    for level, scalar in entries:
        for node in nodes(scalar):
            if isinstance(node, Access) and {group.column, group.row} <= node.variables:
                uses.setdefault(node.digest, (node.dtype.itemsize, set()))[1].add(level)
            elif node.digest in uses:
                uses[node.digest][1].add(level)
    n_levels = 1 + max(level for level, _ in entries)
    n_bytes = max(
        sum(size for size, levels in uses.values() if min(levels) < level <= max(levels)) for level in range(n_levels)
    )
    n_registers = REGISTERS_PER_BLOCK // (schedule.threads * schedule.rows) - COMPUTING_REGISTERS
    return n_elements * n_bytes <= min(MAX_CACHED_BYTES, 4 * n_registers)


def _scalars(group: RowGroup) -> list[tuple[int, Scalar]]:
    """Return the level and the scalar of every value that the passes compute."""
    stores = [(level, store.scalar) for level, store in group.stores]
    return [*((entry.level, entry.scalar) for entry in group.reductions), *stores]


def _mapped(group: RowGroup, change: Callable[[Scalar, int], Scalar]) -> RowGroup:
    """Return the group with every scalar of its passes changed."""
    reductions = tuple(replace(entry, scalar=change(entry.scalar, entry.level)) for entry in group.reductions)
    stores = tuple((level, replace(store, scalar=change(store.scalar, level))) for level, store in group.stores)
    return replace(group, reductions=reductions, stores=stores)
