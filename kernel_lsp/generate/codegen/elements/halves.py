"""Results whose rows are two halves of what both read, such as the gradients of a gate: a thread has a pack of each.

Those of a GLU of (8192, 4096) in f32 took 87.7 us on an H200 with one pack per thread, whose other half came from the
L2 cache, and 79.8 so.
"""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.fusion.groups import ElementwiseGroup, Store
from kernel_lsp.generate.ir.atoms import Remainder, Variable
from kernel_lsp.generate.ir.index import Index, as_index, divide_exactly, is_below, is_nonnegative, substitute
from kernel_lsp.generate.ir.scalar import (
    FALSE,
    TRUE,
    Access,
    Constant,
    IndexValue,
    Operation,
    Scalar,
    accesses,
    nodes,
    transformed,
)

HALF_SERIAL = -(1 << 20) - 8
"""Serial number of the position in a half; those of lines are before it."""
MIN_SHARED = 2
"""Minimum reads that both halves make."""


def by_halves(group: ElementwiseGroup) -> ElementwiseGroup | None:
    """Return the group over the positions in one half of the rows, with a store for each half; None unless both read
    the same elements of tensors no smaller than a half, each without a mask."""
    n_half = divide_exactly(group.position.extent, as_index(2))
    if n_half is None or len(group.stores) != 1:
        return None
    store = group.stores[0]
    half = next((half for node in nodes(store.scalar) if (half := _half(node, group.position))), None)
    if half is None:
        return None
    position = Variable(group.position.name, HALF_SERIAL, n_half)
    first = as_index(position) // half * (2 * half) + as_index(position) % half
    stores = tuple(_at(store, group.position, start) for start in (first, first + half))
    reads = [{access.digest: access for access in accesses(each.scalar)} for each in stores]
    all_reads = [access for found in reads for access in found.values()]
    if any(access.mask is not None or _is_small(access, n_half) for access in all_reads):
        return None
    if len(reads[0].keys() & reads[1].keys()) < MIN_SHARED:
        return None
    return ElementwiseGroup(position, (divide_exactly(n_half, as_index(half)) or n_half, as_index(half)), stores)


def _half(node: Scalar, position: Variable) -> int | None:
    """Return the length of half a row where this is a comparison of a position in a row with the second half's first;
    None for anything else."""
    if not isinstance(node, Operation) or node.name not in ("lt", "ge") or not isinstance(node.operands[0], IndexValue):
        return None
    atom, bound = node.operands[0].index.atom, node.operands[1]
    if not isinstance(atom, Remainder) or atom.dividend != as_index(position) or not isinstance(bound, Constant):
        return None
    return int(bound.value) if bound.value and atom.divisor.constant == 2 * bound.value else None


def _is_small(access: Access, n_half: Index) -> bool:
    """Return True for a tensor that rows share, whose packs lines of a block read from L1."""
    n_elements, least = access.tensor.n_elements, n_half
    return n_elements.constant != 1 and n_elements != least and n_elements != least * 2


def _at(store: Store, position: Variable, place: Index) -> Store:
    """Return the store at another position, without conditions that hold or fail everywhere."""
    places = {position: place}
    index = tuple(substitute(entry, places) for entry in store.index)
    return replace(store, index=index, scalar=transformed(store.scalar.substitute(places), _decided))


def _decided(node: Scalar) -> Scalar:
    """Return a comparison of a position with a number as a constant, where that is what it is, and reads under such a
    condition without it."""
    if isinstance(node, Access) and isinstance(node.mask, Constant):
        return Access(node.tensor, node.index) if node.mask.value else Constant(0, node.dtype)
    if not isinstance(node, Operation) or node.name not in ("lt", "ge") or not isinstance(node.operands[0], IndexValue):
        return node
    bound = node.operands[1]
    if not isinstance(bound, Constant) or bound.dtype != DType.I64:
        return node
    index, limit = node.operands[0].index, as_index(int(bound.value))
    if is_below(index, limit):
        return TRUE if node.name == "lt" else FALSE
    if is_nonnegative(index - limit):
        return FALSE if node.name == "lt" else TRUE
    return node
