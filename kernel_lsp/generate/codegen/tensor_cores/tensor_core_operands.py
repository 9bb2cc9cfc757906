"""Factors of a contraction on tensor cores, the loads of their tiles to shared memory, and the addresses of factors
that are read element by element.

A thread copies elements of one row, at the same products as the other threads of its warp. So it works out its row's
part once; each lane works out one product's part per step, and the warp passes it round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Expression
from kernel_lsp.generate.codegen.elements.packs import Packing, find_packed, needed_multiples, pack_along, read_packs
from kernel_lsp.generate.codegen.kernel import divisible, name_coordinates
from kernel_lsp.generate.codegen.operators import AND, ATOM, Text, stored
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_schedule import INTERLEAVED_COLUMNS, ROW_BYTES, WARP
from kernel_lsp.generate.ir.atoms import Atom, Quotient, Remainder, Variable
from kernel_lsp.generate.ir.index import ONE, ZERO, Index, as_index, substitute
from kernel_lsp.generate.ir.scalar import (
    Access,
    Constant,
    IndexValue,
    Operation,
    Scalar,
    accesses,
    indirect_scalars,
    nodes,
)
from kernel_lsp.generate.ir.sizes import coefficient, ravel
from kernel_lsp.generate.ir.workload import Workload

PART_SERIAL = 1 << 21
MAX_INT = (1 << 31) - 1


@dataclass(frozen=True)
class Gather:
    """The read of a factor in parts: `pointer` names the address of a row, `offset` is what a product adds to it, and
    `mask` is over `taps`, the products' parts of positions that may be out of bounds."""

    pointer: str
    offset: Index
    mask: Scalar | None
    taps: tuple[tuple[Variable, Index], ...]


def declare_gather(scope: Scope, read: Access, k: Variable, uniform: frozenset[Variable]) -> Gather | None:
    """Declare the address of a thread's row; None where the address or the mask is no sum of a row's and a product's
    parts."""
    parts = _separated(_flat(read), k, uniform)
    taps = _Taps(k, uniform)
    mask = None if read.mask is None else taps.replaced(read.mask)
    if parts is None or (read.mask is not None and mask is None):
        return None
    of_row, of_product = parts
    address = f"{scope.kernel.pointer(read.tensor)} + ({scope.index(of_row).text})"
    pointer = scope.declare(f"{scope.kernel.pointer(read.tensor)}_row", f"{read.dtype.cuda_type}*", address)
    return Gather(pointer, of_product, mask, tuple(taps.found.items()))


def declare_lane_parts(scope: Scope, gather: Gather, k: Variable) -> dict[str, str]:
    """Declare the parts of the product that a lane works out. Returns their names by what they are part of."""
    k_of_lane = Variable("k_of_lane", PART_SERIAL, k.extent)
    scope.define(k_of_lane, scope.declare("k_of_lane", "int", "k0 + lane"))
    names = {}
    for name, part in (("offset", gather.offset), *((v.name, part) for v, part in gather.taps)):
        is_small = scope.kernel.index_type == "int" or _is_int(part, k)
        text = scope.index(substitute(part, {k: as_index(k_of_lane)})).text
        names[name] = scope.declare(f"{name}_of_lane", "int" if is_small else scope.kernel.index_type, text)
    return names


def of_product(name: str) -> str:
    """Return a part of the product at its place in the step's tile, from the lane that has it."""
    return f"__shfl_sync(0xffffffff, {name}, k - k0)"


def is_gathered(n_threads: int, n_along: int, n_k: int) -> bool:
    """Return True if all threads of a warp copy the same products, of which there are no more than lanes."""
    return n_threads % n_along == 0 and n_along % WARP == 0 and n_k <= WARP and n_along * n_k % n_threads == 0


def _is_int(part: Index, k: Variable) -> bool:
    """Return True if a part is below 2^31 whatever the sizes."""
    n_terms = k.extent.constant
    has_sizes = any(not atom.variables for monomial, _ in part.terms for atom in monomial)
    return not has_sizes and n_terms is not None and sum(abs(factor) for _, factor in part.terms) * n_terms < MAX_INT


