"""Load the elements that the windows of a box read into registers once, with one bounds check each.

Windows that overlap read most elements several times, and the gradients of windows read most windows so. A tile holds
what all windows of a thread's box read: a value whose taps and lanes are places along the tile's axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product as combinations

from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES, WORD_BYTES, Multiples, needed_multiples
from kernel_lsp.generate.codegen.elements.runs import shared_condition
from kernel_lsp.generate.codegen.elements.window_rows import (
    ARRAY_SERIAL,
    LocalArray,
    ReadTile,
    headers_of,
    replaced,
    with_row_extremes,
)
from kernel_lsp.generate.codegen.operators import ADD, TERNARY, loaded, stored
from kernel_lsp.generate.codegen.scope import MAX_UNROLLED, Scope
from kernel_lsp.generate.fusion.groups import Store
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import ONE, ZERO, Index, as_index, product, substitute
from kernel_lsp.generate.ir.scalar import Access, Constant, Loop, Operation, Scalar, accesses, nodes, transformed
from kernel_lsp.generate.ir.sizes import coefficient, ravel
from kernel_lsp.generate.ir.workload import Workload

MAX_TILE = 64
"""Maximum elements of a tile; each takes a register."""


@dataclass(frozen=True)
class _Tile:
    """A value over the places of a tile. `numbers` are those of the loop's value along each."""

    value: Scalar
    source: Access
    places: tuple[Variable, ...]
    numbers: tuple[Index, ...]

    @property
    def extents(self) -> tuple[Index, ...]:
        return tuple(place.extent for place in self.places)

    @property
    def n_elements(self) -> int:
        return product(self.extents).constant or 0


@dataclass(frozen=True)
class _Packs:
    """The `n` packs of `width` elements in each row of a tile, behind its `first` single elements. `value` is that of a
    `lane` of a `piece`, which reads `access`; `start` is the position of the piece in memory."""

    n: int
    width: int
    first: int
    piece: Variable
    lane: Variable
    value: Scalar
    access: Access
    start: Index
    needed: Multiples

    @property
    def place(self) -> Index:
        """Return the place of a lane in the row."""
        return as_index(self.piece) * self.width + as_index(self.lane) + self.first

    @property
    def outside(self) -> Constant | None:
        """Return the number that elements out of bounds are, where each is that or what is read."""
        if not isinstance(self.value, Operation) or self.value.name != "select":
            return None
        condition, read, number = self.value.operands
        is_read = read.digest == self.access.digest and condition == self.access.mask
        return number if is_read and isinstance(number, Constant) else None


def with_tiles(
    scope: Scope, stores: Sequence[Store], lanes: Sequence[Variable], workload: Workload | None
) -> tuple[list[Store], Multiples]:
    """Declare the tiles of what the stores read under a mask in loops over windows, which are unrolled as the `lanes`
    are; return the stores that read them, and what sizes must be multiples of for their rows to be loads of packs."""
    made: dict[bytes, Scalar] = {}
    tiles: dict[bytes, ReadTile] = {}
    multiples: list[tuple[Index, int]] = []
    for loop in sorted(_plain_loops(stores), key=lambda loop: loop.digest):
        for node in [found for operand in loop.operands for found in _tiled(scope, operand, loop, lanes)]:
            if node.digest not in made:
                tile = _tile_of(scope, node, loop, lanes)
                assert tile is not None
                packs = None if workload is None else _packs_of(tile, workload)
                array = _load(scope, node, tile, packs)
                read = made[node.digest] = array.read(ravel(tile.numbers, tile.extents))
                tiles[read.digest] = ReadTile(array, tile.extents, tile.numbers)
                multiples += packs.needed if packs is not None else ()
    if not made:
        return list(stores), ()
    placed = [replace(store, scalar=replaced(store.scalar, made)) for store in stores]
    return with_row_extremes(scope, placed, tiles, lanes), tuple(multiples)


def _plain_loops(stores: Sequence[Store]) -> Iterator[Loop]:
    """Yield the loops without a loop in them whose iterations are unrolled."""
    for node in nodes(*(store.scalar for store in stores)):
        if isinstance(node, Loop) and not any(isinstance(inner, Loop) for inner in nodes(*node.operands)):
            extents = [variable.extent.constant or 0 for variable in node.loop_variables]
            if all(0 < extent <= MAX_UNROLLED for extent in extents):
                yield node


