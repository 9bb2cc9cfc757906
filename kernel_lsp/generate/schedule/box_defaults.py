"""Choose the box of elements of each thread that shares what they read."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.accumulator import WINDOW
from kernel_lsp.generate.codegen.elements.boxes import FACTORS, PLANE_AXES, axis_variables, has_loops, over_axes
from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES
from kernel_lsp.generate.fusion.groups import ElementwiseGroup, Store
from kernel_lsp.generate.ir.atoms import Quotient, Variable
from kernel_lsp.generate.ir.index import ONE, ZERO, as_index
from kernel_lsp.generate.ir.scalar import Access, Loop, accesses, nodes
from kernel_lsp.generate.ir.sizes import coefficient, ravel
from kernel_lsp.generate.ir.workload import Workload

OVERLAPPING = 3
"""Elements of windows along each axis of which threads take pairs."""
PLACE_BOXES = ((4, 2), (2, 2), (1, 4), (1, 2))
"""Boxes of windows with the places of their maxima, and of their gradients, by steps of one, the best first: gradients
of 5 x 5 took 11.9 us on an H200 by 4 x 2, 13.9 by 2 x 4 and 17.2 by pairs, of 3 x 3 13.2, 15.3 and 16.2. By steps of
two, the places took 38.6 us by 2 x 2 and 45.5 by 2 x 4."""
PLACES_OF_PACKS = (2, 4)
"""Windows of maxima with their places, by steps of one, whose rows are packs: of 3 x 3 in f32, (16, 64, 56, 56), they
took 14.5 us on an H200, 14.8 by 4 x 2; in bf16 62 instructions for each, 74 by 4 x 2. By steps of two, (32, 64, 112,
112), they took 35.5 us in f32 by 1 x 2, whose rows are 16 bytes, 37.2 by 2 x 2 and by 1 x 4, 38.0 by 2 x 4."""
MAXIMUM_BOXES = ((2, 4), (1, 4))
"""The same of larger maxima alone."""
NARROW_BOX = (2, 4)
"""Windows of a thread whose results have 16 bits and whose windows another tensor weighs: a depthwise convolution of
(32, 192, 56, 56) by 3 x 3 with a SiLU took 105.2 us on an H200 by single windows, 80.2 so, 81.7 by 4 x 4 and 94.5 by 8
side by side."""
BUSY_THREADS = 512
"""Minimum threads per multiprocessor for a default box; latency is exposed with fewer."""


def default_box(
    group: ElementwiseGroup, workload: Workload, boxes: Sequence[tuple[int, ...]], *, is_large: bool
) -> tuple[int, ...] | None:
    """Return the one of the `boxes` whose elements share reads: a window that several of them read, a value that one
    axis does not change, or a pack of the rows of neighbouring windows; of pixels, the widest where work `is_large`."""
    n_wanted = workload.size(group.position.extent) // (BUSY_THREADS * workload.n_multiprocessors)
    variables = axis_variables(group)
    stores = over_axes(group, variables)
    reads = list(accesses(*(store.scalar for store in stores)))
    if not has_loops(stores):
        return boxes[0] if is_large else None
    steps, has_places = [_window_step(variable, reads) for variable in variables], _has_places(stores)
    if any(step > 1 for step in steps):
        box = tuple(step if step <= 4 else 1 for step in steps)
        n_wide = 2 * box[-1]
        if has_places and _has_taps(variables, reads) and workload.size(variables[-1].extent) % n_wide == 0:
            box = (*box[:-1], n_wide)  # gradients of 3 x 3 by two took 48.7 us so, 56.1 by 2 x 2
    else:
        factor = max((f for f in FACTORS if f <= n_wanted), default=1)
        box = _reuse_box(group, variables, reads, factor)
        if max(box) == 1:
            box = (*box[:-1], _windows_in_pack(variables[-1], reads, factor, workload))
        if max(box) == 1 and factor > 1 and len(box) > 1:
            kinds = {loop.kind for loop in _loops(stores)}
            windows = _overlapping_windows(variables, reads, kinds, workload, has_places=has_places)
            wide = _windows_of_packs(variables, reads, kinds, workload) if has_places and is_large else None
            box = (*box[:-2], *(wide or windows))
        if max(box) == 1 and factor == max(FACTORS) and _has_narrow_windows(group, variables, reads):
            box = (*box[:-2], *NARROW_BOX)
    return box if box in boxes else None


def _loops(stores: Sequence[Store]) -> list[Loop]:
    return [node for node in nodes(*(store.scalar for store in stores)) if isinstance(node, Loop)]


def _has_places(stores: Sequence[Store]) -> bool:
    """Return True for windows with the places of their maxima in bytes, and for their gradients."""
    loops = _loops(stores)
    is_byte = any(access.dtype == DType.U8 for access in accesses(*loops))
    return is_byte or any(loop.kind == WINDOW for loop in loops)


def _has_taps(variables: Sequence[Variable], reads: Sequence[Access]) -> bool:
    return any(access.variables.difference(variables) for access in reads)


def _window_step(variable: Variable, reads: Sequence[Access]) -> int:
    """Return the size of the windows that neighbours along an axis share: the divisor of its coordinate, padded or not,
    in some index."""
    steps = [
        atom.divisor.constant or 1
        for access in reads
        for index in access.index
        for monomial, _ in index.terms
        for atom in monomial
        if isinstance(atom, Quotient) and (atom.dividend - as_index(variable)).constant is not None
    ]
    return max(steps, default=1)


def _windows_in_pack(variable: Variable, reads: Sequence[Access], most: int, workload: Workload) -> int:
    """Return how many windows side by side along an axis share a pack of a row; 1 where they overlap or none do."""
    for access in reads:
        flat = ravel(access.index, access.tensor.shape)
        step = (coefficient(flat, variable) or ZERO).constant or 0
        along = [v for v in access.variables if coefficient(flat, v) == ONE and v.extent.constant == step]
        n_windows = MAX_PACK_BYTES // (access.dtype.itemsize * max(1, step))
        is_whole = n_windows and workload.size(variable.extent) % n_windows == 0
        if step > 1 and along and is_whole and 1 < n_windows <= most:
            return n_windows
    return 1


def _overlapping_windows(
    variables: Sequence[Variable], reads: Sequence[Access], kinds: set[str], workload: Workload, *, has_places: bool
) -> tuple[int, int]:
    """Return how many windows a thread takes along the last two axes, where they overlap: maxima of 3 x 3 by steps of
    one, of (16, 64, 56, 56), took 18.7 us on an H200 by single windows and 14.2 by pairs side by side, and by steps of
    two, of (32, 64, 112, 112), 40.8 and 36.7 by pairs one above the other; maxima of 5 x 5 14.7 and 11.3 by 2 x 4."""
    steps: set[int | None] = set()
    widths: set[int] = set()
    for access in reads:
        taps = [variable.extent.constant or 0 for variable in access.variables if variable not in variables]
        if len(taps) != PLANE_AXES or (not has_places and min(taps) != max(taps)):
            return (1, 1)
        widths.update(taps)
        steps.add((coefficient(ravel(access.index, access.tensor.shape), variables[-1]) or ZERO).constant)
    if not has_places and widths == {OVERLAPPING}:
        return (1, 2) if steps == {1} else (2, 1) if steps == {2} else (1, 1)
    if not has_places and (steps != {1} or kinds != {"max"}):
        return (1, 1)
    boxes = MAXIMUM_BOXES if not has_places else PLACE_BOXES if steps == {1} else PLACE_BOXES[1:2]
    high, wide = (workload.size(variable.extent) for variable in variables[-PLANE_AXES:])
    return next((box for box in boxes if high % box[0] == 0 and wide % box[1] == 0), (1, 1))


def _windows_of_packs(
    variables: Sequence[Variable], reads: Sequence[Access], kinds: set[str], workload: Workload
) -> tuple[int, int] | None:
    """Return how many windows of 3 x 3 a thread takes along the last two axes whose maxima and places it finds, and
    whose rows are packs: by steps of two as many side by side as share 16 bytes of each row; None for any others."""
    large = [access for access in reads if len(access.tensor.shape) == len(variables)]
    steps = {(coefficient(ravel(a.index, a.tensor.shape), variables[-1]) or ZERO).constant for a in large}
    sides = {variable.extent.constant for access in large for variable in access.variables.difference(variables)}
    if WINDOW not in kinds or sides != {OVERLAPPING} or steps not in ({1}, {2}):
        return None
    n_bytes = 2 * max(access.tensor.dtype.itemsize for access in large)
    box = PLACES_OF_PACKS if steps == {1} else (1, MAX_PACK_BYTES // n_bytes)
    high, wide = (workload.size(variable.extent) for variable in variables[-PLANE_AXES:])
    return box if high % box[0] == 0 and wide % box[1] == 0 else None


def _has_narrow_windows(group: ElementwiseGroup, variables: Sequence[Variable], reads: Sequence[Access]) -> bool:
    """Return True for results of 16 bits whose windows of 3 x 3, by steps of one, overlap in a tensor as large."""
    if len(variables) <= PLANE_AXES or any(store.tensor.dtype.itemsize != 2 for store in group.stores):
        return False
    large = [access for access in reads if len(access.tensor.shape) == len(variables) and access.mask is not None]
    taps = [[v.extent.constant for v in access.variables if v not in variables] for access in large]
    steps = {(coefficient(ravel(a.index, a.tensor.shape), variables[-1]) or ZERO).constant for a in large}
    return bool(large) and steps == {1} and all(found == [OVERLAPPING, OVERLAPPING] for found in taps)


def _reuse_box(
    group: ElementwiseGroup, variables: Sequence[Variable], reads: Sequence[Access], factor: int
) -> tuple[int, ...]:
    """Return a box along the axis with strided neighbours that some reads depend on and others do not: one that shares
    what each thread reads before one that shares what a block does. A convolution of (64, 1, 28, 28) by 32 x 3 x 3 with
    its pooling took 3.8 us on an H200 by 4 channels, which share pixels, 5.1 by 4 images, which share weights."""
    found: list[tuple[bool, int]] = []
    for axis, variable in enumerate(variables[:-1]):
        size = group.shape[axis].constant or 0
        shared = [access for access in reads if variable not in access.variables]
        if size and size % factor == 0 and shared and len(shared) < len(reads):
            found.append((not any(variables[-1] in access.variables for access in shared), axis))
    if not found:
        return (1,) * len(variables)
    return tuple(factor if at == min(found)[1] else 1 for at in range(len(variables)))
