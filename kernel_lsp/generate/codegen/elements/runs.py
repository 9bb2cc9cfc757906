"""Load what a thread's unrolled loops read from short runs of memory, such as the weights of a few channels or the rows
of a window, in packs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.block import INDENT
from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES, Multiples, needed_multiples
from kernel_lsp.generate.codegen.operators import ADD, TERNARY
from kernel_lsp.generate.codegen.scope import MAX_UNROLLED, Scope
from kernel_lsp.generate.fusion.groups import Store
from kernel_lsp.generate.ir.atoms import Remainder, Variable
from kernel_lsp.generate.ir.index import ZERO, Index, as_index, divide_exactly, product, substitute
from kernel_lsp.generate.ir.scalar import (
    Access,
    Constant,
    IndexValue,
    Loop,
    Operation,
    Scalar,
    accesses,
    compare,
    nodes,
    transformed,
)
from kernel_lsp.generate.ir.sizes import coefficient, ravel
from kernel_lsp.generate.ir.workload import Workload

MAX_RUN = 80
"""Maximum elements of the runs of one read; each takes a register."""
ELEMENT_BYTES = (1, 2, 4)
KEPT_BYTES = (8, MAX_PACK_BYTES)
"""Bytes of a load that can ask for late eviction."""
LINE_SERIAL = (1 << 22) + 1
"""The first serial of variables that number the lines of overlapping windows: behind those of all loops."""


@dataclass(frozen=True)
class _Runs:
    """The runs of memory behind a read: one of `length` elements from `start` on for each value of the `outer`
    variables. `place` is the element's position in its run, `numbers` are those of its run along each of `outer`: that
    variable itself, or the sum of several, as rows of a window of windows are."""

    access: Access
    start: Index
    place: Index
    length: int
    width: int
    outer: tuple[Variable, ...]
    numbers: tuple[Index, ...]
    needed: Multiples

    @property
    def n_elements(self) -> int:
        return self.length * (product(variable.extent for variable in self.outer).constant or 0)

    @property
    def used(self) -> frozenset[Variable]:
        """Return the variables of the loops that read the runs."""
        return self.place.variables.union(*(number.variables for number in self.numbers))

    @property
    def element(self) -> Index:
        """Return the position of the read's element in the array of all runs."""
        return self._position(self.numbers, self.place)

    def loaded(self, place: Index) -> Index:
        """Return the position in the array of all runs of a place of the run that is loaded."""
        return self._position(tuple(map(as_index, self.outer)), place)

    def _position(self, numbers: Sequence[Index], place: Index) -> Index:
        return ravel([*numbers, place], [*(v.extent for v in self.outer), as_index(self.length)])


@dataclass(frozen=True)
class LoopArrays:
    """`n` arrays of each run that `scope` declares before its line `at`; that of the loop's iteration is at `place`."""

    scope: Scope
    at: int
    n: int
    place: str


def load_runs(
    scope: Scope,
    stores: Sequence[Store],
    lanes: Mapping[Variable, Multiples],
    workload: Workload | None,
    loaded: Collection[bytes] = (),
    arrays: LoopArrays | None = None,
) -> list[tuple[Index, int]]:
    """Declare an array of the runs that the stores read over their loops and `lanes`, all of which are unrolled; each
    lane has what sizes must be multiples of for all of its values to be in bounds. Reads in `loaded` have their packs.
    With `arrays`, they outlive the block. Return what sizes must be multiples of; without a `workload`, runs are loaded
    that need nothing of them."""
    scalars = [store.scalar for store in stores]
    loops = [variable for node in nodes(*scalars) if isinstance(node, Loop) for variable in node.loop_variables]
    unrolled = {v for v in (*lanes, *loops) if 0 < (v.extent.constant or 0) <= MAX_UNROLLED}
    multiples: list[tuple[Index, int]] = []
    found: list[_Runs] = []
    for access in sorted(accesses(*scalars), key=lambda access: (access.tensor.serial, access.digest)):
        runs = None if access.digest in loaded else _runs_of(access, unrolled, workload)
        if runs is not None and scope.knows((runs.start.variables | _mask_variables(access)) - set(runs.outer)):
            found.append(runs)
            multiples += runs.needed
            multiples += [entry for lane, needed in lanes.items() if lane in runs.used for entry in needed]
    while found:
        runs = found.pop(0)
        other = next((other for other in found if _is_other_half(runs, other)), None)
        if other is not None:
            found.remove(other)
        _load(scope, runs, other, arrays)
    return multiples


