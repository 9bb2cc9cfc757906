"""One thread per element, or per pack of neighbouring elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernel_lsp.core.expression import Binary, Constant, Expression
from kernel_lsp.generate.codegen.elements.lines import by_lines, by_whole_packs
from kernel_lsp.generate.codegen.elements.packs import (
    MAX_PACK_BYTES,
    Packing,
    bind_neighbours,
    find_packed,
    multiple_conditions,
)
from kernel_lsp.generate.codegen.elements.runs import LoopArrays, load_runs, with_whole_masks
from kernel_lsp.generate.codegen.kernel import (
    MAX_GRID_YZ,
    KernelWriter,
    RenderedKernel,
    blocks_of,
    divisible,
    name_coordinates,
    rendered,
)
from kernel_lsp.generate.codegen.operators import stored
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import ElementwiseGroup, Store
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index, divide_exactly
from kernel_lsp.generate.ir.scalar import Access, Scalar, accesses
from kernel_lsp.generate.ir.sizes import to_expression
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.ir.workload import Workload

LOCAL_NAMES = ("piece", "i", "my_i", "pack", "v", "u", "line", "first_line")


@dataclass(frozen=True)
class ElementwiseSchedule:
    """`threads` per block; each thread does `unroll` packs of `vector` elements, a block's width apart.

    `streaming` marks tensors that are as large as the result, and the result, for early eviction, `evicts_late` the
    former for late eviction. With a `line_axis` a row of blocks has the dims from that axis on, and the grid's height
    is the others; with `has_many_lines` the other way round, since no number is too large for a grid's width. With
    `shares_lines`, a thread does a pack of each of `unroll` lines instead, and loads what they share once; a block has
    `block_lines` times as many lines. With `has_whole_packs`, the contract lets all elements of a pack share the
    quotients of their positions.
    """

    threads: int
    vector: int
    unroll: int = 1
    streaming: bool = False
    line_axis: int | None = None
    has_many_lines: bool = False
    shares_lines: bool = False
    block_lines: int = 1
    evicts_late: bool = False
    has_whole_packs: bool = False

    @property
    def width(self) -> int:
        """Return the threads of a block side by side along a line."""
        return self.threads // self.block_lines

    @property
    def block(self) -> str:
        """Return the number of a block within its line, or in the grid."""
        return "blockIdx.y" if self.has_many_lines else "blockIdx.x"

    def grid(self, width: Expression, lines: tuple[Expression, ...]) -> tuple[Expression, ...]:
        """Return the grid of `width` blocks for each line."""
        return (*lines, width) if self.has_many_lines else (width, *lines)


def render_elementwise(
    kernel: KernelWriter,
    group: ElementwiseGroup,
    schedule: ElementwiseSchedule,
    comment: str,
    workload: Workload | None,
) -> RenderedKernel:
    """Render the kernel of an elementwise group. With a `workload`, packs also serve reads that are aligned for
    multiples of its sizes."""
    scope = Scope(kernel)
    total = group.position.extent
    lines: tuple[Expression, ...] = ()
    if schedule.line_axis is not None and schedule.shares_lines:
        return _render_shared_lines(scope, group, schedule, comment, workload)
    if schedule.line_axis is not None:
        line, group = by_lines(group, schedule.line_axis)
        scope.line(f"const {kernel.index_type} line = blockIdx.{'x' if schedule.has_many_lines else 'y'};")
        scope.define(line, "line")
        lines = (to_expression(line.extent),)
    if schedule.vector > 1:
        return _render_packed(scope, group, schedule, comment, total, lines, workload)
    n_elements = kernel.size("n", group.position.extent)
    scope.define(group.position, "i")
    name_coordinates(kernel, as_index(group.position), group.shape)
    if schedule.unroll == 1:
        write_stores(_open_single(scope, schedule, "i", n_elements), group.stores)
    else:
        _write_elements(scope, schedule, group.stores, n_elements)
    grid = schedule.grid(blocks_of(group.position.extent, schedule.threads * schedule.unroll), lines)
    return rendered(kernel, comment, scope.lines, grid, (schedule.threads,), grid_limits(grid))


def grid_limits(grid: tuple[Expression, ...]) -> tuple[Expression, ...]:
    """Return the contract of a grid's height."""
    return tuple(Binary("<=", height, Constant(MAX_GRID_YZ)) for height in grid[1:] if not isinstance(height, Constant))


