"""Elementwise work by lines: a block lies in one line of the result, so that its coordinates cost no divisions by sizes
that only the launch knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kernel_lsp.generate.fusion.groups import ElementwiseGroup
from kernel_lsp.generate.ir.atoms import Atom, Quotient, Remainder, Variable
from kernel_lsp.generate.ir.index import ZERO, Index, as_index, product, replace_atoms, substitute
from kernel_lsp.generate.ir.scalar import (
    Access,
    Constant,
    IndexValue,
    Scalar,
    accesses,
    nodes,
    rewrite,
    select,
    transformed,
)
from kernel_lsp.generate.ir.sizes import ravel
from kernel_lsp.generate.ir.workload import Workload

MIN_LINE = 2048
"""Minimum elements of a line: its last block is mostly full."""
MAX_LINE = 1 << 21
"""Maximum elements of a line: the blocks of a longer one may exceed the height of a grid."""
MANY_LINES = 1 << 14
"""Lines from which the grid's width has them, as its height may be too small for more. With fewer, the blocks of a line
run side by side, which took 3 to 5 % less time on an H200."""
MIN_SHARED_BYTES = 8 << 20
"""Minimum bytes of an operand that many lines share by default: rotations in f32 by 1 MB of cosines took 84 us on an
H200 by single lines and 88 us by four."""
PACK_OF_16_BITS = 8
L1_BYTES = 128 << 10
"""Maximum bytes of operands that stay in L1 from line to line."""
LINE_SERIAL = -(1 << 20)
"""Serial number of the coordinate; fusion numbers its own from -1 down."""


def line_axis(group: ElementwiseGroup, workload: Workload, vector: int) -> int | None:
    """Return the first axis of the shortest lines that save divisions; None where there are none."""
    for axis in range(len(group.shape) - 1, 0, -1):
        length, n_lines = workload.size(product(group.shape[axis:])), workload.size(product(group.shape[:axis]))
        if MIN_LINE <= length <= MAX_LINE and n_lines > 1 and length % vector == 0:
            return axis if _n_divisions(by_lines(group, axis)[1]) < _n_divisions(group) else None
    return None


def shared_axis(group: ElementwiseGroup, workload: Workload, vector: int, least: int | None = None) -> int | None:
    """Return the first axis of the lines that share an operand of at least so many bytes, by default more than the
    caches close to an SM hold; None where there is none. A thread that takes several lines reads the operand from the
    L2 cache once for all of them."""
    least = MIN_SHARED_BYTES if least is None else least
    read = {access.tensor for access in accesses(*(store.scalar for store in group.stores))}
    large = [each for each in read if workload.size(each.n_elements) * each.dtype.itemsize >= least]
    for axis in range(1, len(group.shape)):
        length, n_lines = product(group.shape[axis:]), workload.size(product(group.shape[:axis]))
        of_a_line = [tensor for tensor in large if tensor.n_elements == length]
        if n_lines < 2 or workload.size(length) % vector or not of_a_line:
            continue
        line, lines = by_lines(group, axis)
        for access in accesses(*(store.scalar for store in lines.stores)):
            if access.tensor in of_a_line and line not in access.variables and access.mask is None:
                return axis
    return None


def rotation_axis(group: ElementwiseGroup, workload: Workload) -> int | None:
    """Return the first axis of the lines of 16 bits that read as much of shared operands as they write, more than L1
    holds for the next line; None where there is none. Rotations read cosines and sines from L2 for every head."""
    axis = shared_axis(group, workload, PACK_OF_16_BITS, L1_BYTES)
    if axis is None or any(store.tensor.dtype.itemsize != 2 for store in group.stores):
        return None
    line, lines = by_lines(group, axis)
    reads = set(accesses(*(store.scalar for store in lines.stores)))
    length = product(group.shape[axis:])
    shared = sum(a.dtype.itemsize for a in reads if line not in a.variables and a.tensor.n_elements == length)
    return axis if shared >= 2 * len(lines.stores) else None


def by_lines(group: ElementwiseGroup, axis: int) -> tuple[Variable, ElementwiseGroup]:
    """Return the number of a line, which holds the dims from `axis` on, and the group over the positions in a line."""
    length = product(group.shape[axis:])
    line = Variable("line", LINE_SERIAL, product(group.shape[:axis]))
    position = Variable(group.position.name, LINE_SERIAL + 1, length)
    replacements = {group.position: as_index(line) * length + as_index(position)}
    stores = tuple(
        replace(
            store,
            index=tuple(substitute(index, replacements) for index in store.index),
            scalar=store.scalar.substitute(replacements),
        )
        for store in group.stores
    )
    return line, ElementwiseGroup(position, group.shape[axis:], stores)


def by_whole_packs(
    group: ElementwiseGroup, vector: int, workload: Workload
) -> tuple[ElementwiseGroup, list[tuple[Index, int]]]:
    """Return the group with divisions of positions that all lanes of a pack share, and what sizes must be multiples of
    for that, as the captured ones are. The gradients of a mean over 784 elements each took 31.0 us on an H200, bound by
    four divisions per pack, and 24.7 so."""
    multiples: dict[Index, int] = {}
    written = {(ravel(store.index, store.tensor.shape), store.tensor.n_elements) for store in group.stores}

    def lanes_of_one(dividend: Index) -> int:
        """Return how many values a dividend that counts positions takes in a pack; 0 for any other."""
        atom = dividend.atom
        if isinstance(atom, Quotient) and atom.dividend == as_index(group.position):
            shared = atom.divisor.constant
            return vector // shared if shared and vector % shared == 0 else 0
        return vector if atom == group.position else 0

    def whole(atom: Atom) -> Index:
        if not isinstance(atom, Quotient | Remainder) or group.position not in atom.variables:
            return as_index(atom)
        dividend, divisor = replace_atoms(atom.dividend, whole), atom.divisor
        step = lanes_of_one(atom.dividend)
        is_whole = divisor.constant is None and not divisor.variables and step and workload.size(divisor) % step == 0
        if is_whole:
            multiples[divisor] = max(step, multiples.get(divisor, 1))
            divisor = divisor // step * step
        return dividend // divisor if isinstance(atom, Quotient) else dividend % divisor

    def placed(access: Access) -> Scalar:
        flat = ravel(access.index, access.tensor.shape)
        index = replace_atoms(flat, whole)
        mask = access.mask and transformed(access.mask, counted)
        if mask and (flat, access.tensor.n_elements) in written:
            return select(mask, Access(access.tensor, access.index), Constant(0, access.dtype))
        if index == flat:
            return Access(access.tensor, access.index, mask)
        return Access(access.tensor, (*[ZERO] * (len(access.index) - 1), index), mask)

    def counted(node: Scalar) -> Scalar:
        return IndexValue(replace_atoms(node.index, whole)) if isinstance(node, IndexValue) else node

    stores = tuple(replace(store, scalar=transformed(rewrite(store.scalar, placed), counted)) for store in group.stores)
    return replace(group, stores=stores), list(multiples.items())


def _n_divisions(group: ElementwiseGroup) -> int:
    """Count the divisions of a position by sizes that are no constants, those of conditions included."""
    places = [ravel(store.index, store.tensor.shape) for store in group.stores]
    scalars = [store.scalar for store in group.stores]
    places += [ravel(access.index, access.tensor.shape) for access in accesses(*scalars)]
    places += [node.index for node in nodes(*scalars) if isinstance(node, IndexValue)]
    found = {atom.digest for place in places for atom in _divisions(place) if group.position in atom.variables}
    return len(found)


def _divisions(index: Index) -> Iterator[Quotient | Remainder]:
    for monomial, _ in index.terms:
        for atom in monomial:
            if isinstance(atom, Quotient | Remainder):
                yield from _divisions(atom.dividend)
                if atom.divisor.constant is None:
                    yield atom