def _is_other_half(runs: _Runs, other: _Runs) -> bool:
    """Return True for runs of the same tensor that are read exactly where the first ones are not."""
    first, second = runs.access.mask, other.access.mask
    if (
        not isinstance(first, Operation)
        or not isinstance(second, Operation)
        or runs.access.tensor != other.access.tensor
    ):
        return False
    is_complement = {first.name, second.name} == {"lt", "ge"} and first.operands == second.operands
    same = [(run.place, run.length, run.outer, run.numbers) for run in (runs, other)]
    return is_complement and same[0] == same[1]


def with_whole_masks(
    stores: Sequence[Store], lane: Variable, workload: Workload
) -> tuple[list[Store], list[tuple[Index, int]]] | None:
    """Return the stores with conditions that all lanes of a pack share stated once, and what sizes must be multiples of
    for that, as for halves of rows that are exchanged; None where it makes no read a run."""
    width = lane.extent.constant or 0
    multiples: list[tuple[Index, int]] = []

    def change(node: Scalar) -> Scalar:
        found = shared_condition(node, lane, width, workload)
        if found is None:
            return node
        multiples.extend(found[1])
        return found[0]

    changed = [replace(store, scalar=transformed(store.scalar, change)) for store in stores]
    known = {access.digest for access in accesses(*(store.scalar for store in stores))}
    found = [access for access in accesses(*(store.scalar for store in changed)) if access.digest not in known]
    return (changed, multiples) if any(_runs_of(access, {lane}, workload) for access in found) else None


def has_masked_runs(stores: Sequence[Store], lane: Variable, workload: Workload) -> bool:
    """Return True if packs of a read are whole, and no packed load serves it, since it has a mask."""
    reads = accesses(*(store.scalar for store in stores))
    return any(access.mask is not None and _runs_of(access, {lane}, workload) is not None for access in reads)


def shared_condition(node: Scalar, lane: Variable, width: int, workload: Workload) -> tuple[Scalar, Multiples] | None:
    """Return a comparison of a position with a bound for the first lane of a pack, where it is that of all lanes; None
    for anything else: both are multiples of the width then, or positions within rows of a multiple."""
    if not isinstance(node, Operation) or node.name not in ("lt", "ge") or lane not in node.variables:
        return None
    position, bound = node.operands
    if not isinstance(position, IndexValue) or lane in bound.variables:
        return None
    limit = bound.index if isinstance(bound, IndexValue) else None
    if isinstance(bound, Constant) and bound.dtype == DType.I64:
        limit = as_index(int(bound.value))
    atoms = [atom for monomial, factor in position.index.terms for atom in monomial if lane in atom.variables]
    first = substitute(position.index, {lane: ZERO})
    parts = [limit]
    if len(atoms) == 1 and isinstance(atoms[0], Remainder) and coefficient(position.index, lane) is None:
        remainder = atoms[0]
        is_plain = position.index == as_index(remainder) and coefficient(remainder.dividend, lane) == as_index(1)
        parts += [substitute(remainder.dividend, {lane: ZERO}) if is_plain else None, remainder.divisor]
    else:
        parts += [first if coefficient(position.index, lane) == as_index(1) else None]
    needed = [None if part is None else needed_multiples(part, width, workload) for part in parts]
    if any(part is None for part in needed):
        return None
    return compare(node.name, IndexValue(first), bound), tuple(entry for part in needed for entry in part or ())


def _mask_variables(access: Access) -> frozenset[Variable]:
    return frozenset() if access.mask is None else access.mask.variables