def _separated(index: Index, k: Variable, uniform: frozenset[Variable]) -> tuple[Index, Index] | None:
    """Return the terms without k, and those over k and uniform variables alone; None where one is over more."""
    of_row, of_product = ZERO, ZERO
    for monomial, factor in index.terms:
        term = as_index(factor)
        for atom in monomial:
            term = term * as_index(atom)
        if k not in term.variables:
            of_row = of_row + term
        elif term.variables <= uniform | {k}:
            of_product = of_product + term
        else:
            return None
    return of_row, of_product


class _Taps:
    """Replaces a product's parts of the positions in a mask by variables."""

    def __init__(self, k: Variable, uniform: frozenset[Variable]) -> None:
        self.k, self.uniform = k, uniform
        self.found: dict[Variable, Index] = {}

    def replaced(self, mask: Scalar) -> Scalar | None:
        """Return the mask over the taps; None where it reads memory or a position is no sum of parts."""
        if any(isinstance(node, Access) for node in nodes(mask)):
            return None
        if isinstance(mask, IndexValue):
            return self._position(mask)
        if not isinstance(mask, Operation):
            return mask
        operands = [self.replaced(operand) for operand in mask.operands]
        whole = tuple(operand for operand in operands if operand is not None)
        return mask.rebuilt(whole) if len(whole) == len(operands) else None

    def _position(self, value: IndexValue) -> Scalar | None:
        if self.k not in value.variables:
            return value
        parts = _separated(value.index, self.k, self.uniform)
        if parts is None:
            return None
        of_row, of_product = parts
        is_negative = all(factor < 0 for _, factor in of_product.terms)
        tap = self._tap(ZERO - of_product if is_negative else of_product)
        return IndexValue(of_row - as_index(tap) if is_negative else of_row + as_index(tap))

    def _tap(self, part: Index) -> Variable:
        for variable, known in self.found.items():
            if known == part:
                return variable
        place = len(self.found)
        limit = self.k.extent * sum(abs(factor) for _, factor in part.terms) + 1
        variable = Variable(f"tap_{place}", PART_SERIAL + 1 + place, limit)
        self.found[variable] = part
        return variable


MIN_COPY_BYTES = 4
"""Minimum bytes of a `cp.async` copy."""
MAX_UNROLLED_COPIES = 8
"""Maximum copies per thread with precomputed addresses."""
PACK_SERIAL = 1 << 20
COST_OF_COORDINATES = 4.0
"""Cost of lanes along k, each of which works out its element's row, where lanes along the rows keep theirs. Taps of
11 x 11 with stride 4 over 3 channels took 2920 us on an H200 so, 2040 us along the rows with 2.5 times the sectors."""
ELEMENTS_PER_SECTOR = 8
"""Elements of f32 in a sector of 32 bytes, the unit of memory traffic."""


@dataclass(frozen=True)
class Operand:
    """One factor over (`along`, `k`). `read` is what asynchronous copies fetch, `width` elements each; without it the
    elements are computed in registers, `width` at a time where the factor is `packed`. Where `read` has another type,
    the factor is computed from it when a warp reads its fragments. `conditions` are what the width needs of sizes.
    `row` names the place along `along` that a thread keeps from step to step, where `gather` has the row's address."""

    tile: str
    scalar: Scalar
    dtype: DType
    along: Variable
    k: Variable
    is_k_inner: bool
    read: Access | None
    width: int
    conditions: tuple[Expression, ...] = ()
    row: str | None = None
    gather: Gather | None = None
    packed: tuple[Packing, Scalar] | None = None

    @property
    def tile_dtype(self) -> DType:
        """Return the type of the elements in shared memory."""
        return self.dtype if self.read is None else self.read.dtype

    @property
    def is_converted(self) -> bool:
        """Return True if fragments are computed from a tile of another type."""
        return self.tile_dtype != self.dtype


