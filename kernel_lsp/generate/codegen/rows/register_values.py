"""Values that several passes over a row need: computed once, then kept in registers.

A softmax's gradient needs ``exp(x - peak)`` in three passes, and the inverse of its sum for every element. Blocks that
share a row compute it relative to the maximum of their part, and correct it by a factor once they know the row's.

Blocks that hold a row keep every value that a later pass needs, in shared memory where registers do not suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.kernel import REGISTERS_PER_BLOCK
from kernel_lsp.generate.codegen.operators import ATOM, COMPUTE_TYPE, MULTIPLY, Text
from kernel_lsp.generate.codegen.rows.row_schedule import MAX_CACHED_BYTES, MAX_STAGED_BYTES, RowSchedule
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.graph import COSTLY
from kernel_lsp.generate.fusion.groups import RowGroup
from kernel_lsp.generate.fusion.row_patterns import find_pairs
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index
from kernel_lsp.generate.ir.scalar import (
    Access,
    Argument,
    Constant,
    Operation,
    Scalar,
    accesses,
    nodes,
    operation,
    transformed,
)
from kernel_lsp.generate.ir.tensor import Tensor

KEPT = COSTLY | {"div", "sqrt", "rsqrt"}
"""Operations of many instructions: kept rather than computed again."""
HELD = "held"
COMPUTING_REGISTERS = 28
"""Registers that a pass needs besides."""


@dataclass(frozen=True)
class RegisterValue:
    """`scalar`, an operation called `name`, is computed in the pass of its `level`; later passes read `argument`.
    Where blocks share a row, exponentials are computed while their `sum` is, relative to the maximum of a part."""

    name: str
    argument: Argument
    scalar: Scalar
    level: int
    sum: Tensor | None = None


class RegisterValues:
    """The arrays of a kernel's kept values."""

    def __init__(self, values: Sequence[RegisterValue], column: Variable, schedule: RowSchedule) -> None:
        self._values, self._column, self._schedule = values, column, schedule
        self.shared_bytes = 0
        self._arrays: dict[bytes, str] = {}
        self._factors: dict[Tensor, str] = {}

    def has_terms_of(self, sum_: Tensor) -> bool:
        """Return True if the terms of a sum of exponentials are kept, relative to the maximum of a block's part."""
        return any(value.sum is sum_ for value in self._values)

    def correct(self, sum_: Tensor, factor: str) -> None:
        """Multiply the kept terms of the sum by the variable `factor` from now on."""
        self._factors[sum_] = factor

    def declare(self, scope: Scope, n_items: int) -> None:
        """Declare an array of `n_items` packs for every value, once."""
        if self._arrays:
            return
        vector = self._schedule.vector
        n_in_registers, self.shared_bytes = _placement(self._values, self._schedule, n_items)
        held = scope.names.take(HELD) if self.shared_bytes else ""
        if held:
            scope.line(f"extern __shared__ uint4 {held}[];")
        offset = 0
        for place, value in enumerate(self._values):
            name = scope.names.take(f"kept_{value.name}")
            type_ = COMPUTE_TYPE[value.scalar.dtype]
            lanes = f"[{vector}]" if vector > 1 else ""
            item = "item"
            if place < n_in_registers:
                scope.line(f"{type_} {name}[{n_items}]{lanes};")
            else:
                start = f"{held} + {offset}" if offset else held
                declared, cast = (f" (*{name}){lanes}", f" (*){lanes}") if lanes else (f"* {name}", "*")
                scope.line(f"{type_}{declared} = reinterpret_cast<{type_}{cast}>({start});  // a thread reads its own")
                item = f"item * {self._schedule.threads} + threadIdx.x"
                offset += n_items * vector * self._schedule.threads * _itemsize(value.scalar) // 16
            self._arrays[value.argument.digest] = f"{name}[{item}]"

    def bind(self, scope: Scope, level: int, flat: Index, sums: frozenset[Tensor]) -> None:
        """Name the values of earlier passes, and compute those of this one, over the terms of any `sums`."""
        lane = "[v]" if self._schedule.vector > 1 else ""
        for value in self._values:
            is_now = value.sum in sums if value.sum or sums else value.level == level
            is_ready = value.sum in self._factors if value.sum else value.level < level + bool(sums)
            if not is_now and not is_ready:
                continue
            text = Text(f"{self._arrays[value.argument.digest]}{lane}", ATOM)
            if is_now:
                scalar = value.scalar.substitute({self._column: flat})
                scope.line(f"{text.text} = {scope.value(scalar).text};")
                scope.bind(scalar, text)
            elif value.sum:
                text = Text(f"{text.text} * {self._factors[value.sum]}", MULTIPLY)
            scope.bind(value.argument, text)