def write_stores(scope: Scope, stores: Sequence[Store]) -> None:
    """Compute every scalar, then store each."""
    texts = scope.values([store.scalar for store in stores])
    for store, text in zip(stores, texts, strict=True):
        target = scope.kernel.target(store.tensor)
        offset = scope.offset(store.tensor, store.index).text
        scope.line(f"{target}[{offset}] = {stored(text, store.scalar.dtype, store.tensor.dtype)};")


def _open_single(scope: Scope, schedule: ElementwiseSchedule, name: str, limit: str) -> Scope:
    """Declare the thread's one position; return the scope for its work."""
    type_ = scope.kernel.index_type
    cast = "(long long)" if type_ == "long long" else ""
    thread = "threadIdx.x" if schedule.block_lines == 1 else f"threadIdx.x % {schedule.width}"
    scope.line(f"const {type_} {name} = {cast}{schedule.block} * {schedule.width} + {thread};")
    scope.line(f"if ({name} >= {limit}) return;")
    return scope


def _write_elements(scope: Scope, schedule: ElementwiseSchedule, stores: Sequence[Store], limit: str) -> None:
    """Compute all elements of a thread before the first store, without a branch, so that their loads are in flight
    together. What lies beyond the last element is computed there."""
    kernel, type_ = scope.kernel, scope.kernel.index_type
    names = [scope.names.take(f"{kernel.target(store.tensor)}_values") for store in stores]
    for store, name in zip(stores, names, strict=True):
        scope.line(f"{store.tensor.dtype.cuda_type} {name}[{schedule.unroll}];")
    cast = "(long long)" if type_ == "long long" else ""
    position = f"({cast}{schedule.block} * {schedule.unroll} + u) * {schedule.threads} + threadIdx.x"
    with scope.unroll(f"for (int u = 0; u < {schedule.unroll}; ++u)") as inner:
        inner.line(f"const {type_} my_i = {position};")
        inner.line(f"const {type_} i = my_i < {limit} ? my_i : {limit} - 1;")
        texts = inner.values([store.scalar for store in stores])
        for store, name, text in zip(stores, names, texts, strict=True):
            inner.line(f"{name}[u] = {stored(text, store.scalar.dtype, store.tensor.dtype)};")
    with scope.unroll(f"for (int u = 0; u < {schedule.unroll}; ++u)") as outer:
        outer.line(f"const {type_} i = {position};")
        with outer.open(f"if (i < {limit})") as inner:
            for store, name in zip(stores, names, strict=True):
                inner.line(
                    f"{kernel.target(store.tensor)}[{inner.offset(store.tensor, store.index).text}] = {name}[u];"
                )


