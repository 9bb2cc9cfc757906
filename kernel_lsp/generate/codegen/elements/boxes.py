"""Compute a small box of neighbouring elements per thread, so that shared reads are made once.

A pixel that several channels read, or a window that several pixels read, stays in the thread's registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kernel_lsp.core.expression import Binary, Constant, Expression
from kernel_lsp.generate.codegen.elements.elementwise import write_stores
from kernel_lsp.generate.codegen.elements.packs import (
    MAX_PACK_BYTES,
    WORD_BYTES,
    Multiples,
    multiple_conditions,
    needed_multiples,
)
from kernel_lsp.generate.codegen.elements.runs import load_runs
from kernel_lsp.generate.codegen.elements.window_tiles import with_tiles
from kernel_lsp.generate.codegen.kernel import (
    BY_RANK,
    MAX_GRID_YZ,
    KernelWriter,
    RenderedKernel,
    blocks_of,
    divisible,
    rendered,
)
from kernel_lsp.generate.codegen.operators import ADD, stored
from kernel_lsp.generate.codegen.scope import MAX_UNROLLED, Scope
from kernel_lsp.generate.fusion.groups import ElementwiseGroup, Store
from kernel_lsp.generate.interleaved_channels import CHANNELS
from kernel_lsp.generate.ir.atoms import Atom, Quotient, Symbol, Variable
from kernel_lsp.generate.ir.index import ONE, ZERO, Index, as_index, divide_exactly, product, replace_atoms, substitute
from kernel_lsp.generate.ir.scalar import Access, Loop, Operation, Scalar, accesses, nodes, rewrite
from kernel_lsp.generate.ir.sizes import coefficient, ravel, to_expression, unravel
from kernel_lsp.generate.ir.workload import Workload

LOCAL_NAMES = ("i", "plane", "u0", "u1", "u2", "u3", "u4", "row", "line", "piece", "v")
FACTORS = (2, 4, 8)
PLANE_AXES = 2
"""Last axes that form a plane."""
MAX_IDLE = 0.25
"""Maximum share of idle threads in the blocks of a plane by default: finding a coordinate costs a thread about 25 of
300 instructions."""


def boxes_of(group: ElementwiseGroup) -> list[tuple[int, ...]]:
    """Return the candidate boxes: along one axis, and along the last two."""
    rank = len(group.shape)
    if rank > 5 or any(size.constant == 0 for size in group.shape):
        return []
    found = [tuple(factor if axis == at else 1 for axis in range(rank)) for at in range(rank) for factor in FACTORS]
    if rank >= 2:
        found += [(*(1,) * (rank - 2), high, wide) for high in (2, 4) for wide in (2, 4)]
    if rank >= 3:
        found += [(*(1,) * (rank - 3), deep, 1, wide) for deep in (2, 4, 8) for wide in (2,)]
    return [box for box in found if all(_fits(size, factor) for size, factor in zip(group.shape, box, strict=True))]


def over_pixels(group: ElementwiseGroup) -> ElementwiseGroup | None:
    """Return the group over (images, channels, pixels) where it reads pixels of 8 bits per channel and has the channels
    in planes; None for any other. A thread that takes whole pixels reads words and writes a pack of each plane."""
    for axis, size in enumerate(group.shape[:-1]):
        if size.constant not in CHANNELS:
            continue
        shape = (product(group.shape[:axis]), size, product(group.shape[axis + 1 :]))
        folded = ElementwiseGroup(group.position, shape, group.stores)
        _, channel, pixel = axis_variables(folded)
        stores = over_axes(folded, axis_variables(folded))
        if any(coefficient(ravel(store.index, store.tensor.shape), pixel) != ONE for store in stores):
            continue
        for access in accesses(*(store.scalar for store in stores)):
            flat = ravel(access.index, access.tensor.shape)
            if access.dtype.itemsize == 1 and (coefficient(flat, channel), coefficient(flat, pixel)) == (ONE, size):
                return folded
    return None


def pixel_boxes(group: ElementwiseGroup, workload: Workload) -> list[tuple[int, ...]]:
    """Return the boxes of a group over pixels, the widest first: whole words of whole packs."""
    n_channels, n_pixels = group.shape[1].constant or 0, workload.size(group.shape[2])
    widest = max(store.tensor.dtype.itemsize for store in group.stores)
    widths = [width for width in reversed(FACTORS) if width * widest <= MAX_PACK_BYTES and n_pixels % width == 0]
    return [(1, n_channels, width) for width in widths if width * n_channels % WORD_BYTES == 0]


def has_loops(stores: Sequence[Store]) -> bool:
    return any(isinstance(node, Loop) for node in nodes(*(store.scalar for store in stores)))


def fits_planes(group: ElementwiseGroup, box: tuple[int, ...], workload: Workload, threads: int) -> bool:
    """Return True if blocks of windows that stay within a plane have few idle threads. Blocks of pixels side by side
    would be of different images: 8 Mi of them in f32 took 35.4 us on an H200 so, 32.6 us image after image."""
    if not has_loops(group.stores):
        return False
    counts = [_count(size, factor) for size, factor in zip(group.shape, box, strict=True)]
    n_in_plane = workload.size(product(counts[-PLANE_AXES:]))
    n_threads = -(-n_in_plane // threads) * threads
    return len(counts) > PLANE_AXES and n_threads - n_in_plane <= MAX_IDLE * n_threads


def render_boxes(
    kernel: KernelWriter,
    group: ElementwiseGroup,
    box: tuple[int, ...],
    threads: int,
    comment: str,
    *,
    planes: bool,
    workload: Workload | None,
    n_resident: int | None,
) -> RenderedKernel:
    """Render the kernel of an elementwise group with a box per thread. With `planes` blocks stay within a plane of the
    last two axes, so that the other coordinates are the block's. With a `workload`, rows of windows and of the box are
    loads and stores of packs, whose contract its sizes fulfil. `n_resident` are the minimum resident blocks per SM."""
    kernel.max_unrolled = MAX_UNROLLED
    scope = Scope(kernel)
    variables = axis_variables(group)
    stores = over_axes(group, variables)
    whole = whole_sizes(group, workload)
    group = replace(group, shape=resized(group.shape, whole))
    counts = [_count(size, factor) for size, factor in zip(group.shape, box, strict=True)]
    grid, conditions, positions = (_begin_in_plane if planes else _begin)(scope, counts, threads)
    conditions += [condition for size, whole_size in whole.items() for condition in _is_whole(size, whole_size)]
    replacements: dict[Variable, Index] = {}
    lanes: list[tuple[int, Variable, Index]] = []
    for position, axes in positions:
        lanes += _declare_box(scope, group, (position, axes), box, counts, variables, replacements)
    placed = [
        Store(
            kernel.resized(store.tensor, resized(store.tensor.shape, whole)),
            tuple(substitute(index, replacements) for index in store.index),
            with_relu_last(_with_sizes(kernel, store.scalar.substitute(replacements), whole)),
        )
        for store in stores
    ]
    multiples = load_runs(scope, placed, _whole_lanes(group, lanes, workload), workload)
    placed, of_tiles = with_tiles(scope, placed, [lane for _, lane, _ in lanes], workload)
    multiples += of_tiles
    scope.hoist([store.scalar for store in placed], [lane for _, lane, _ in lanes])
    packed = _packed_lane(group, placed, lanes, workload)
    if packed is None:
        inner = _open_lanes(scope, group, lanes)
        write_stores(inner[-1], placed)
    else:
        multiples += packed
        inner = _open_lanes(scope, group, lanes[:-1])
        _write_packs(inner[-1], placed, lanes[-1][1])
    for block in reversed(inner[1:]):
        block.close()
    conditions += multiple_conditions(multiples)
    return rendered(kernel, comment, scope.lines, grid, (threads,), conditions, min_blocks=n_resident)


def whole_sizes(group: ElementwiseGroup, workload: Workload | None) -> dict[Symbol, Index]:
    """Return sizes of which another dim is a quotient without a rest, as a multiple of that: the height of an image
    that windows cover. With a contract for them, places in both tensors need one division."""
    read = [access.tensor for store in group.stores for access in accesses(store.scalar)]
    tensors = sorted({*read, *(store.tensor for store in group.stores)}, key=lambda tensor: tensor.serial)
    dims = dict.fromkeys(size for tensor in tensors for size in tensor.shape)
    found: dict[Symbol, Index] = {}
    for symbol in (atom for size in dims for atoms, _ in size.terms for atom in atoms if isinstance(atom, Symbol)):
        whole = _divided(symbol)
        if workload is None or whole is None:
            continue
        size, divisor = whole
        if as_index(size) in dims and workload.size(as_index(size)) % divisor == 0:
            found[size] = as_index(symbol) * divisor
    return found


def _divided(symbol: Symbol) -> tuple[Symbol, int] | None:
    """Return the size and the number whose quotient a derived size is; None for any other size."""
    quotient = symbol.exact.atom if symbol.exact is not None else None
    if not isinstance(quotient, Quotient):
        return None
    size, divisor = quotient.dividend.atom, quotient.divisor.constant
    return (size, divisor) if isinstance(size, Symbol) and divisor else None


def _is_whole(size: Symbol, whole: Index) -> tuple[Expression, ...]:
    """Return the condition that a size is the multiple that it is replaced by."""
    return divisible(as_index(size), whole.terms[0][1])


def resized(shape: Sequence[Index], whole: Mapping[Symbol, Index]) -> tuple[Index, ...]:
    """Return the shape with sizes as multiples of others."""

    def of_others(atom: Atom) -> Index:
        return whole.get(atom, as_index(atom)) if isinstance(atom, Symbol) else as_index(atom)

    return tuple(replace_atoms(size, of_others) for size in shape) if whole else tuple(shape)


def _with_sizes(kernel: KernelWriter, scalar: Scalar, whole: Mapping[Symbol, Index]) -> Scalar:
    """Return the scalar that reads tensors of sizes that are multiples of others."""

    def read(access: Access) -> Scalar:
        tensor = kernel.resized(access.tensor, resized(access.tensor.shape, whole))
        return Access(tensor, access.index, access.mask)

    return rewrite(scalar, read) if whole else scalar


Positions = list[tuple[Variable, Sequence[int]]]
"""Variables of a thread's position, each with the axes that it numbers."""


