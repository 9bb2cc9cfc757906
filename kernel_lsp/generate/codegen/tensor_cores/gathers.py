"""Addresses of a factor read element by element, as a convolution's: one part per row, one per product.

A thread copies elements of one row, at the same products as the other threads of its warp. So it works out its row's
part once; each lane works out one product's part per step, and the warp passes it round.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_schedule import WARP
from kernel_lsp.generate.ir.index import ZERO, Index, Variable, as_index, substitute
from kernel_lsp.generate.ir.row_major import ravel
from kernel_lsp.generate.ir.scalar import Access, IndexValue, Operation, Scalar
from kernel_lsp.generate.ir.scalar_walk import nodes

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
    parts = _separated(ravel(read.index, read.tensor.shape), k, uniform)
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


def of_product(name: str, place: str) -> str:
    """Return a part of the product at `place` in the step's tile, from the lane that has it."""
    return f"__shfl_sync(0xffffffff, {name}, {place})"


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
