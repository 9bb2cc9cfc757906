"""Compute a small box of neighbouring elements per thread, so that shared reads are made once.

A pixel that several channels read, or a window that several pixels read, stays in the thread's registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.generate.codegen.coordinates import BY_RANK
from kernel_lsp.generate.codegen.elements.elementwise import write_stores
from kernel_lsp.generate.codegen.kernel import RenderedKernel, blocks_of, rendered
from kernel_lsp.generate.codegen.kernel_writer import KernelWriter
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import ElementwiseGroup, Store
from kernel_lsp.generate.ir.index import Index, Quotient, Variable, as_index, divide_exactly, product, substitute
from kernel_lsp.generate.ir.row_major import ravel, unravel
from kernel_lsp.generate.ir.scalar import Access, Loop
from kernel_lsp.generate.ir.scalar_walk import accesses, nodes

LOCAL_NAMES = ("i", "u0", "u1", "u2", "u3", "u4")
FACTORS = (2, 4, 8)
BUSY_THREADS = 512
"""Minimum threads per multiprocessor for a default box; latency is exposed with fewer."""


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


def default_box(group: ElementwiseGroup, n_elements: int, n_multiprocessors: int) -> tuple[int, ...] | None:
    """Return the box whose elements share reads: a window that several of them read, or a value that one axis does not
    change."""
    n_wanted = n_elements // (BUSY_THREADS * n_multiprocessors)
    variables = _axis_variables(group)
    stores = _over_axes(group, variables)
    reads = list(accesses(*(store.scalar for store in stores)))
    if not any(isinstance(node, Loop) for node in nodes(*(store.scalar for store in stores))):
        return None
    steps = [_window_step(variable, reads) for variable in variables]
    if any(step > 1 for step in steps):
        box = tuple(step if step <= 4 else 1 for step in steps)
    else:
        box = _reuse_box(group, variables, reads, max((f for f in FACTORS if f <= n_wanted), default=1))
    return box if box in boxes_of(group) else None


def render_boxes(
    kernel: KernelWriter, group: ElementwiseGroup, box: tuple[int, ...], threads: int, comment: str
) -> RenderedKernel:
    """Render the kernel of an elementwise group with a box per thread."""
    kernel.unrolls_loops = True
    scope = Scope(kernel)
    counts = [_count(size, factor) for size, factor in zip(group.shape, box, strict=True)]
    n_boxes = product(counts)
    cast = "(long long)" if kernel.index_type == "long long" else ""
    scope.line(f"const {kernel.index_type} i = {cast}blockIdx.x * {threads} + threadIdx.x;")
    scope.line(f"if (i >= {kernel.size('n_boxes', n_boxes)}) return;")
    variables = _axis_variables(group)
    stores = _over_axes(group, variables)
    replacements, lanes = _declare_box(scope, group, box, counts, variables)
    placed = [
        Store(
            store.tensor,
            tuple(substitute(index, replacements) for index in store.index),
            store.scalar.substitute(replacements),
        )
        for store in stores
    ]
    scope.hoist([store.scalar for store in placed], [lane for _, lane, _ in lanes])
    inner = _open_lanes(scope, group, lanes)
    write_stores(inner[-1], placed)
    for block in reversed(inner[1:]):
        block.close()
    return rendered(kernel, comment, scope.lines, (blocks_of(n_boxes, threads),), (threads,))


# --- boxes and their elements


def _fits(size: Index, factor: int) -> bool:
    return factor == 1 or size.constant is None or (size.constant >= factor and size.constant % factor == 0)


def _count(size: Index, factor: int) -> Index:
    """Return the number of boxes along an axis; the last may exceed the axis."""
    if factor == 1:
        return size
    exact = divide_exactly(size, as_index(factor))
    return exact if exact is not None else (size + (factor - 1)) // factor


def _axis_variables(group: ElementwiseGroup) -> list[Variable]:
    rank = len(group.shape)
    names = BY_RANK.get(rank, tuple(f"i{axis}" for axis in range(rank)))
    return [Variable(names[axis], (1 << 21) + axis, size) for axis, size in enumerate(group.shape)]


def _over_axes(group: ElementwiseGroup, variables: Sequence[Variable]) -> list[Store]:
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
    scope: Scope, group: ElementwiseGroup, box: Sequence[int], counts: Sequence[Index], variables: Sequence[Variable]
) -> tuple[dict[Variable, Index], list[tuple[int, Variable, Index]]]:
    """Declare the thread's box: its coordinates, and each axis with several elements, as loop variable and
    coordinate."""
    position = Variable("i", (1 << 21) + 100, product(counts))
    scope.define(position, "i")
    kept = [axis for axis, size in enumerate(group.shape) if size.constant != 1]
    leading = _leading(kept, box)
    outer = Variable("outer", (1 << 21) + 101, product(counts[axis] for axis in leading))
    kept = [axis for axis in kept if axis not in leading]
    first, *found = unravel(as_index(position), [outer.extent, *(counts[axis] for axis in kept)])
    replacements: dict[Variable, Index] = {}
    if leading:
        scope.define(outer, scope.declare("outer", "int", scope.index(first).text))
        places = unravel(as_index(outer), [counts[axis] for axis in leading])
        replacements = dict(zip((variables[axis] for axis in leading), places, strict=True))
    lanes: list[tuple[int, Variable, Index]] = []
    for axis, index in zip(kept, found, strict=True):
        variable, factor = variables[axis], box[axis]
        block = Variable(variable.name, (1 << 21) + 200 + axis, counts[axis])
        name = scope.declare(f"{variable.name}_box" if factor > 1 else variable.name, "int", scope.index(index).text)
        scope.define(block, name)
        if factor == 1:
            replacements[variable] = as_index(block)
            continue
        lane = Variable(f"u{axis}", (1 << 21) + 300 + axis, as_index(factor))
        replacements[variable] = as_index(block) * factor + as_index(lane)
        lanes.append((axis, lane, replacements[variable]))
    return replacements, lanes


def _leading(kept: Sequence[int], box: Sequence[int]) -> list[int]:
    """Return the first axes when several have no boxes: most indices need only their common position."""
    n_leading = next((place for place, axis in enumerate(kept) if box[axis] > 1), len(kept))
    return list(kept[:n_leading]) if n_leading > 1 else []


def _open_lanes(scope: Scope, group: ElementwiseGroup, lanes: Sequence[tuple[int, Variable, Index]]) -> list[Scope]:
    """Open the loops over a box, from the outermost block in."""
    opened = [scope]
    for axis, lane, index in lanes:
        opened[-1].line("#pragma unroll")
        block = opened[-1].open(f"for (int {lane.name} = 0; {lane.name} < {lane.extent.constant}; ++{lane.name})")
        block.define(lane, lane.name)
        if divide_exactly(group.shape[axis], lane.extent) is None:
            limit = scope.kernel.size(f"size_{axis}", group.shape[axis])
            block.line(f"if ({block.index(index).text} >= {limit}) continue;")
        opened.append(block)
    return opened


def _window_step(variable: Variable, reads: Sequence[Access]) -> int:
    """Return the size of the windows that neighbours along an axis share: the divisor of its coordinate in some
    index."""
    steps = [
        atom.divisor.constant or 1
        for access in reads
        for index in access.index
        for monomial, _ in index.terms
        for atom in monomial
        if isinstance(atom, Quotient) and atom.dividend == as_index(variable)
    ]
    return max(steps, default=1)


def _reuse_box(
    group: ElementwiseGroup, variables: Sequence[Variable], reads: Sequence[Access], factor: int
) -> tuple[int, ...]:
    """Return a box along the one axis with strided neighbours that some reads depend on and others do not."""
    for axis, variable in enumerate(variables[:-1]):
        size = group.shape[axis].constant or 0
        depends = [variable in access.variables for access in reads]
        if size and size % factor == 0 and any(depends) and not all(depends):
            return tuple(factor if at == axis else 1 for at in range(len(variables)))
    return (1,) * len(variables)