def _begin(scope: Scope, counts: Sequence[Index], threads: int) -> tuple[list[Expression], list[Expression], Positions]:
    """Declare the number of a thread's box. Return the grid, its conditions, and the position."""
    type_, n_boxes = scope.kernel.index_type, product(counts)
    cast = "(long long)" if type_ == "long long" else ""
    scope.line(f"const {type_} i = {cast}blockIdx.x * {threads} + threadIdx.x;")
    scope.line(f"if (i >= {scope.kernel.size('n_boxes', n_boxes)}) return;")
    position = Variable("i", (1 << 21) + 100, n_boxes)
    scope.define(position, "i")
    return [blocks_of(n_boxes, threads)], [], [(position, range(len(counts)))]


def _begin_in_plane(
    scope: Scope, counts: Sequence[Index], threads: int
) -> tuple[list[Expression], list[Expression], Positions]:
    """Declare the plane of a block and the number of a thread's box in it."""
    kernel, first = scope.kernel, len(counts) - PLANE_AXES
    n_planes, n_in_plane = product(counts[:first]), product(counts[first:])
    scope.line(f"const {kernel.index_type} plane = blockIdx.x;")
    scope.line(f"const int i = blockIdx.y * {threads} + threadIdx.x;")
    scope.line(f"if (i >= {kernel.size('n_in_plane', n_in_plane)}) return;")
    plane, position = Variable("plane", (1 << 21) + 99, n_planes), Variable("i", (1 << 21) + 100, n_in_plane)
    scope.define(plane, "plane")
    scope.define(position, "i")
    n_blocks = blocks_of(n_in_plane, threads)
    conditions: list[Expression] = (
        [] if n_in_plane.constant is not None else [Binary("<=", n_blocks, Constant(MAX_GRID_YZ))]
    )
    positions: Positions = [(plane, range(first)), (position, range(first, len(counts)))]
    return [to_expression(n_planes), n_blocks], conditions, positions


