"""Partition definitions into kernels. The result is a list of groups in launch order. One template renders each group.

A pointwise definition is inlined into its consumers, unless that would repeat significant work. Reductions,
contractions, scans and scatters are roots: some kernel computes them once. A row group holds reductions over one row
space, the pointwise results of that space, and all per-row values between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.errors import InternalError
from kernel_lsp.generate.fusion.contractions import (
    grow_attention,
    grow_contraction,
    grow_gradient,
    grow_library,
)
from kernel_lsp.generate.fusion.fusion_state import Progress
from kernel_lsp.generate.fusion.graph import DefinitionGraph
from kernel_lsp.generate.fusion.groups import (
    AttentionGradientGroup,
    AttentionGroup,
    ContractionGroup,
    ElementwiseGroup,
    FusedGraph,
    GradientOutput,
    Group,
    LoopGroup,
    PermutedSteps,
    RoutineGroup,
    RowGroup,
    RowScatterGroup,
    ScanGroup,
    SortedGroup,
    Store,
    WholeReduction,
    scalars_of_group,
)
from kernel_lsp.generate.fusion.log_ratios import with_log_ratios
from kernel_lsp.generate.fusion.row_algebra import simplified
from kernel_lsp.generate.fusion.rows import grow_rows
from kernel_lsp.generate.fusion.scans import grow_scan
from kernel_lsp.generate.fusion.scatters import grow_scatter
from kernel_lsp.generate.fusion.sorted_places import grow_sorted
from kernel_lsp.generate.fusion.weighted_sums import with_weighted_sums
from kernel_lsp.generate.ir.index import Index, as_index, product
from kernel_lsp.generate.ir.scalar import Access, accesses
from kernel_lsp.generate.ir.sizes import Sizes, unravel_like, unravel_safe
from kernel_lsp.generate.ir.tensor import (
    Attention,
    AttentionGradient,
    Buffer,
    Definition,
    LibraryResult,
    LoopResult,
    Pointwise,
    Reduction,
    Routine,
    Scan,
    Scatter,
    Tensor,
)
from kernel_lsp.generate.loops.bodies import loop_over, with_inlined
from kernel_lsp.generate.lowering.builder import positions


@dataclass(frozen=True)
class Structure:
    """The tensors of an operation with definitions that override their own. Those in `inlined` are computed where they
    are read; every block computes the reductions in `everywhere` for itself, as far as row groups alone read them;
    results that read the rows of a reduction in `joined` join its kernel."""

    tensors: tuple[Tensor, ...]
    definitions: Mapping[Tensor, Definition]
    inlined: frozenset[Tensor] = frozenset()
    everywhere: frozenset[Tensor] = frozenset()
    joined: frozenset[Tensor] = frozenset()


def fuse(structure: Structure, outputs: Sequence[Tensor], sizes: Sizes) -> FusedGraph:
    """Group the definitions that the outputs need."""
    graph = DefinitionGraph(structure.tensors, outputs, structure.definitions, structure.inlined)
    wanted = frozenset(tensor for tensor in structure.everywhere if not graph.needs(tensor) and tensor not in outputs)
    fused = _fused(graph, outputs, sizes, frozenset(), structure.joined)
    assert fused is not None, "only what every block finds can fail to fuse"
    repeated = _fused(graph, outputs, sizes, wanted, structure.joined) if wanted else None
    return repeated if repeated is not None and len(repeated.groups) < len(fused.groups) else fused


def _fused(
    graph: DefinitionGraph,
    outputs: Sequence[Tensor],
    sizes: Sizes,
    everywhere: frozenset[Tensor],
    joined: frozenset[Tensor],
) -> FusedGraph | None:
    """Return the groups; None where something other than a row group reads a reduction of `everywhere`, or a row group
    reads it under a mask, where it would be 0."""
    progress = Progress(graph, sizes, joined)
    progress.finish(list(everywhere))
    groups: list[Group] = []
    stored = set(outputs)
    while progress.pending:
        group, roots = _grow(progress, _choose_seed(progress))
        wholes = _wholes(progress, group, everywhere)
        if wholes and not (isinstance(group, RowGroup) and _reads_always(group, everywhere)):
            return None
        groups.append(replace(group, wholes=wholes) if isinstance(group, RowGroup) else group)
        progress.finish(roots)
        stored |= _read_from_memory(group, roots, graph) - everywhere
    missing = [tensor.name for tensor in stored if tensor not in progress.computed]
    if missing:
        raise InternalError(f"no kernel computes {', '.join(missing)}", next_step="please report this target")
    kept = [_with_stored(group, stored) for group in groups]
    return FusedGraph(tuple(group for group in kept if _does_anything(group)), frozenset(stored), progress.hints)


def _choose_seed(progress: Progress) -> Tensor:
    """Return the first root that is ready: single values first, which whole groups may need, then results of a library,
    which what follows our own products may read. Sums over parts of rows, or over their lines, may join the kernel of
    those rows, and a pointwise root any row group: they are the last choices."""

    def rank(tensor: Tensor) -> tuple[bool, bool]:
        is_library = isinstance(progress.graph.definitions[tensor], LibraryResult)
        return _joins_rows(progress, tensor), not is_library

    ready = [tensor for tensor in progress.pending if progress.is_ready(tensor)]
    hard = sorted(filter(progress.graph.is_hard, ready), key=rank)
    single = [tensor for tensor in hard if tensor.n_elements.constant == 1]
    forced = [tensor for tensor in ready if tensor in progress.graph.forced]
    return (single or hard or forced or ready)[0]


def _joins_rows(progress: Progress, tensor: Tensor) -> bool:
    definition = progress.graph.definitions[tensor]
    return isinstance(definition, Reduction) and (definition.parts is not None or definition.of_lines)


def _grow(progress: Progress, seed: Tensor) -> tuple[Group, list[Tensor]]:
    """Grow a group from its first root; return it with all the roots that it computes."""
    definition = progress.graph.definitions[seed]
    match definition:
        case Reduction(contraction=None):
            return grow_rows(progress, seed, definition)
        case Reduction(contraction=contraction):
            assert contraction is not None
            return grow_contraction(progress, seed, definition, contraction)
        case Attention():
            return grow_attention(progress, seed, definition)
        case AttentionGradient():
            return grow_gradient(progress, seed, definition)
        case Scan():
            return grow_scan(progress, seed, definition)
        case Scatter():
            return grow_scatter(progress, seed, definition)
        case LibraryResult():
            return grow_library(progress, seed, definition)
        case Routine(kind="ascending" | "descending"):
            return grow_sorted(progress, seed, definition)
        case Routine(body=None):
            return RoutineGroup(seed, definition), [seed]
        case Routine():
            return _grow_routine(progress, definition)
        case LoopResult():
            return _grow_loop(progress, definition)
    return _grow_elementwise(progress, seed)


def _grow_routine(progress: Progress, definition: Routine) -> tuple[RoutineGroup, list[Tensor]]:
    """Return the group of a routine, and its results by place."""
    found = {
        other.place: tensor
        for tensor in progress.pending
        if isinstance(other := progress.graph.definitions[tensor], Routine)
        and replace(other, place=definition.place) == definition
    }
    first, *others = (found[place] for place in sorted(found))
    return RoutineGroup(first, definition, tuple(others)), [first, *others]


def _grow_loop(progress: Progress, definition: LoopResult) -> tuple[LoopGroup, list[Tensor]]:
    """Return the group of a loop, and its results."""
    found = {
        other.place: tensor
        for tensor in progress.pending
        if isinstance(other := progress.graph.definitions[tensor], LoopResult) and other.loop == definition.loop
    }
    loop, places = with_inlined(loop_over(definition.loop, progress.expand), found)
    tensors = tuple(found.get(place) for place in places)
    permuted = tuple(_permuted_steps(progress, tensors, loop.step.extent))
    roots = [tensor for tensor in tensors if tensor is not None]
    return LoopGroup(loop, tensors, permuted), [*roots, *(each.tensor for each in permuted)]


def _permuted_steps(progress: Progress, tensors: Sequence[Tensor | None], n_steps: Index) -> Iterator[PermutedSteps]:
    """Yield the pending tensors that have the steps along another axis, such as their stack, while the last axis stays:
    neighbouring threads then write neighbours, and no kernel copies the steps."""
    places = {
        tensor: place for place, tensor in enumerate(tensors) if tensor is not None and tensor.shape[0] == n_steps
    }
    for tensor in progress.pending:
        definition = progress.graph.definitions[tensor]
        if not isinstance(definition, Pointwise):
            continue
        element = progress.element(tensor, positions(definition.variables), frozenset(places))
        if not isinstance(element, Access) or element.mask is not None or element.tensor not in places:
            continue
        axes = [element.index.index(each) for each in positions(definition.variables) if each in element.index]
        is_whole = len(axes) == len(element.index) == len(tensor.shape) and axes[-1] == len(axes) - 1
        if is_whole and tensor.shape == tuple(element.tensor.shape[axis] for axis in axes):
            yield PermutedSteps(tensor, places[element.tensor], tuple(axes))


def _grow_elementwise(progress: Progress, seed: Tensor) -> tuple[Group, list[Tensor]]:
    """Group all pending pointwise roots with the same number of elements that are ready."""
    position = progress.variable("i", seed.n_elements)
    stores: list[Store] = []
    roots: list[Tensor] = []
    for tensor in progress.pending:
        if not _may_join(progress, seed, tensor) or not progress.is_ready(tensor, roots):
            continue
        if progress.graph.rereads(tensor, roots):
            continue
        index = unravel_like(as_index(position), seed.shape, tensor.shape)
        scalar = progress.element(tensor, index)
        if scalar is not None:
            progress.hints.setdefault(scalar.digest, tensor.name)
            stores.append(Store(tensor, index, scalar))
            roots.append(tensor)
    return ElementwiseGroup(position, seed.shape, tuple(stores)), roots


def _may_join(progress: Progress, seed: Tensor, tensor: Tensor) -> bool:
    """Return True if one thread per element of `seed` may also compute `tensor`: their shapes agree and they share
    inputs."""
    graph = progress.graph
    if graph.is_hard(tensor) or not progress.sizes.same(tensor.n_elements, seed.n_elements):
        return False
    return tensor is seed or (tensor.shape == seed.shape and bool(graph.sources(seed) & graph.sources(tensor)))


def _wholes(progress: Progress, group: Group, everywhere: frozenset[Tensor]) -> tuple[WholeReduction, ...]:
    """Return the reductions that the group reads and that every block computes for itself."""
    read = {access.tensor for access in accesses(*scalars_of_group(group))} & everywhere
    return tuple(_whole(progress, tensor) for tensor in sorted(read, key=lambda tensor: tensor.serial))


def _reads_always(group: Group, tensors: frozenset[Tensor]) -> bool:
    """Return True if the group reads none of the tensors under a mask."""
    return all(access.mask is None for access in accesses(*scalars_of_group(group)) if access.tensor in tensors)


def _whole(progress: Progress, tensor: Tensor) -> WholeReduction:
    definition = progress.graph.definitions[tensor]
    assert isinstance(definition, Reduction)
    shape = [variable.extent for variable in definition.reduced]
    position = progress.variable("at", product(shape))
    replacements = dict(zip(definition.reduced, unravel_safe(as_index(position), shape), strict=True))
    replacements.update((variable, as_index(0)) for variable in definition.variables)
    scalar = progress.expand(definition.body.substitute(replacements))
    return WholeReduction(tensor, definition.kind, position, scalar)


def _read_from_memory(group: Group, roots: Sequence[Tensor], graph: DefinitionGraph) -> set[Tensor]:
    """Return the results of other groups that the group reads."""
    read = {access.tensor for access in accesses(*scalars_of_group(group))}
    return {tensor for tensor in read if tensor not in roots and not isinstance(graph.definitions[tensor], Buffer)}


def _with_stored(group: Group, stored: set[Tensor]) -> Group:
    """Drop stores that nothing reads, and add stores of reductions and sums that something reads."""
    if isinstance(group, RowGroup):
        kept = replace(
            group,
            reductions=tuple(replace(entry, stored=entry.tensor in stored) for entry in group.reductions),
            stores=tuple((level, store) for level, store in group.stores if store.tensor in stored),
            row_stores=tuple(store for store in group.row_stores if store.tensor in stored),
            line_sums=tuple(replace(entry, stored=entry.tensor in stored) for entry in group.line_sums),
            line_stores=tuple(store for store in group.line_stores if store.tensor in stored),
        )
        return with_log_ratios(with_weighted_sums(simplified(kept)))
    if isinstance(group, ElementwiseGroup | ScanGroup | SortedGroup):
        return replace(group, stores=tuple(store for store in group.stores if store.tensor in stored))
    if isinstance(group, LoopGroup):
        tensors = tuple(tensor if tensor in stored else None for tensor in group.tensors)
        return replace(group, tensors=tensors, permuted=tuple(each for each in group.permuted if each.tensor in stored))
    if isinstance(group, AttentionGroup | ContractionGroup | RowScatterGroup):
        return replace(group, stores=_stores(group, stored))
    if isinstance(group, AttentionGradientGroup):
        outputs = tuple(replace(output, stores=_stores(output, stored)) for output in group.outputs)
        return replace(group, outputs=outputs)
    return group


def _stores(
    part: ContractionGroup | AttentionGroup | RowScatterGroup | GradientOutput, stored: set[Tensor]
) -> tuple[Store, ...]:
    """Return the stores of a sum that something reads, its own included."""
    own = (Store(part.tensor, part.at, Access(part.tensor, part.at)),) if part.tensor in stored else ()
    return (*own, *(store for store in part.stores if store.tensor in stored))


def _does_anything(group: Group) -> bool:
    """Return True if the group writes memory that is read or returned."""
    match group:
        case (
            ElementwiseGroup() | ContractionGroup() | AttentionGroup() | ScanGroup() | RowScatterGroup() | SortedGroup()
        ):
            return bool(group.stores)
        case RowGroup():
            found = (*group.reductions, *group.line_sums)
            stores = (*group.stores, *group.row_stores, *group.line_stores, *group.column_sums)
            return bool(stores) or any(entry.stored for entry in found)
    return True