def hold_values(group: RowGroup, schedule: RowSchedule) -> tuple[RowGroup, tuple[RegisterValue, ...]]:
    """Return the group in which later passes read what an earlier one computed, and those values; none where the row
    is not cached, or registers do not suffice. Kept are costly operations, or what is computed from them where that
    takes fewer registers."""
    if not schedule.cached:
        return group, ()
    if schedule.held:
        finder = _Finder(group, schedule)
        return finder.group(), tuple(finder.kept)
    finders = [_Finder(group, schedule, is_whole=is_whole) for is_whole in (False, True)]
    found = [(finder.group(), tuple(finder.kept)) for finder in finders]
    n_bytes, best = min(
        ((_n_register_bytes(*entry, schedule=schedule), entry) for entry in found), key=lambda each: each[0]
    )
    return best if best[1] and n_bytes <= _n_free_bytes(schedule) else (group, ())


def can_hold(group: RowGroup, schedule: RowSchedule) -> bool:
    """Return True if registers and shared memory have room for all that later passes need of earlier ones."""
    if schedule.blocks == 1 or schedule.staged or group.line is not None or find_pairs(group):
        return False
    rest, values = hold_values(group, schedule)
    levels: dict[bytes, set[int]] = {}
    for level, scalar in [*_scalars(rest), *((value.level, value.scalar) for value in values)]:
        for read in accesses(scalar):
            if group.column in read.variables:
                levels.setdefault(read.digest, set()).add(level)
    n_columns = group.column.extent.constant or schedule.items * schedule.stride * schedule.vector
    n_items = -(-n_columns // (schedule.vector * schedule.stride))
    _, shared_bytes = _placement(values, schedule, n_items)
    is_all = all(len(found) == 1 for found in levels.values())
    return bool(values) and is_all and n_items > 0 and shared_bytes * schedule.resident <= MAX_STAGED_BYTES


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


class _Finder:
    """Finds the costly values that several passes need; with `is_whole`, the largest expressions that hold any. Where
    the schedule holds rows, finds all values of earlier passes."""

    def __init__(self, group: RowGroup, schedule: RowSchedule, *, is_whole: bool = False) -> None:
        self._group, self._is_whole = group, is_whole
        self._types = (Operation, Access) if schedule.held else (Operation,)
        self.kept: list[RegisterValue] = []
        self._first: dict[bytes, int] = {}
        self._found: dict[tuple[bytes, int], Scalar] = {}
        pairs = find_pairs(group) if schedule.blocks > 1 else ()
        of_parts = {pair.second.scalar.digest: pair for pair in pairs}
        self._sums = {key: pair.second.tensor for key, pair in of_parts.items() if pair.kind == "exponentials"}
        for level, scalar in sorted(_scalars(group), key=lambda entry: entry[0]):
            if scalar.digest not in of_parts:
                self._note(scalar, level)
            elif scalar.digest in self._sums:  # what it holds is relative to the maximum of a part
                self._first.setdefault(scalar.digest, level)

    def group(self) -> RowGroup:
        """Return the group whose later passes read kept values."""
        return _mapped(self._group, self._visit)

    def _note(self, scalar: Scalar, level: int) -> None:
        """Note the first level that computes each operation."""
        if isinstance(scalar, self._types) and scalar.digest not in self._first:
            self._first[scalar.digest] = level
            for operand in scalar.operands if isinstance(scalar, Operation) else ():
                self._note(operand, level)

    def _is_worth_keeping(self, scalar: Operation | Access, level: int) -> bool:
        """Return True if an earlier pass computes the value of each element, by more than a few instructions."""
        if self._group.column not in scalar.variables or not scalar.dtype.is_floating:
            return False
        if self._first.get(scalar.digest, level) >= level:
            return False
        if Access in self._types:
            return True
        parts = nodes(scalar) if self._is_whole else (scalar,)
        return any(isinstance(part, Operation) and part.name in KEPT for part in parts)

    def _visit(self, scalar: Scalar, level: int) -> Scalar:
        """Return the scalar as a pass of `level` computes it."""
        if not isinstance(scalar, self._types):
            return scalar
        first = self._first.get(scalar.digest, level)
        is_kept = self._is_worth_keeping(scalar, level)
        key = (scalar.digest, first if is_kept else level)
        if key not in self._found:
            self._found[key] = self._rebuilt(scalar, key[1])
        return self._keep(scalar, self._found[key], first) if is_kept else self._found[key]

    def _rebuilt(self, scalar: Operation | Access, level: int) -> Scalar:
        """Return the scalar with operands as a pass of `level` computes them."""
        if isinstance(scalar, Access):
            return scalar
        operands = tuple(self._visit(operand, level) for operand in scalar.operands)
        return scalar.rebuilt(operands) if operands != scalar.operands else scalar

    def _keep(self, scalar: Operation | Access, computed: Scalar, level: int) -> Argument:
        """Return the argument that stands for a value that an earlier level computes."""
        argument = Argument(f"kept {scalar.digest.hex()}", scalar.dtype, scalar.variables)
        if all(value.argument != argument for value in self.kept):
            name = scalar.name if isinstance(scalar, Operation) else scalar.tensor.name
            self.kept.append(RegisterValue(name, argument, computed, level, self._sums.get(scalar.digest)))
        return argument


def _n_register_bytes(group: RowGroup, kept: Sequence[RegisterValue], *, schedule: RowSchedule) -> int:
    """Return the bytes per thread that live between any two passes."""
    n_columns = group.column.extent.constant or schedule.items * schedule.stride * schedule.vector
    n_elements = -(-n_columns // (schedule.vector * schedule.stride)) * schedule.vector
    uses: dict[bytes, tuple[int, set[int]]] = {
        value.argument.digest: (_itemsize(value.scalar), {value.level}) for value in kept
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
    return n_elements * n_bytes


def _itemsize(scalar: Scalar) -> int:
    """Return the bytes of a value in the type that computes it."""
    return 8 if scalar.dtype == DType.F64 else 4


def _placement(values: Sequence[RegisterValue], schedule: RowSchedule, n_items: int) -> tuple[int, int]:
    """Return the number of values that stay in registers, and the bytes of shared memory of the others."""
    if not schedule.held:
        return len(values), 0
    sizes = [n_items * schedule.vector * _itemsize(value.scalar) for value in values]
    n_in_registers = len(sizes)
    while sum(sizes[:n_in_registers]) > _n_free_bytes(schedule):
        n_in_registers -= 1
    return n_in_registers, sum(sizes[n_in_registers:]) * schedule.threads


def _n_free_bytes(schedule: RowSchedule) -> int:
    """Return the bytes of registers per thread for what lives between passes."""
    n_registers = REGISTERS_PER_BLOCK // (schedule.threads * schedule.rows * schedule.resident) - COMPUTING_REGISTERS
    return min(MAX_CACHED_BYTES, 4 * n_registers)


def _scalars(group: RowGroup) -> list[tuple[int, Scalar]]:
    """Return the level and the scalar of every value that the passes compute."""
    stores = [(level, store.scalar) for level, store in group.stores]
    return [*((entry.level, entry.scalar) for entry in group.reductions), *stores]


def _mapped(group: RowGroup, change: Callable[[Scalar, int], Scalar]) -> RowGroup:
    """Return the group with every scalar of its passes changed."""
    reductions = tuple(replace(entry, scalar=change(entry.scalar, entry.level)) for entry in group.reductions)
    stores = tuple((level, replace(store, scalar=change(store.scalar, level))) for level, store in group.stores)
    return replace(group, reductions=reductions, stores=stores)