def _fits(size: Index, factor: int) -> bool:
    return factor == 1 or size.constant is None or (size.constant >= factor and size.constant % factor == 0)


def _count(size: Index, factor: int) -> Index:
    """Return the number of boxes along an axis; the last may exceed the axis."""
    if factor == 1:
        return size
    exact = divide_exactly(size, as_index(factor))
    return exact if exact is not None else (size + (factor - 1)) // factor


def axis_variables(group: ElementwiseGroup) -> list[Variable]:
    rank = len(group.shape)
    names = BY_RANK.get(rank, tuple(f"i{axis}" for axis in range(rank)))
    return [Variable(names[axis], (1 << 21) + axis, size) for axis, size in enumerate(group.shape)]


def over_axes(group: ElementwiseGroup, variables: Sequence[Variable]) -> list[Store]:
    """Return the stores over one coordinate per axis instead of a flat position."""
    position = [as_index(0) if v.extent.constant == 1 else as_index(v) for v in variables]
    replacements = {group.position: ravel(position, group.shape)}
    return [
        Store(
            store.tensor,
            tuple(substitute(index, replacements) for index in store.index),
            store.scalar.substitute(replacements),
        )
        for store in group.stores
    ]


def _declare_box(
    scope: Scope,
    group: ElementwiseGroup,
    at: tuple[Variable, Sequence[int]],
    box: Sequence[int],
    counts: Sequence[Index],
    variables: Sequence[Variable],
    replacements: dict[Variable, Index],
) -> list[tuple[int, Variable, Index]]:
    """Declare the box's coordinates along the axes that a position numbers, and add them to `replacements`. Return each
    axis with several elements, as loop variable and coordinate."""
    position, axes = at
    kept = [axis for axis in axes if group.shape[axis].constant != 1]
    leading = _leading(kept, box, group.shape, counts) if axes[0] == 0 else []
    outer = Variable("outer", (1 << 21) + 101, product(counts[axis] for axis in leading))
    kept = [axis for axis in kept if axis not in leading]
    first, *found = unravel(as_index(position), [outer.extent, *(counts[axis] for axis in kept)])
    lanes: list[tuple[int, Variable, Index]] = []

    def place(axis: int, index: Index) -> None:
        replacements[variables[axis]] = index * box[axis]
        if box[axis] > 1:
            lane = Variable(f"u{axis}", (1 << 21) + 300 + axis, as_index(box[axis]))
            replacements[variables[axis]] += as_index(lane)
            lanes.append((axis, lane, replacements[variables[axis]]))

    if leading:
        scope.define(outer, scope.declare("outer", "int", scope.index(first).text))
        for axis, index in zip(leading, unravel(as_index(outer), [counts[axis] for axis in leading]), strict=True):
            place(axis, index)
    for axis, index in zip(kept, found, strict=True):
        variable, factor = variables[axis], box[axis]
        if counts[axis] == ONE:
            lane = Variable(f"u{axis}", (1 << 21) + 300 + axis, as_index(factor))
            replacements[variable] = as_index(lane)
            lanes.append((axis, lane, replacements[variable]))
            continue
        block = Variable(variable.name, (1 << 21) + 200 + axis, counts[axis])
        name = scope.declare(f"{variable.name}_box" if factor > 1 else variable.name, "int", scope.index(index).text)
        scope.define(block, name)
        place(axis, as_index(block))
    return lanes