def _tiled(scope: Scope, node: Scalar, loop: Loop, lanes: Sequence[Variable]) -> Iterator[Scalar]:
    """Yield the largest values below a node that a tile can hold."""
    if any(access.mask is not None for access in accesses(node)):
        if _tile_of(scope, node, loop, lanes) is not None:
            yield node
        else:
            for operand in node.operands:
                yield from _tiled(scope, operand, loop, lanes)


def _tile_of(scope: Scope, node: Scalar, loop: Loop, lanes: Sequence[Variable]) -> _Tile | None:
    """Return the tile of a value; None unless it has fewer elements than the windows read."""
    source = min(accesses(node), key=lambda access: (access.tensor.serial, access.digest))
    own = [lane for lane in lanes if lane in node.variables]
    taps = [tap for tap in loop.loop_variables if tap in node.variables]
    replacements: dict[Variable, Index] = {}
    places: list[Variable] = []
    numbers: list[Index] = []
    for tap in taps:
        sign, shift = _shift(source, tap, lanes)
        values = [_at(shift * sign, own, chosen) for chosen in combinations(*(_values(lane) for lane in own))]
        if any(value is None for value in values):
            return None
        low = min(value for value in values if value is not None)
        extent = max(value for value in values if value is not None) - low + (tap.extent.constant or 0)
        places.append(Variable(tap.name, ARRAY_SERIAL + len(places), as_index(extent)))
        replacements[tap] = as_index(places[-1]) + low - shift * sign
        numbers.append(as_index(tap) + shift * sign - low)
    value = node.substitute(replacements)
    tile = _Tile(value, source, tuple(places), tuple(numbers))
    n_read = product(variable.extent for variable in (*own, *taps)).constant or 0
    is_known = value.variables.isdisjoint((*lanes, *taps)) and scope.knows(value.variables - set(places))
    return tile if is_known and tile.n_elements <= MAX_TILE and tile.n_elements < n_read else None


def _shift(source: Access, tap: Variable, lanes: Sequence[Variable]) -> tuple[int, Index]:
    """Return the sign of a tap in the position that it moves, and what the lanes add to that position."""
    for index in source.index:
        factor = coefficient(index, tap)
        if factor in (ONE, ZERO - 1):
            of_lanes = {
                monomial: times
                for monomial, times in index.terms
                if monomial and all(atom.variables and atom.variables <= set(lanes) for atom in monomial)
            }
            return (1 if factor == ONE else -1), Index(of_lanes)
    return 1, ZERO


def _values(lane: Variable) -> range:
    return range(lane.extent.constant or 0)


def _at(shift: Index, lanes: Sequence[Variable], chosen: Sequence[int]) -> int | None:
    values = {lane: as_index(value) for lane, value in zip(lanes, chosen, strict=True)}
    return substitute(shift, values).constant