def _runs_of(access: Access, unrolled: set[Variable], workload: Workload | None) -> _Runs | None:
    """Return the runs that a read takes all elements of; None where it is no run, or no load is wider than one."""
    itemsize = access.tensor.dtype.itemsize
    if itemsize not in ELEMENT_BYTES or not _mask_variables(access).isdisjoint(unrolled):
        return None
    start = ravel(access.index, access.tensor.shape)
    place, length, overlaps = _dense(start, unrolled)
    start, outer, numbers = _outer(start - place, unrolled)
    overlaps = overlaps or any(len(number.variables) > 1 for number in numbers)
    if length == 1 or not place.variables.isdisjoint(start.variables):
        return None
    for width in (n_bytes // itemsize for n_bytes in (MAX_PACK_BYTES, 8, 4) if n_bytes > itemsize):
        needed = needed_multiples(start, width, workload)
        if length % width == 0 and needed is not None and not (overlaps and needed):
            runs = _Runs(access, start, place, length, width, outer, numbers, needed)
            return runs if runs.n_elements <= MAX_RUN else None
    return None


def _dense(start: Index, unrolled: set[Variable]) -> tuple[Index, int, bool]:
    """Return the terms of a position whose values are all of 0 to a length, that length, and whether several values of
    the variables have the same place, as in neighbouring windows that overlap."""
    place, length, overlaps = ZERO, 1, False
    for monomial, factor in sorted(start.terms, key=lambda term: term[1]):
        variable = monomial[0] if len(monomial) == 1 else None
        if not isinstance(variable, Variable) or variable not in unrolled or not 0 < factor <= length:
            continue
        overlaps = overlaps or factor < length
        place += Index({monomial: factor})
        length += factor * ((variable.extent.constant or 1) - 1)
    return place, length, overlaps


def _outer(start: Index, unrolled: set[Variable]) -> tuple[Index, tuple[Variable, ...], tuple[Index, ...]]:
    """Return the start of a run over one variable for each distance between runs, these variables, and each one's value
    in terms of the loops that read. Several loops have the same distance where windows overlap."""
    by_distance: dict[Index | Variable, list[Variable]] = {}
    for variable in sorted(start.variables & unrolled, key=lambda variable: variable.serial):
        by_distance.setdefault(coefficient(start, variable) or variable, []).append(variable)
    outer: list[Variable] = []
    numbers: list[Index] = []
    for variables in by_distance.values():
        number, counter = sum(map(as_index, variables), ZERO), variables[0]
        if len(variables) > 1:
            extent = sum(((variable.extent.constant or 1) - 1 for variable in variables), 1)
            counter = Variable("line", LINE_SERIAL + len(outer), as_index(extent))
            start = substitute(start, {v: as_index(counter) if v == variables[0] else ZERO for v in variables})
        outer.append(counter)
        numbers.append(number)
    return start, tuple(outer), tuple(numbers)


def _load(scope: Scope, runs: _Runs, other: _Runs | None, arrays: LoopArrays | None) -> None:
    """Declare the array of the runs, which also holds the `other` ones that are read where these are not."""
    access, width, kernel = runs.access, runs.width, scope.kernel
    width = width if other is None else min(width, other.width)
    kernel.use("packs")
    pointer, type_ = kernel.pointer(access.tensor), access.dtype.cuda_type
    names = (scope if arrays is None else arrays.scope).names
    name = names.take(f"{kernel.local_name(access.tensor)}_run")
    inside = None if access.mask is None else scope.value(access.mask)
    if arrays is None:
        scope.line(f"__align__({MAX_PACK_BYTES}) {type_} {name}[{runs.n_elements}];")
    else:
        declaration = f"__align__({MAX_PACK_BYTES}) {type_} {name}[{arrays.n}][{runs.n_elements}];"
        arrays.scope.lines.insert(arrays.at, f"{INDENT * arrays.scope.depth}{declaration}")
        name = f"{name}[{arrays.place}]"
    opened = [scope]
    for variable in runs.outer:
        block = opened[-1].unroll(
            f"for (int {variable.name} = 0; {variable.name} < {variable.extent.constant}; ++{variable.name})"
        )
        block.define(variable, variable.name)
        opened.append(block)
    inner, n_packs = opened[-1], runs.length // width
    pack = Variable("piece", 1 << 22, as_index(n_packs))
    packs = inner.unroll(f"for (int piece = 0; piece < {n_packs}; ++piece)")
    packs.define(pack, "piece")
    exact = divide_exactly(runs.start, as_index(width))
    if other is not None and inside is not None:
        starts = f"{packs.index(runs.start).within(TERNARY + 1)} : {packs.index(other.start).within(TERNARY)}"
        source = f"*packs<{width}>({pointer} + ({inside.within(TERNARY + 1)} ? {starts}) + piece * {width})"
        kernel.runs[other.access.digest] = (name, other.element)
    elif exact is None:
        source = f"*packs<{width}>({pointer} + {packs.index(runs.start).within(ADD)} + piece * {width})"
    else:
        source = f"packs<{width}>({pointer})[{packs.index(exact).within(ADD)} + piece]"
    if kernel.evicts_late and width * access.dtype.itemsize in KEPT_BYTES and inside is None:
        source = f"{kernel.use('load_kept')}(&{source})"
    if inside is not None and other is None:
        source = f"{inside.within(TERNARY + 1)} ? {source} : Pack<{type_}, {width}>{{}}"
    packs.line(f"*packs<{width}>(&{name}[{packs.index(runs.loaded(as_index(pack) * width)).text}]) = {source};")
    for block in (packs, *reversed(opened[1:])):
        block.close()
    kernel.runs[access.digest] = (name, runs.element)