def with_relu_last(scalar: Scalar) -> Scalar:
    """Return the scalar with the ReLU of a maximum instead of the maximum of ReLUs. Both keep NaN."""
    operands = tuple(map(with_relu_last, scalar.operands))
    if isinstance(scalar, Loop) and scalar.kind == "max" and isinstance(operands[0], Operation):
        (value,) = operands
        if isinstance(value, Operation) and value.name == "relu":
            return value.rebuilt((scalar.rebuilt(value.operands),))
    return scalar.rebuilt(operands) if operands != scalar.operands else scalar


def _leading(kept: Sequence[int], box: Sequence[int], shape: Sequence[Index], counts: Sequence[Index]) -> list[int]:
    """Return the first axes when several have no boxes, or whole ones where another axis follows: most indices need
    only their common position."""
    n_leading = 0
    for place, axis in enumerate(kept):
        is_whole = place < len(kept) - 1 and counts[axis] * box[axis] == shape[axis]
        if box[axis] > 1 and not is_whole:
            break
        n_leading += 1
    return list(kept[:n_leading]) if n_leading > 1 else []


def _open_lanes(scope: Scope, group: ElementwiseGroup, lanes: Sequence[tuple[int, Variable, Index]]) -> list[Scope]:
    """Open the loops over a box, from the outermost block in."""
    opened = [scope]
    for axis, lane, index in lanes:
        block = opened[-1].unroll(f"for (int {lane.name} = 0; {lane.name} < {lane.extent.constant}; ++{lane.name})")
        block.define(lane, lane.name)
        if divide_exactly(group.shape[axis], lane.extent) is None:
            limit = scope.kernel.size(f"size_{axis}", group.shape[axis])
            block.line(f"if ({block.index(index).text} >= {limit}) continue;")
        opened.append(block)
    return opened