def _packs_of(tile: _Tile, workload: Workload) -> _Packs | None:
    """Return the widest packs in the rows of a tile; None where neighbours in a row are none in memory, or differ in
    more than their element."""
    along = tile.places[-1] if tile.places else None
    reads = [access for access in accesses(tile.value) if along in access.variables]
    if along is None or len(reads) != 1 or reads[0].dtype != tile.source.dtype:
        return None
    flat, itemsize = ravel(reads[0].index, reads[0].tensor.shape), reads[0].tensor.dtype.itemsize
    length = along.extent.constant or 0
    if coefficient(flat, along) != ONE:
        return None
    for width in (n_bytes // itemsize for n_bytes in (MAX_PACK_BYTES, 8, WORD_BYTES) if n_bytes > itemsize):
        for first in range(max(0, min(width, length - width + 1))):
            needed = needed_multiples(substitute(flat, {along: as_index(first)}), width, workload)
            found = None if needed is None else _packs_from(tile.value, along, width, first, workload)
            if needed is not None and found is not None:
                return replace(found, needed=(*needed, *found.needed))
    return None


def _packs_from(value: Scalar, along: Variable, width: int, first: int, workload: Workload) -> _Packs | None:
    """Return the packs from the `first` place of each row on; None unless their lanes share all conditions."""
    n = ((along.extent.constant or 0) - first) // width
    piece = Variable("piece", ARRAY_SERIAL - 1, as_index(n))
    lane = Variable("v", ARRAY_SERIAL - 2, as_index(width))
    needed: list[tuple[Index, int]] = []

    def change(node: Scalar) -> Scalar:
        shared = shared_condition(node, lane, width, workload)
        needed.extend(() if shared is None else shared[1])
        return node if shared is None else shared[0]

    placed = value.substitute({along: as_index(piece) * width + as_index(lane) + first})
    # Masks are operands of what reads memory, so that `transformed` changes them, too.
    shared = transformed(placed, change)
    varying = {access for access in accesses(shared) if lane in access.variables}
    access = varying.pop() if len(varying) == 1 else None
    if access is None or (access.mask is not None and lane in access.mask.variables):
        return None
    rest = transformed(shared, lambda node: Constant(0, node.dtype) if node.digest == access.digest else node)
    if lane in rest.variables:
        return None
    start = substitute(ravel(access.index, access.tensor.shape), {lane: ZERO})
    return _Packs(n, width, first, piece, lane, shared, access, start, tuple(needed))


def _load(scope: Scope, node: Scalar, tile: _Tile, packs: _Packs | None) -> LocalArray:
    """Declare the tile and load it."""
    wanted = f"{scope.kernel.local_name(tile.source.tensor)}_tile"
    array = LocalArray.declare(scope, wanted, node.dtype, tile.n_elements)
    outer = tile.places if packs is None else tile.places[:-1]
    block = scope.unroll(*headers_of(outer))
    for place in outer:
        block.define(place, place.name)
    if packs is None:
        _fill(block, tile, array, tile.value)
    else:
        _load_packs(block, tile, array, packs)
    if outer:
        block.close()
    return array


def _fill(scope: Scope, tile: _Tile, array: LocalArray, value: Scalar, *along: Index) -> None:
    """Compute one element, whose place in the tile's row may be given."""
    outer = tile.places[: len(tile.places) - len(along)]
    at = ravel([*map(as_index, outer), *along], tile.extents)
    text = scope.value(value).text
    scope.line(f"{array.tensor.name}[{scope.index(at).text}] = {text};")


def _load_packs(scope: Scope, tile: _Tile, array: LocalArray, packs: _Packs) -> None:
    """Load a row of a tile: single elements before and behind its packs."""
    kernel, access, along = scope.kernel, packs.access, tile.places[-1]
    kernel.use("packs")
    behind = range(packs.first + packs.n * packs.width, along.extent.constant or 0)
    for single in map(as_index, (*range(packs.first), *behind)):
        _fill(scope, tile, array, tile.value.substitute({along: single}), single)
    pointer, type_ = kernel.pointer(access.tensor), f"Pack<{access.dtype.cuda_type}, {packs.width}>"
    with scope.unroll(*headers_of([packs.piece])) as pieces:
        pieces.define(packs.piece, packs.piece.name)
        source = f"*packs<{packs.width}>({pointer} + {pieces.index(packs.start).within(ADD)})"
        outside = packs.outside
        if access.mask is None:
            pack = pieces.declare(f"{pointer}_pack", type_, source)
        elif outside is None:
            inside = pieces.value(access.mask).within(TERNARY + 1)
            pack = pieces.declare(f"{pointer}_pack", type_, f"{inside} ? {source} : {type_}{{}}")
        else:
            pack = pieces.names.take(f"{pointer}_pack")
            pieces.line(f"{type_} {pack};")
            with pieces.unroll(*headers_of([packs.lane])) as lanes:
                text = stored(lanes.value(outside), outside.dtype, access.tensor.dtype)
                lanes.line(f"{pack}.item[{packs.lane.name}] = {text};")
            pieces.line(f"if ({pieces.value(access.mask).text}) {pack} = {source};")
        with pieces.unroll(*headers_of([packs.lane])) as lanes:
            lanes.define(packs.lane, packs.lane.name)
            known = access if outside is None else packs.value
            lanes.bind(known, loaded(f"{pack}.item[{packs.lane.name}]", access.dtype))
            _fill(lanes, tile, array, packs.value, packs.place)
