"""Find the maxima of a tile's rows, and their places, once for all windows one above the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.accumulator import WINDOW
from kernel_lsp.generate.codegen.kernel import KernelWriter
from kernel_lsp.generate.codegen.operators import COMPUTE_TYPE
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import Store
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import ONE, ZERO, Index, as_index, product, substitute
from kernel_lsp.generate.ir.scalar import Access, IndexValue, Loop, Operation, Scalar, cast, index_value, integer, nodes
from kernel_lsp.generate.ir.sizes import coefficient, ravel
from kernel_lsp.generate.ir.tensor import Buffer, Tensor

ARRAY_SERIAL = (1 << 22) + 4096
"""The first serial of arrays in registers, and of variables that number their places: behind those of all loops."""
EXTREMES = ("max", WINDOW)


@dataclass(frozen=True)
class LocalArray:
    """An array that stays in a thread's registers, as all loops over it are unrolled."""

    kernel: KernelWriter
    tensor: Tensor

    @classmethod
    def declare(cls, scope: Scope, wanted: str, dtype: DType, n_elements: int) -> LocalArray:
        """Declare an array of `n_elements`."""
        name = scope.names.take(wanted)
        scope.line(f"{COMPUTE_TYPE[dtype]} {name}[{n_elements}];")
        serial = ARRAY_SERIAL + len(scope.kernel.tiles)
        tensor = Tensor(name, serial, dtype, (as_index(n_elements),), Buffer())
        scope.kernel.name_array(tensor, name)
        return cls(scope.kernel, tensor)

    def read(self, place: Index) -> Access:
        """Return the element at a place."""
        element = Access(self.tensor, (place,))
        self.kernel.tiles[element.digest] = (self.tensor.name, place)
        return element


@dataclass(frozen=True)
class ReadTile:
    """A tile that a loop over windows reads: its `extents`, and the place along each in terms of taps and lanes."""

    array: LocalArray
    extents: tuple[Index, ...]
    numbers: tuple[Index, ...]


def headers_of(variables: Sequence[Variable]) -> list[str]:
    """Return the headers of loops over variables of constant extents."""
    return [f"for (int {v.name} = 0; {v.name} < {v.extent.constant}; ++{v.name})" for v in variables]


def with_row_extremes(
    scope: Scope, stores: Sequence[Store], tiles: Mapping[bytes, ReadTile], lanes: Sequence[Variable]
) -> list[Store]:
    """Declare the extremes of the rows of `tiles`, by the digest of what reads them, where windows share rows; return
    the stores that read them."""
    found: dict[tuple[bytes, tuple[Variable, ...]], list[Loop]] = {}
    for node in nodes(*(store.scalar for store in stores)):
        if isinstance(node, Loop) and node.kind in EXTREMES and node.operands[0].digest in tiles:
            found.setdefault((node.operands[0].digest, node.loop_variables), []).append(node)
    made: dict[bytes, Scalar] = {}
    for (digest, _), loops in sorted(found.items(), key=lambda item: item[0][0]):
        if _are_shared(tiles[digest], loops, lanes):
            made |= _with_rows(scope, tiles[digest], loops, lanes)
    return [replace(store, scalar=replaced(store.scalar, made)) for store in stores] if made else list(stores)


def _are_shared(tile: ReadTile, loops: Sequence[Loop], lanes: Sequence[Variable]) -> bool:
    """Return True if windows of two dims meet each row of the tile several times, and places grow by one along it."""
    taps = loops[0].loop_variables
    if len(taps) != 2 or len(tile.extents) != 2 or taps[0] in tile.numbers[1].variables:
        return False
    own = [lane.extent for lane in lanes if lane in tile.numbers[0].variables]
    n_met = product([*own, taps[0].extent]).constant or 0
    return (tile.extents[0].constant or 0) < n_met and all(_grows_by_one(loop) for loop in loops)


def _grows_by_one(loop: Loop) -> bool:
    place = loop.operands[1] if loop.kind == WINDOW else None
    is_counted = isinstance(place, IndexValue) and coefficient(place.index, loop.loop_variables[-1]) == ONE
    return place is None or is_counted


def _with_rows(scope: Scope, tile: ReadTile, loops: Sequence[Loop], lanes: Sequence[Variable]) -> dict[bytes, Scalar]:
    """Declare the extremes of each row for the windows along it; return what replaces the loops of a maximum, of its
    place or both, by digest."""
    taps, name, dtype = loops[0].loop_variables, tile.array.tensor.name, tile.array.tensor.dtype
    row = Variable("row", ARRAY_SERIAL + len(scope.kernel.tiles), tile.extents[0])
    own = [row, *(lane for lane in lanes if lane in tile.numbers[1].variables)]
    shape = [variable.extent for variable in own]
    n_elements = product(shape).constant or 0
    maxima = LocalArray.declare(scope, f"{name}_rows", dtype, n_elements)
    places = LocalArray.declare(scope, f"{name}_places", DType.I32, n_elements) if _has_places(loops) else None
    at = ravel([as_index(variable) for variable in own], shape)
    with scope.unroll(*headers_of(own)) as inner:
        for variable in own:
            inner.define(variable, variable.name)
        read = tile.array.read(ravel([as_index(row), tile.numbers[1]], tile.extents))
        wanted: list[Scalar] = [Loop("max", taps[1:], dtype, read)]
        if places is not None:
            wanted.append(Loop(WINDOW, taps[1:], DType.I64, read, index_value(as_index(taps[1])), integer(0)))
        for array, text in zip((maxima, places), inner.values(wanted), strict=False):
            inner.line(f"{array.tensor.name if array else ''}[{inner.index(at).text}] = {text.text};")
    at = substitute(at, {row: tile.numbers[0]})
    return {
        loop.digest: _over_rows(loop, maxima.read(at), None if places is None else places.read(at)) for loop in loops
    }


def _has_places(loops: Sequence[Loop]) -> bool:
    return any(loop.kind == WINDOW for loop in loops)


def _over_rows(loop: Loop, value: Scalar, place: Scalar | None) -> Loop:
    """Return the loop over the rows of its windows."""
    outer, along = loop.loop_variables
    if loop.kind != WINDOW or place is None:
        return Loop(loop.kind, (outer,), loop.dtype, value)
    _, position, *first = loop.operands
    assert isinstance(position, IndexValue)
    start = index_value(substitute(position.index, {along: ZERO}))
    return Loop(
        WINDOW, (outer,), loop.dtype, value, Operation("add", DType.I64, (start, cast(place, DType.I64))), *first
    )


def replaced(scalar: Scalar, made: Mapping[bytes, Scalar]) -> Scalar:
    """Return the scalar with what was `made` of its parts, by digest, the outermost first."""
    if scalar.digest in made:
        return made[scalar.digest]
    operands = tuple(replaced(operand, made) for operand in scalar.operands)
    return scalar if operands == scalar.operands else scalar.rebuilt(operands)