def _whole_lanes(
    group: ElementwiseGroup,
    lanes: Sequence[tuple[int, Variable, Index]],
    workload: Workload | None,
) -> dict[Variable, Multiples]:
    """Return the lanes along axes that boxes divide at the captured sizes, each with what its axis must be a multiple
    of."""
    found = (
        (lane, needed_multiples(group.shape[axis], lane.extent.constant or 0, workload)) for axis, lane, _ in lanes
    )
    return {lane: needed for lane, needed in found if needed is not None}


def _packed_lane(
    group: ElementwiseGroup,
    stores: Sequence[Store],
    lanes: Sequence[tuple[int, Variable, Index]],
    workload: Workload | None,
) -> Multiples | None:
    """Return what sizes must be multiples of for the results along the last axis to be whole packs; None where they are
    not."""
    if not lanes or lanes[-1][0] != len(group.shape) - 1:
        return None
    lane = lanes[-1][1]
    width = lane.extent.constant or 0
    found = [needed_multiples(group.shape[-1], width, workload)]
    for store in stores:
        flat = ravel(store.index, store.tensor.shape)
        is_pack = coefficient(flat, lane) == ONE and width * store.tensor.dtype.itemsize <= MAX_PACK_BYTES
        found.append(needed_multiples(substitute(flat, {lane: ZERO}), width, workload) if is_pack else None)
    needed = [multiples for multiples in found if multiples is not None]
    return tuple(entry for multiples in needed for entry in multiples) if len(needed) == len(found) else None


def _write_packs(scope: Scope, stores: Sequence[Store], lane: Variable) -> None:
    """Compute the elements along the lane, then store each result as one pack."""
    scope.kernel.use("packs")
    width = lane.extent.constant
    names = [scope.names.take(f"{scope.kernel.target(store.tensor)}_pack") for store in stores]
    for store, name in zip(stores, names, strict=True):
        scope.line(f"Pack<{store.tensor.dtype.cuda_type}, {width}> {name};")
    with scope.unroll(f"for (int {lane.name} = 0; {lane.name} < {width}; ++{lane.name})") as inner:
        inner.define(lane, lane.name)
        texts = inner.values([store.scalar for store in stores])
        for store, name, text in zip(stores, names, texts, strict=True):
            inner.line(f"{name}.item[{lane.name}] = {stored(text, store.scalar.dtype, store.tensor.dtype)};")
    for store, name in zip(stores, names, strict=True):
        first = substitute(ravel(store.index, store.tensor.shape), {lane: ZERO})
        scope.line(f"*packs<{width}>({scope.kernel.target(store.tensor)} + {scope.index(first).within(ADD)}) = {name};")
