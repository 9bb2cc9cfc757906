"""Load the elements that the windows of a box read into registers once, with one bounds check each.

Windows that overlap read most elements several times, and the gradients of windows read most windows so. A tile holds
what all windows of a thread's box read: a value whose taps and lanes are places along the tile's axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product as combinations

from kernel_lsp.generate.codegen.operators import COMPUTE_TYPE
from kernel_lsp.generate.codegen.scope import MAX_UNROLLED, Scope
from kernel_lsp.generate.fusion.groups import Store
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import ONE, ZERO, Index, as_index, product, substitute
from kernel_lsp.generate.ir.scalar import Access, Loop, Scalar, accesses, nodes
from kernel_lsp.generate.ir.sizes import coefficient, ravel
from kernel_lsp.generate.ir.tensor import Buffer, Tensor

MAX_TILE = 64
"""Maximum elements of a tile; each takes a register."""
TILE_SERIAL = (1 << 22) + 4096
"""The first serial of variables that number the places of tiles: behind those of all loops."""


@dataclass(frozen=True)
class _Tile:
    """A value over the places of a tile. `element` is the place of the loop's value in the array."""

    value: Scalar
    source: Access
    places: tuple[Variable, ...]
    element: Index

    @property
    def n_elements(self) -> int:
        return product(place.extent for place in self.places).constant or 0


def with_tiles(scope: Scope, stores: Sequence[Store], lanes: Sequence[Variable]) -> list[Store]:
    """Declare the tiles of what the stores read under a mask in loops over windows, which are unrolled as the `lanes`
    are; return the stores that read them."""
    made: dict[bytes, Scalar] = {}
    for loop in sorted(_plain_loops(stores), key=lambda loop: loop.digest):
        for node in [found for operand in loop.operands for found in _tiled(scope, operand, loop, lanes)]:
            if node.digest not in made:
                tile = _tile_of(scope, node, loop, lanes)
                assert tile is not None
                made[node.digest] = _load(scope, node, tile, len(made))
    if not made:
        return list(stores)
    return [replace(store, scalar=_replaced(store.scalar, made)) for store in stores]


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
        places.append(Variable(tap.name, TILE_SERIAL + len(places), as_index(extent)))
        replacements[tap] = as_index(places[-1]) + low - shift * sign
        numbers.append(as_index(tap) + shift * sign - low)
    value = node.substitute(replacements)
    tile = _Tile(value, source, tuple(places), ravel(numbers, [place.extent for place in places]))
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


def _load(scope: Scope, node: Scalar, tile: _Tile, number: int) -> Scalar:
    """Declare the tile and load it; return the read of its element."""
    kernel = scope.kernel
    name = scope.names.take(f"{kernel.local_name(tile.source.tensor)}_tile")
    scope.line(f"{COMPUTE_TYPE[node.dtype]} {name}[{tile.n_elements}];")
    headers = (f"for (int {v.name} = 0; {v.name} < {v.extent.constant}; ++{v.name})" for v in tile.places)
    with scope.unroll(*headers) as inner:
        for place in tile.places:
            inner.define(place, place.name)
        at = ravel([as_index(place) for place in tile.places], [place.extent for place in tile.places])
        value = inner.value(tile.value).text
        inner.line(f"{name}[{inner.index(at).text}] = {value};")
    local = Tensor(name, TILE_SERIAL + number, node.dtype, (as_index(tile.n_elements),), Buffer())
    read = Access(local, (tile.element,))
    kernel.tiles[read.digest] = (name, tile.element)
    kernel.name_array(local, name)
    return read


def _replaced(scalar: Scalar, made: dict[bytes, Scalar]) -> Scalar:
    """Return the scalar that reads tiles."""
    if scalar.digest in made:
        return made[scalar.digest]
    operands = tuple(_replaced(operand, made) for operand in scalar.operands)
    return scalar if operands == scalar.operands else scalar.rebuilt(operands)