@dataclass(frozen=True)
class LoadText:
    """Names and sizes that the text of a load refers to. Rows of a swizzled tile have their 16-byte pieces permuted. Of
    32 rows of an interleaved tile, every fourth comes first."""

    along: str
    n_along: int
    n_k: int
    n_threads: int
    along_limit: str
    k_limit: str
    is_swizzled: bool = False
    is_interleaved: bool = False

    def limits(self, along: str) -> list[str]:
        """Return the conditions that an element is in the bounds of the factor. Tiles that fit exactly need none."""
        names = ((along, self.along_limit), ("k", self.k_limit))
        return [f"{name} < {limit}" for name, limit in names if limit]


def plan_operand(
    tile: str,
    scalar: Scalar,
    dtype: DType,
    along: Variable,
    k: Variable,
    workload: Workload,
    *,
    may_convert: bool = False,
) -> Operand:
    """Plan the loads of a factor: copies as wide as the captured sizes allow. Where a factor `may_convert`, bytes are
    copied as such."""
    read = plain_read(scalar, dtype)
    is_k_inner = _runs_along_k(scalar, k, along, workload)
    if read is not None:
        flat, inner = _flat(read), k if is_k_inner else along
        for width in _widths(dtype, is_masked=read.mask is not None):
            conditions = pack_conditions(flat, inner, width, workload)
            if conditions is not None:
                return Operand(tile, scalar, dtype, along, k, is_k_inner, read, width, conditions)
    if read is None and may_convert and (found := _read_of_bytes(scalar, dtype, along, k)) is not None:
        conditions = pack_conditions(_flat(found), k, ROW_BYTES, workload)
        if conditions is not None:
            return Operand(tile, scalar, dtype, along, k, True, found, ROW_BYTES, conditions)
    packed = _packed(scalar, k if is_k_inner else along, dtype) if read is None else None
    width = 1 if packed is None else packed[0].vector
    return Operand(tile, scalar, dtype, along, k, is_k_inner, None, width, packed=packed)


def _read_of_bytes(scalar: Scalar, dtype: DType, along: Variable, k: Variable) -> Access | None:
    """Return the one read of bytes along k that a factor of 16 bits is computed from, beside values of its row or of a
    pair of products."""
    found = [read for read in accesses(scalar) if {along, k} <= read.variables and read.dtype.itemsize == 1]
    if dtype.itemsize != 2 or k.extent.constant is None or len(found) != 1 or not _is_simple(scalar):
        return None
    packing, packed = pack_along(scalar, k, 2) or (None, scalar)
    if packing is None or coefficient(_flat(found[0]), k) != ONE:
        return None
    others = (read for read in accesses(packed) if read.tensor is not found[0].tensor)
    return None if any(packing.lane in read.variables for read in others) else found[0]


def _packed(scalar: Scalar, inner: Variable, dtype: DType) -> tuple[Packing, Scalar] | None:
    """Return the factor over the widest packs of `inner` by which it can be read; None where it has no such reads."""
    for width in (16, 8, 4, 2):
        found = pack_along(scalar, inner, width) if width <= 2 * ROW_BYTES // dtype.itemsize else None
        if found is not None:
            return found if _is_simple(found[1]) and find_packed([found[1]], found[0]) else None
    return None


def _is_simple(scalar: Scalar) -> bool:
    """Return True if no read is masked or at an index that is itself read."""
    return all(read.mask is None and not any(indirect_scalars(_flat(read))) for read in accesses(scalar))


def _flat(access: Access) -> Index:
    return ravel(access.index, access.tensor.shape)