def _render_packed(
    scope: Scope,
    group: ElementwiseGroup,
    schedule: ElementwiseSchedule,
    comment: str,
    n_all: Index,
    lines: tuple[Expression, ...],
    workload: Workload | None,
) -> RenderedKernel:
    kernel, vector = scope.kernel, schedule.vector
    total = group.position.extent
    n_packs, packing = _packing_of(group, schedule, n_all, has_lines=bool(lines))
    pack_extent = packing.pack.extent
    whole: list[tuple[Index, int]] = []
    if workload is not None and schedule.has_whole_packs:
        group, whole = by_whole_packs(group, vector, workload)
    stores, multiples, with_masks = _whole_stores(packing, group, workload)
    multiples, workload = [*whole, *multiples], workload if whole else with_masks
    size = kernel.size("n", total)
    limit = str(int(size) // vector) if size.isdigit() else f"{size} / {vector}"
    name_coordinates(kernel, packing.flat, group.shape)
    if schedule.unroll > 1:  # while no pack is known: coordinates that divide its number are declared in its loop
        scope.hoist([store.scalar for store in stores], [packing.pack, packing.lane])
    scope.define(packing.pack, "pack")
    if schedule.unroll == 1:
        single = _open_single(scope, schedule, "pack", limit)
        multiples += write_packed(single, packing, stores, workload=workload, loads_wide=True)
    else:
        multiples += _write_unrolled(scope, schedule, packing, stores, limit, workload)
    per_block = schedule.threads * schedule.unroll
    width = blocks_of(pack_extent, per_block) if n_packs is not None else blocks_of(total, per_block * vector)
    grid = schedule.grid(width, lines)
    conditions = (*divisible(total, vector), *multiple_conditions(multiples), *grid_limits(grid))
    return rendered(kernel, comment, scope.lines, grid, (schedule.threads,), conditions)


def _whole_stores(
    packing: Packing, group: ElementwiseGroup, workload: Workload | None
) -> tuple[list[Store], list[tuple[Index, int]], Workload | None]:
    """Return the stores over packs, what sizes must be multiples of for conditions that all lanes share, and `workload`
    where there are such conditions."""
    stores = packing.substituted(group.stores, group.position)
    found = None if workload is None else with_whole_masks(stores, packing.lane, workload)
    return (stores, [], None) if found is None else (*found, workload)


def _packing_of(
    group: ElementwiseGroup, schedule: ElementwiseSchedule, n_all: Index, *, has_lines: bool
) -> tuple[Index | None, Packing]:
    """Return the number of packs, None where sizes leave it open, and the packs."""
    total, vector = group.position.extent, schedule.vector
    n_packs = divide_exactly(total, as_index(vector))
    packing = Packing(
        Variable("pack", 1 << 20, n_packs if n_packs is not None else total),
        Variable("v", (1 << 20) + 1, as_index(vector)),
        vector,
        _large_inputs(group, n_all) if schedule.streaming else frozenset(),
        schedule.streaming,
        _large_inputs(group, n_all) if schedule.evicts_late else frozenset(),
        multiple=total if has_lines else None,
    )
    return n_packs, packing


def _render_shared_lines(
    scope: Scope, group: ElementwiseGroup, schedule: ElementwiseSchedule, comment: str, workload: Workload | None
) -> RenderedKernel:
    """Render packs of several lines per thread. The loads of all lines are in flight together."""
    assert schedule.line_axis is not None
    kernel, n_all = scope.kernel, group.position.extent
    line, group = by_lines(group, schedule.line_axis)
    total, vector = group.position.extent, schedule.vector
    n_packs, packing = _packing_of(group, schedule, n_all, has_lines=True)
    stores, multiples, workload = _whole_stores(packing, group, workload)
    size, n_lines = kernel.size("n", total), kernel.size("n_lines", line.extent)
    scope.define(packing.pack, "pack")
    name_coordinates(kernel, packing.flat, group.shape)
    first = f"blockIdx.{'x' if schedule.has_many_lines else 'y'}"
    if schedule.block_lines > 1:
        first = f"({first} * {schedule.block_lines} + threadIdx.x / {schedule.width})"
    scope.line(f"const {kernel.index_type} first_line = {first} * {schedule.unroll};")
    _open_single(scope, schedule, "pack", str(int(size) // vector) if size.isdigit() else f"{size} / {vector}")
    packed = find_packed([store.scalar for store in stores], packing)
    loads = {access.digest: packing.load(scope, access) for access in packed if line not in access.variables}
    own = [access for access in packed if line in access.variables]
    arrays = {access.digest: _declare_packs(scope, schedule, access) for access in own}
    declared = len(scope.lines)
    with _open_line(scope, schedule, line, n_lines) as inner:
        for access in own:
            inner.line(f"{arrays[access.digest]}[u] = {packing.memory(inner, access)};")
        if workload is not None:
            loop_arrays = LoopArrays(scope, declared, schedule.unroll, "u")
            multiples += load_runs(inner, stores, {packing.lane: ()}, workload, [a.digest for a in packed], loop_arrays)
    with _open_line(scope, schedule, line, n_lines) as inner:
        known = loads | {digest: f"{name}[u]" for digest, name in arrays.items()}
        write_packed(inner, packing, stores, known)
    packs = packing.pack.extent
    width = blocks_of(packs, schedule.width) if n_packs is not None else blocks_of(total, schedule.width * vector)
    grid = schedule.grid(width, (blocks_of(line.extent, schedule.unroll * schedule.block_lines),))
    conditions = (*divisible(total, vector), *multiple_conditions(multiples), *grid_limits(grid))
    return rendered(kernel, comment, scope.lines, grid, (schedule.threads,), conditions)


def _open_line(scope: Scope, schedule: ElementwiseSchedule, line: Variable, n_lines: str) -> Scope:
    """Open the loop over a thread's lines, and in it the block for lines in bounds."""
    loop = scope.unroll(f"for (int u = 0; u < {schedule.unroll}; ++u)")
    loop.line(f"const {scope.kernel.index_type} line = first_line + u;")
    loop.define(line, "line")
    return loop.open(f"if (line < {n_lines})", closes_this=True)


def _large_inputs(group: ElementwiseGroup, n_elements: Index) -> frozenset[Tensor]:
    """Return the tensors that are as large as the result."""
    found = accesses(*(store.scalar for store in group.stores))
    return frozenset(access.tensor for access in found if access.tensor.n_elements == n_elements)


def _write_unrolled(
    scope: Scope,
    schedule: ElementwiseSchedule,
    packing: Packing,
    stores: Sequence[Store],
    limit: str,
    workload: Workload | None,
) -> list[tuple[Index, int]]:
    """Issue the loads of all packs of a thread before the first use, so that they are in flight together. Return what
    sizes must be multiples of."""
    packed = find_packed([store.scalar for store in stores], packing)
    arrays = {access.digest: _declare_packs(scope, schedule, access) for access in packed}
    if packed:
        with _open_guarded(scope, schedule, limit) as inner:
            for access in packed:
                inner.line(f"{arrays[access.digest]}[u] = {packing.memory(inner, access)};")
    with _open_guarded(scope, schedule, limit) as inner:
        multiples = write_packed(
            inner, packing, stores, {digest: f"{name}[u]" for digest, name in arrays.items()}, workload, loads_wide=True
        )
    return multiples


def _declare_packs(scope: Scope, schedule: ElementwiseSchedule, access: Access) -> str:
    scope.kernel.use("packs")
    name = scope.names.take(f"{scope.kernel.pointer(access.tensor)}_pack")
    scope.line(f"Pack<{access.dtype.cuda_type}, {schedule.vector}> {name}[{schedule.unroll}];")
    return name


def _open_guarded(scope: Scope, schedule: ElementwiseSchedule, limit: str) -> Scope:
    """Open the loop over a thread's packs, and in it the block for packs in bounds."""
    type_ = scope.kernel.index_type
    cast = "(long long)" if type_ == "long long" else ""
    loop = scope.unroll(f"for (int u = 0; u < {schedule.unroll}; ++u)")
    position = f"({cast}{schedule.block} * {schedule.unroll} + u) * {schedule.threads} + threadIdx.x"
    loop.line(f"const {type_} pack = {position};")
    return loop.open(f"if (pack < {limit})", closes_this=True)


def write_packed(
    scope: Scope,
    packing: Packing,
    stores: Sequence[Store],
    loads: Mapping[bytes, str] | None = None,
    workload: Workload | None = None,
    *,
    loads_wide: bool = False,
) -> list[tuple[Index, int]]:
    """Load packs, compute lane by lane, store packs. `loads` names packs that are already loaded. With `loads_wide`,
    packs of more than 16 bytes take several loads, as of f32 statistics beside eight elements of 16 bits. Return what
    sizes must be multiples of."""
    scalars: list[Scalar] = [store.scalar for store in stores]
    scope.hoist(scalars, [packing.lane])
    packed = find_packed(scalars, packing)
    names = loads if loads is not None else {access.digest: packing.load(scope, access) for access in packed}
    known = [access.digest for access in packed]
    if workload is None:
        reads = accesses(*scalars) if loads_wide else ()
        known += [a.digest for a in reads if a.mask is not None or a.dtype.itemsize * packing.vector <= MAX_PACK_BYTES]
    has_runs = workload is not None or loads_wide
    multiples = load_runs(scope, stores, {packing.lane: ()}, workload, known) if has_runs else []
    targets = [packing.declare_result(scope, store) for store in stores]
    divisions = scope.hoist_lanes(scalars, packing.lane)
    with scope.unroll(f"for (int v = 0; v < {packing.vector}; ++v)") as inner:
        inner.define(packing.lane, "v")
        inner.named |= divisions
        for access in packed:
            inner.bind(access, packing.item(names[access.digest], access.dtype))
        bind_neighbours(inner, packing, scalars, {access: names[access.digest] for access in packed})
        texts = inner.values(scalars)
        for store, target, text in zip(stores, targets, texts, strict=True):
            value = stored(text, store.scalar.dtype, store.tensor.dtype)
            if target is None:
                offset = inner.offset(store.tensor, store.index).text
                inner.line(f"{inner.kernel.target(store.tensor)}[{offset}] = {value};")
            else:
                inner.line(f"{target}.item[v] = {value};")
    for store, target in zip(stores, targets, strict=True):
        if target is not None:
            packing.store(scope, store, target)
    return multiples
