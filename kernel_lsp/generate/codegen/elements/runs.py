"""Load what a thread's unrolled loops read from a short run of memory, such as the weights of a few channels, in
packs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES
from kernel_lsp.generate.codegen.operators import ADD
from kernel_lsp.generate.codegen.scope import MAX_UNROLLED, Scope
from kernel_lsp.generate.fusion.groups import Store
from kernel_lsp.generate.ir.index import ZERO, Index, Variable, as_index, divide_exactly
from kernel_lsp.generate.ir.row_major import ravel
from kernel_lsp.generate.ir.scalar import Access, Loop
from kernel_lsp.generate.ir.scalar_walk import accesses, nodes

MAX_RUN = 80
"""Maximum elements of a run; each takes a register."""


def load_runs(scope: Scope, stores: Sequence[Store], lanes: Iterable[Variable]) -> None:
    """Declare an array per run that the stores read over their loops and `lanes`, all of which are unrolled."""
    scalars = [store.scalar for store in stores]
    loops = [variable for node in nodes(*scalars) if isinstance(node, Loop) for variable in node.loop_variables]
    unrolled = {v for v in (*lanes, *loops) if 0 < (v.extent.constant or 0) <= MAX_UNROLLED}
    for access in sorted(accesses(*scalars), key=lambda access: (access.tensor.serial, access.digest)):
        width = MAX_PACK_BYTES // access.dtype.itemsize
        place = _place_in_run(access, unrolled)
        length = _length(place)
        start = divide_exactly(ravel(access.index, access.tensor.shape) - place, as_index(width))
        if start is not None and length and length % width == 0 and scope.knows(start.variables):
            _load_run(scope, access, start, place, (length, width))


def _place_in_run(access: Access, unrolled: set[Variable]) -> Index:
    """Return the part of a read's position that unrolled variables alone decide; 0 where it is no run."""
    if access.mask is not None or access.tensor.dtype.itemsize != 4:
        return ZERO
    flat, place = ravel(access.index, access.tensor.shape), ZERO
    for monomial, factor in flat.terms:
        if len(monomial) == 1 and monomial[0] in unrolled:
            place = place + Index({monomial: factor})
        elif not Index({monomial: factor}).variables.isdisjoint(unrolled):
            return ZERO
    return place


def _length(place: Index) -> int:
    """Return the number of elements of a run that is read completely; 0 for any other."""
    length = 1
    for monomial, factor in sorted(place.terms, key=lambda term: term[1]):
        variable = monomial[0]
        assert isinstance(variable, Variable)
        if factor != length:
            return 0
        length *= variable.extent.constant or 0
    return length if 1 < length <= MAX_RUN else 0


def _load_run(scope: Scope, access: Access, start: Index, place: Index, sizes: tuple[int, int]) -> None:
    (length, width), kernel = sizes, scope.kernel
    kernel.use("packs")
    pointer = kernel.pointer(access.tensor)
    name = scope.names.take(f"{kernel.local_name(access.tensor)}_run")
    scope.line(f"__align__({MAX_PACK_BYTES}) {access.dtype.cuda_type} {name}[{length}];")
    source = f"packs<{width}>({pointer})[{scope.index(start).within(ADD)} + q]"
    scope.line("#pragma unroll")
    scope.line(f"for (int q = 0; q < {length // width}; ++q) *packs<{width}>(&{name}[q * {width}]) = {source};")
    kernel.runs[access.digest] = (name, place)