def keep_row(
    scope: Scope, operand: Operand, text: LoadText, row_shape: Sequence[Index], uniform: frozenset[Variable]
) -> Operand:
    """Declare loop-invariant values of a thread that loads single elements of one row. All threads of a block have the
    `uniform` variables in common."""
    if operand.is_k_inner or operand.width > 1 or text.n_threads % text.n_along:
        return operand
    name = scope.names.take(f"{text.along}_of_thread")
    own = Variable(name, operand.along.serial - (1 << 20), operand.along.extent)
    scope.line(f"const {scope.kernel.index_type} {name} = {text.along}0 + threadIdx.x % {text.n_along};")
    scope.define(own, name)
    replacements = {operand.along: as_index(own)}
    scalar = operand.scalar.substitute(replacements)
    name_coordinates(scope.kernel, as_index(own), row_shape)
    for access in accesses(scalar):
        declare_divisions_of(scope, _flat(access), own)
    read = plain_read(scalar, operand.dtype) if operand.read is not None else None
    if read is not None and read.mask is not None and not any(True for _ in accesses(read.mask)):
        scope.hoist([read.mask], [operand.k])  # only values that read no memory: the row may be out of bounds
    gather = None
    if read is not None and is_gathered(text.n_threads, text.n_along, text.n_k):
        gather = declare_gather(scope, read, operand.k, uniform)
    return replace(operand, scalar=scalar, along=own, read=read, row=name, gather=gather)


