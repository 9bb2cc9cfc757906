"""Vector loads and stores of packs: runs of neighbouring elements; and reads issued before any computation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Expression
from kernel_lsp.generate.codegen.kernel import divisible
from kernel_lsp.generate.codegen.operators import ADD, COMPUTE_TYPE, TERNARY, Text, loaded, stored
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import Store
from kernel_lsp.generate.ir.atoms import Atom, Quotient, Remainder, Symbol, Variable
from kernel_lsp.generate.ir.index import ONE, ZERO, Index, as_index, divide_exactly, product, replace_atoms, substitute
from kernel_lsp.generate.ir.scalar import Access, Scalar, accesses, accesses_outside_loops, indirect_scalars
from kernel_lsp.generate.ir.sizes import coefficient, divides, ravel
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.ir.workload import Workload

MAX_PACK_BYTES = 16
"""Maximum bytes of a thread's load on every architecture up to sm_90."""

WORD_BYTES = 4
"""Minimum bytes of a load with a cache hint in this package."""


@dataclass(frozen=True)
class Packing:
    """Flat position ``pack * vector + lane``. With `may_reverse` a pack may also be read and written from its end.

    Reads of `streamed` tensors, and results where `streams_results`, are marked for early eviction; reads of `reused`
    ones for late eviction. The contract promises that `vector` divides `multiple`; the launch's condition makes the
    sizes in `multiples` multiples of it, as such.
    """

    pack: Variable
    lane: Variable
    vector: int
    streamed: frozenset[Tensor] = frozenset()
    streams_results: bool = False
    reused: frozenset[Tensor] = frozenset()
    multiple: Index | None = None
    may_reverse: bool = False
    multiples: Mapping[Atom, Index] = field(default_factory=dict)

    @property
    def flat(self) -> Index:
        if self.vector == 1:
            return as_index(self.pack)
        return as_index(self.pack) * self.vector + as_index(self.lane)

    def substituted(self, stores: Sequence[Store], position: Variable) -> list[Store]:
        """Return the stores over pack and lane instead of a flat position."""
        replacements = {position: self.flat}
        return [
            replace(
                store,
                index=tuple(substitute(index, replacements) for index in store.index),
                scalar=store.scalar.substitute(replacements),
            )
            for store in stores
        ]

    def pack_position(self, flat: Index) -> Index | None:
        """Return the pack of the tensor that holds the element at `flat`; None when the lanes do not share one pack."""
        is_reversed = self.is_reversed(flat)
        if coefficient(flat, self.lane) != ONE and not is_reversed:
            return None
        start = substitute(flat, {self.lane: as_index(self.vector - 1) if is_reversed else ZERO})
        if self.multiples:
            start = replace_atoms(start, lambda atom: self.multiples.get(atom, as_index(atom)))
        position = ZERO
        for monomial, factor in start.terms:
            part = self._in_packs(Index({monomial: factor}))
            if part is None:
                return None
            position = position + part
        return position

    def _in_packs(self, term: Index) -> Index | None:
        """Return a term of a position in packs, when it is a multiple of their width."""
        if divides(self.vector, term):
            return divide_exactly(term, as_index(self.vector))
        if self.multiple is None:
            return None
        times = divide_exactly(term, self.multiple)
        return None if times is None else times * (self.multiple // self.vector)

    def is_reversed(self, flat: Index) -> bool:
        """Return True if consecutive lanes are in descending order in memory."""
        return self.may_reverse and coefficient(flat, self.lane) == ZERO - 1

    def item_of(self, name: str, tensor: Tensor, index: Sequence[Index]) -> str:
        """Return the lane's element of a pack of `tensor`, as an lvalue."""
        lane = f"{self.vector - 1} - v" if self.is_reversed(ravel(index, tensor.shape)) else "v"
        return f"{name}.item[{lane}]"

    def load(self, scope: Scope, access: Access) -> str:
        """Declare the pack that holds the element; return its name."""
        text = self.memory(scope, access)
        name = scope.kernel.pointer(access.tensor)
        return scope.declare(f"{name}_pack", f"Pack<{access.dtype.cuda_type}, {self.vector}>", text)

    def memory(self, scope: Scope, access: Access) -> str:
        """Return the expression that loads the pack of the element, or the element itself without packs."""
        flat = ravel(access.index, access.tensor.shape)
        name = scope.kernel.pointer(access.tensor)
        if self.vector == 1:
            return f"{name}[{scope.index(flat).text}]"
        position = self.pack_position(flat)
        assert position is not None
        scope.kernel.use("packs")
        text = f"packs<{self.vector}>({name})[{scope.index(position).text}]"
        if access.tensor in self.streamed and self._can_stream(access.dtype):
            return f"{scope.kernel.use('load_once')}(&{text})"
        if access.tensor in self.reused and access.dtype.itemsize * self.vector in (8, MAX_PACK_BYTES):
            return f"{scope.kernel.use('load_kept')}(&{text})"
        return text

    def _can_stream(self, dtype: DType) -> bool:
        return dtype.itemsize * self.vector >= WORD_BYTES

    def address(self, scope: Scope, access: Access) -> str:
        """Return the address of the pack that holds the element."""
        position = self.pack_position(ravel(access.index, access.tensor.shape))
        assert position is not None
        scope.kernel.use("packs")
        return f"packs<{self.vector}>({scope.kernel.pointer(access.tensor)}) + {scope.index(position).within(ADD)}"

    def item(self, name: str, dtype: DType) -> Text:
        """Return the lane's element of a pack."""
        return loaded(f"{name}.item[v]", dtype)

    def declare_result(self, scope: Scope, store: Store) -> str | None:
        """Declare a pack for a store that can be vectorized; None for a store of single elements."""
        is_wide = store.tensor.dtype.itemsize * self.vector > MAX_PACK_BYTES
        if is_wide or self.pack_position(ravel(store.index, store.tensor.shape)) is None:
            return None
        scope.kernel.use("packs")
        name = scope.names.take(f"{scope.kernel.target(store.tensor)}_pack")
        scope.line(f"Pack<{store.tensor.dtype.cuda_type}, {self.vector}> {name};")
        return name

    def store(self, scope: Scope, store: Store, name: str) -> None:
        position = self.pack_position(ravel(store.index, store.tensor.shape))
        assert position is not None
        target = scope.kernel.target(store.tensor)
        text = f"packs<{self.vector}>({target})[{scope.index(position).text}]"
        if self.streams_results and self._can_stream(store.tensor.dtype):
            scope.kernel.use("load_once")
            scope.line(f"store_once(&{text}, {name});")
        else:
            scope.line(f"{text} = {name};")


Multiples = tuple[tuple[Index, int], ...]
"""Sizes, each with the width that it must be a multiple of."""


def needed_multiples(start: Index, width: int, workload: Workload | None) -> Multiples | None:
    """Return what sizes must be multiples of for every value of `start` to be a multiple of `width`; None where it is
    not, or the captured sizes are none. Without a workload nothing may be needed."""
    sizes = [
        product(as_index(atom) for atom in monomial if is_size(atom)) * abs(factor)
        for monomial, factor in start.terms
        if factor % width
    ]
    if sizes and (workload is None or any(workload.size(size) % width for size in sizes)):
        return None
    return tuple((size, width) for size in sizes)


def multiple_conditions(needed: Sequence[tuple[Index, int]]) -> tuple[Expression, ...]:
    """Return the conditions that sizes are multiples, without those that others imply."""
    needed = [_reduced(size, width) for size, width in needed]
    kept = dict.fromkeys(needed)
    for size, width in needed:
        others = [(other, wide) for other, wide in kept if (other, wide) != (size, width)]
        if any(wide % width == 0 and divide_exactly(size, other) is not None for other, wide in others):
            kept.pop((size, width), None)
    return tuple(dict.fromkeys(condition for size, width in kept for condition in divisible(size, width)))


def _reduced(size: Index, width: int) -> tuple[Index, int]:
    """Return the same condition on a size without a common factor: 2 * W is a multiple of 4 where W is one of 2."""
    common = math.gcd(width, *(factor for _, factor in size.terms))
    quotient = divide_exactly(size, as_index(common))
    return (size, width) if quotient is None else (quotient, width // common)


def is_size(atom: Atom) -> bool:
    """Return True for a size that the launch knows."""
    return isinstance(atom, Symbol) or (isinstance(atom, Quotient | Remainder) and not atom.variables)


def find_packed(scalars: Sequence[Scalar], packing: Packing) -> list[Access]:
    """Return the reads that one vector load per thread can do, in a stable order."""
    found = []
    for access in accesses_outside_loops(*scalars):
        is_small = access.dtype.itemsize * packing.vector <= MAX_PACK_BYTES
        if access.mask is None and is_small:
            position = packing.pack_position(ravel(access.index, access.tensor.shape))
            if position is not None and packing.lane not in position.variables:
                found.append(access)
    return sorted(found, key=lambda access: (access.tensor.serial, access.digest))


def bind_neighbours(lanes: Scope, packing: Packing, scalars: Sequence[Scalar], packs: Mapping[Access, str]) -> None:
    """Name the elements a few places before or behind those of loaded packs, as differences of neighbours read them:
    all but the first or last of a pack are in it."""
    for access in sorted(accesses_outside_loops(*scalars), key=lambda each: (each.tensor.serial, each.digest)):
        if access in packs or packing.lane not in access.variables or access.digest in lanes.kernel.runs:
            continue
        flat = ravel(access.index, access.tensor.shape)
        for other, name in packs.items():
            step = (flat - ravel(other.index, other.tensor.shape)).constant if other.tensor == access.tensor else None
            if step is None or not 0 < abs(step) < packing.vector:
                continue
            sign = "+" if step > 0 else "-"
            own = loaded(f"{name}.item[v {sign} {abs(step)}]", access.dtype)
            is_own = f"v + {step} < {packing.vector}" if step > 0 else f"v >= {-step}"
            text = f"{is_own} ? {own.within(TERNARY)} : {lanes.value(access).within(TERNARY)}"
            pointer, type_ = lanes.kernel.pointer(access.tensor), COMPUTE_TYPE[access.dtype]
            lanes.bind(access, lanes.declare(f"{pointer}_{'next' if step > 0 else 'before'}", type_, text))
            break


def pack_along(scalar: Scalar, along: Variable, width: int) -> tuple[Packing, Scalar] | None:
    """Return the scalar over packs of `along`; None unless every read that differs within a pack is a vector load."""
    extent = divide_exactly(along.extent, as_index(width))
    if extent is None:
        return None
    packing = Packing(Variable("pack", 1 << 20, extent), Variable("v", (1 << 20) + 1, as_index(width)), width)
    packed = scalar.substitute({along: packing.flat})
    varying = [access for access in accesses(packed) if packing.lane in access.variables]
    fits = all(access.dtype.itemsize * width <= MAX_PACK_BYTES for access in varying)
    return (packing, packed) if fits and len(find_packed(varying, packing)) == len(varying) else None


def read_packs(
    scope: Scope, target: str, packing: Packing, scalar: Scalar, operator: str = "=", dtype: DType | None = None
) -> None:
    """Assign the values of a scalar over one pack to the array `target`, or add them where the operator is `+=`. With a
    `dtype` the array has elements of it as memory has them."""
    scope.hoist([scalar], [packing.lane])
    packed = find_packed([scalar], packing)
    names = {access.digest: packing.load(scope, access) for access in packed}
    with scope.unroll(f"for (int v = 0; v < {packing.vector}; ++v)") as lanes:
        lanes.define(packing.lane, "v")
        for access in packed:
            lanes.bind(access, packing.item(names[access.digest], access.dtype))
        value = lanes.value(scalar)
        text = value.text if dtype is None else stored(value, scalar.dtype, dtype)
        lanes.line(f"{target}[v] {operator} {text};")


def reads_ahead(scalars: Sequence[Scalar], known: Iterable[Variable]) -> list[Access]:
    """Return the reads whose address depends on `known` alone, in a stable order. Reads under a mask are left out but
    for single elements, and so are reads at an index that is itself read."""
    within = frozenset(known)
    found = [
        access
        for access in accesses(*scalars)
        if access.variables <= within
        and (access.mask is None or not access.variables)
        and not any(True for index in access.index for _ in indirect_scalars(index))
    ]
    return sorted(found, key=lambda access: (access.tensor.serial, access.digest))


def prefetch(scope: Scope, reads: Iterable[Access]) -> None:
    """Prefetch elements of tensors in memory."""
    for access in reads:
        scope.kernel.use("prefetch")
        pointer, at = scope.kernel.pointer(access.tensor), scope.offset(access.tensor, access.index)
        scope.line(f"prefetch({pointer});" if at.text == "0" else f"prefetch({pointer} + {at.within(ADD)});")