def write_load(scope: Scope, operand: Operand, text: LoadText) -> None:
    """Fill the tile `stage` of a factor from products `k0` on."""
    n_inner, n_outer = (text.n_k, text.n_along) if operand.is_k_inner else (text.n_along, text.n_k)
    n_copies = n_inner * n_outer // operand.width
    parts = declare_lane_parts(scope, operand.gather, operand.k) if operand.gather is not None else {}
    with open_rounds(scope, n_copies, text.n_threads) as inner:
        _write_place(inner, operand, text, n_inner // operand.width)
        inner.define(operand.k, "k")
        inner.define(operand.along, operand.row or text.along)
        if operand.gather is not None:
            _write_gathered(inner, operand, operand.gather, text, parts)
        elif operand.read is not None:
            _write_copy(inner, operand, operand.read, text)
        elif operand.packed is not None:
            _write_computed_pack(inner, operand, operand.packed, text)
        else:
            _write_computed(inner, operand, text)


def open_rounds(scope: Scope, n_elements: int, n_threads: int) -> Scope:
    """Open a loop over the elements `e` of a thread, of a constant number of rounds where all threads have as many."""
    n_rounds = -(-n_elements // n_threads)
    scope.line("#pragma unroll" if n_rounds <= MAX_UNROLLED_COPIES else "#pragma unroll 4")
    if n_elements % n_threads:
        return scope.open(f"for (int e = threadIdx.x; e < {n_elements}; e += {n_threads})")
    inner = scope.open(f"for (int i = 0; i < {n_rounds}; ++i)")
    inner.line(f"const int e = threadIdx.x + i * {n_threads};")
    return inner


def plain_read(scalar: Scalar, dtype: DType) -> Access | None:
    """Return the one read that is the whole factor, with zeros outside of its mask if it has one."""
    if isinstance(scalar, Operation) and scalar.name == "select":
        condition, if_true, if_false = scalar.operands
        is_zero = isinstance(if_false, Constant) and if_false.value == 0
        if is_zero and isinstance(if_true, Access) and if_true.mask == condition:
            scalar = if_true
    if not isinstance(scalar, Access) or scalar.dtype != dtype:
        return None
    has_lookup = any(True for _ in indirect_scalars(ravel(scalar.index, scalar.tensor.shape)))
    return None if has_lookup else scalar


def _runs_along_k(scalar: Scalar, k: Variable, along: Variable, workload: Workload) -> bool:
    """Return True if lanes that go along k touch fewer sectors of memory than lanes along the factor's own dim."""
    for access in accesses(scalar):
        flat = _flat(access)
        if not flat.variables.isdisjoint((k, along)):
            cost = 1.0 if access.mask is None else COST_OF_COORDINATES
            return cost * _n_sectors(flat, k, workload) <= _n_sectors(flat, along, workload)
    return True


def _n_sectors(flat: Index, variable: Variable, workload: Workload) -> float:
    """Estimate the sectors that the lanes of a warp touch where they go along the variable."""
    found = [float(WARP)]
    for monomial, step in flat.terms:
        run = _run_length(monomial[0], variable, workload) if len(monomial) == 1 else 0
        if run:
            n_lanes = min(WARP, run)
            found.append(WARP / n_lanes * min(n_lanes, 1 + n_lanes * abs(step) / ELEMENTS_PER_SECTOR))
    return min(found)


def _run_length(atom: Atom, variable: Variable, workload: Workload) -> int:
    """Return how many values of the variable the atom follows one by one."""
    if atom == variable:
        return workload.size(variable.extent)
    if not isinstance(atom, Remainder) or atom.dividend != as_index(variable) or atom.divisor.variables:
        return 0
    return workload.size(atom.divisor)


def declare_divisions_of(scope: Scope, index: Index, variable: Variable) -> None:
    """Name the quotients and remainders of the variable alone."""
    for atom in _atoms(index):
        if not isinstance(atom, Quotient | Remainder) or atom.variables != {variable}:
            continue
        digest = as_index(atom).digest
        if scope.lookup(digest) is None:
            wanted = scope.kernel.coordinates.get(digest, "place")
            text = scope.index(as_index(atom)).text
            scope.named[digest] = Text(scope.declare(wanted, scope.kernel.index_type, text), ATOM)


def _atoms(index: Index) -> list[Atom]:
    return [atom for monomial, _ in index.terms for atom in monomial]


def _widths(dtype: DType, *, is_masked: bool) -> tuple[int, ...]:
    """Return elements per copy, in descending order. A mask differs from element to element."""
    widths = [n_bytes // dtype.itemsize for n_bytes in (ROW_BYTES, 8, MIN_COPY_BYTES) if n_bytes >= dtype.itemsize]
    return tuple(width for width in widths if width == 1 or not is_masked)


def pack_conditions(flat: Index, inner: Variable, width: int, workload: Workload) -> tuple[Expression, ...] | None:
    """Return the conditions on sizes for each run of `width` along `inner` to be one aligned piece of memory; None
    where it is not, or the captured sizes violate them."""
    if width == 1:
        return ()
    pack, lane = Variable("pack", PACK_SERIAL, inner.extent), Variable("lane", PACK_SERIAL + 1, as_index(width))
    packed = substitute(flat, {inner: as_index(pack) * width + as_index(lane)})
    if coefficient(packed, lane) != ONE:
        return None
    start = substitute(packed, {lane: ZERO})
    needed = needed_multiples(start, width, workload)
    if needed is None or workload.size(inner.extent) % width:
        return None
    sizes = [inner.extent, *(size for size, _ in needed)]
    return tuple(dict.fromkeys(condition for size in sizes for condition in divisible(size, width)))


def _write_place(scope: Scope, operand: Operand, text: LoadText, per_row: int) -> None:
    """Declare the coordinates of a thread's copy: neighbouring threads read neighbours in memory."""
    type_, along = scope.kernel.index_type, text.along
    if operand.gather is not None and operand.k.extent.constant is not None:
        type_ = "int"
    step = f" * {operand.width}" if operand.width > 1 else ""
    outer, inner = f"e / {per_row}", f"e % {per_row}{step}"
    of_along, of_k = (outer, inner) if operand.is_k_inner else (inner, outer)
    own = "" if operand.row else f"{along} = {along}0 + {of_along}, "
    scope.line(f"const {type_} {own}k = k0 + {of_k};")


def _place(operand: Operand, text: LoadText, start: int = 0) -> str:
    """Return the place of a thread's element in its tile, or that of the element `start` further on in its pack."""
    own, of_k = f"{operand.row or text.along} - {text.along}0", "k - k0"
    if start and operand.is_k_inner:
        of_k = f"{of_k} + {start}"
    elif start:
        own = f"{own} + {start}"
    if text.is_swizzled:
        of_k = f"({of_k}) ^ ({own}) % 8 * 4"
    if text.is_interleaved:
        n = INTERLEAVED_COLUMNS
        own = f"({own}) / {n} * {n} + ({own}) % 4 * {n // 4} + ({own}) % {n} / 4"
    outer, inner = (own, of_k) if operand.is_k_inner else (of_k, own)
    return f"{operand.tile}[stage][{outer}][{inner}]"


def _write_copy(scope: Scope, operand: Operand, read: Access, text: LoadText) -> None:
    limits = text.limits(operand.row or text.along)
    if read.mask is not None:
        limits.append(scope.value(read.mask).within(AND))
    pointer = scope.kernel.pointer(read.tensor)
    offset = scope.offset(read.tensor, read.index).text
    n_bytes = operand.width * operand.tile_dtype.itemsize
    inside = " && ".join(limits) or "true"
    if read.mask is not None:
        inside = scope.declare("is_inside", "bool", inside)
    scope.line(f"copy_async<{n_bytes}>(&{_place(operand, text)}, {pointer} + ({offset}), {inside});")


def _write_gathered(scope: Scope, operand: Operand, gather: Gather, text: LoadText, parts: Mapping[str, str]) -> None:
    limits = text.limits(operand.row or text.along)
    for tap, _ in gather.taps:
        scope.define(tap, scope.declare(tap.name, "int", of_product(parts[tap.name])))
    if gather.mask is not None:
        limits.append(scope.value(gather.mask).within(AND))
    inside = " && ".join(limits) or "true"
    if gather.mask is not None:
        inside = scope.declare("is_inside", "bool", inside)
    address = f"{gather.pointer} + {of_product(parts['offset'])}"
    scope.line(f"copy_async<{operand.dtype.itemsize}>(&{_place(operand, text)}, {address}, {inside});")


def _write_computed(scope: Scope, operand: Operand, text: LoadText) -> None:
    scope.line(f"{operand.dtype.cuda_type} value = {stored_zero(operand.dtype)};")
    limits = text.limits(operand.row or text.along)
    guard = scope.open(f"if ({' && '.join(limits)})") if limits else scope
    value = guard.value(operand.scalar)
    guard.line(f"value = {stored(value, operand.scalar.dtype, operand.dtype)};")
    if guard is not scope:
        guard.close()
    scope.line(f"{_place(operand, text)} = value;")


def _write_computed_pack(scope: Scope, operand: Operand, packed: tuple[Packing, Scalar], text: LoadText) -> None:
    """Write a pack of a factor that is computed in registers, up to 16 bytes at a time."""
    packing, scalar = packed
    scope.kernel.use("packs")
    scope.line(f"__align__({ROW_BYTES}) {operand.dtype.cuda_type} values[{operand.width}] = {{}};")
    limits = text.limits(operand.row or text.along)
    guard = scope.open(f"if ({' && '.join(limits)})") if limits else scope
    inner = "k" if operand.is_k_inner else operand.row or text.along
    guard.define(packing.pack, guard.declare("pack", scope.kernel.index_type, f"{inner} / {operand.width}"))
    read_packs(guard, "values", packing, scalar, dtype=operand.dtype)
    if guard is not scope:
        guard.close()
    n_stored = min(operand.width, ROW_BYTES // operand.dtype.itemsize)
    for start in range(0, operand.width, n_stored):
        values = f"values + {start}" if start else "values"
        scope.line(f"*packs<{n_stored}>(&{_place(operand, text, start)}) = *packs<{n_stored}>({values});")


def stored_zero(dtype: DType) -> str:
    """Return a zero of the element type."""
    return {DType.F16: "__float2half(0.0f)", DType.BF16: "__float2bfloat16(0.0f)"}.get(dtype, "0.0f")
