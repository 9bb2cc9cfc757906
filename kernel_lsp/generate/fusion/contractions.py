"""Grow contraction groups: a contraction, by tiles or by a library, with its elementwise consumers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.fusion.fusion_state import Progress
from kernel_lsp.generate.fusion.graph import operands_of
from kernel_lsp.generate.fusion.groups import (
    AttentionGradientGroup,
    AttentionGroup,
    ContractionGroup,
    GradientOutput,
    LibraryGroup,
    PhasesOfGroup,
    Store,
)
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index, product, substitute
from kernel_lsp.generate.ir.scalar import TRUE, Access, Scalar, accesses, both, in_range, rewrite, unconverted
from kernel_lsp.generate.ir.sizes import ravel, reshape, unravel_safe
from kernel_lsp.generate.ir.tensor import (
    Attention,
    AttentionGradient,
    Contraction,
    LibraryResult,
    LogSums,
    Phases,
    Pointwise,
    Reduction,
    Tensor,
)
from kernel_lsp.generate.library import run_along


def grow_contraction(
    progress: Progress, seed: Tensor, definition: Reduction, contraction: Contraction
) -> tuple[ContractionGroup, list[Tensor]]:
    """Return the group of a contraction with its epilogue, and the roots that it computes."""
    if contraction.form_by_phases is not None:
        return _grow_by_phases(progress, seed, definition, contraction, contraction.form_by_phases)
    space = _Space.of(progress, seed, definition.variables, contraction)
    k = progress.variable("k", product(variable.extent for variable in definition.reduced))
    reduced_shape = [variable.extent for variable in definition.reduced]
    steps = zip(definition.reduced, unravel_safe(as_index(k), reduced_shape), strict=True)
    replacements = {**space.replacements, **dict(steps)}
    left = progress.expand(contraction.left.substitute(replacements))
    right = progress.expand(contraction.right.substitute(replacements))
    roots = [seed]
    stores = tuple(_epilogue(progress, seed, space.at, roots))
    batch, m, n = space.coordinates
    rows = tuple(seed.shape[axis] for axis in contraction.row_axes)
    operand = operand_type(seed, contraction, definition.reduced) if contraction.way == "tensor_cores" else None
    parts = (left, right, space.at, rows, definition.reduced, stores, contraction.way, operand)
    group = ContractionGroup(seed, batch, m, n, k, *parts, conditions=contraction.conditions, term=contraction.term)
    return group, roots


def _grow_by_phases(
    progress: Progress, seed: Tensor, definition: Reduction, contraction: Contraction, phases: Phases
) -> tuple[ContractionGroup, list[Tensor]]:
    space, row_shape, of_batch = _Space.by_phases(progress, seed, definition.variables, contraction, phases)
    k = progress.variable("k", product(variable.extent for variable in phases.reduced))
    steps = dict(zip(phases.reduced, unravel_safe(as_index(k), phases.limits), strict=True))
    left, right = (progress.expand(e.substitute({**space.replacements, **steps})) for e in (phases.left, phases.right))
    inside: Scalar = TRUE
    for axis in phases.axes:
        inside = both(inside, in_range(space.at[axis], seed.shape[axis]))
    roots = [seed]
    stores = tuple(_epilogue(progress, seed, space.at, roots))
    batch, m, n = space.coordinates
    operand = operand_type(seed, contraction, phases.reduced)
    parts = (left, right, space.at, row_shape, phases.reduced, stores, contraction.way, operand)
    lines = _phases_in_line(batch, phases)
    by_phases = PhasesOfGroup((*of_batch, *phases.numbers), phases.limits, inside, *lines)
    return ContractionGroup(seed, batch, m, n, k, *parts, by_phases), roots


def grow_attention(progress: Progress, seed: Tensor, definition: Attention) -> tuple[AttentionGroup, list[Tensor]]:
    """Return the group of an attention, with its epilogue, and the roots that it computes."""
    space = _Space.of(progress, seed, definition.variables, definition)
    key = progress.variable("key", definition.key.extent)
    head = progress.variable("d", definition.head.extent)
    replacements = {**space.replacements, definition.key: as_index(key), definition.head: as_index(head)}
    factors = (definition.query_part, definition.key_part, definition.value, definition.score)
    query_part, key_part, value, score = (progress.expand(factor.substitute(replacements)) for factor in factors)
    roots = [seed]
    log_sums = _log_sums(progress, seed, space)
    roots += [log_sums.tensor] if log_sums is not None else []
    stores = tuple(_epilogue(progress, seed, space.at, roots))
    batch, m, n = space.coordinates
    parts = (query_part, key_part, value, score)
    return AttentionGroup(seed, batch, m, n, key, head, *parts, definition.is_safe, space.at, stores, log_sums), roots


def _log_sums(progress: Progress, seed: Tensor, space: _Space) -> Access | None:
    """Return the element of the logarithms of sums that the kernel of an attention writes; None where none are."""
    for tensor in progress.pending:
        definition = progress.graph.definitions[tensor]
        if isinstance(definition, LogSums) and definition.result.tensor is seed:
            return Access(tensor, tuple(substitute(index, space.replacements) for index in definition.at))
    return None


def grow_gradient(
    progress: Progress, seed: Tensor, definition: AttentionGradient
) -> tuple[AttentionGradientGroup, list[Tensor]]:
    """Return the group of a gradient of an attention, and the roots that it computes: gradients of keys and of values
    that have the same factors belong together."""
    space = _Space.of(progress, seed, definition.variables, definition)
    batch, row, column = space.coordinates
    names = [
        ("shared", _shared_extent(definition)),
        ("head", definition.head.extent),
        ("width", definition.width.extent),
    ]
    shared, head, width = (progress.variable(name, extent) for name, extent in names)
    is_by_key = definition.kind in ("key", "value")
    other = (
        progress.variable("m", definition.m.extent) if is_by_key else progress.variable("key", definition.key.extent)
    )
    m, key = (other, row) if is_by_key else (row, other)
    own = (shared, m, key, head, width)
    factors = _gradient_factors(progress, definition, space.replacements, own)
    places = [(seed, definition, column, space)]
    for tensor in progress.pending if is_by_key else ():
        sibling = progress.graph.definitions[tensor]
        if isinstance(sibling, AttentionGradient) and sibling.kind in ("key", "value") and tensor is not seed:
            its = _Space.of(progress, tensor, sibling.variables, sibling, (batch, row))
            if _gradient_factors(progress, sibling, its.replacements, own) == factors:
                places.append((tensor, sibling, its.coordinates[2], its))
    roots = [seed]
    outputs: list[GradientOutput] = []
    for tensor, its_definition, its_column, its in places if definition.kind != "statistics" else ():
        roots += [tensor] if tensor is not seed else []
        stores = tuple(_epilogue(progress, tensor, its.at, roots))
        outputs.append(GradientOutput(its_definition.kind, tensor, its_column, its.at, its_definition.factor, stores))
    kind = "key" if is_by_key else definition.kind
    query_part, key_part, value, grad, score, *statistics = factors
    if definition.statistics is None:
        statistics = [Access(seed, (*space.at[:-1], as_index(place))) for place in range(2)]
    log_sum, row_sum = statistics
    assert isinstance(log_sum, Access)
    assert isinstance(row_sum, Access)
    parts = (query_part, key_part, value, grad, score)
    read = (definition.grad_scale, definition.is_safe, (log_sum, row_sum))
    return AttentionGradientGroup(kind, seed, batch, *own, *parts, *read, tuple(outputs), definition.hides), roots


def _shared_extent(definition: AttentionGradient) -> Index:
    return product(variable.extent for variable in definition.shared)


def _gradient_factors(
    progress: Progress,
    definition: AttentionGradient,
    replacements: Mapping[Variable, Index],
    own: tuple[Variable, Variable, Variable, Variable, Variable],
) -> list[Scalar]:
    """Return the factors, the score and, where they are read, the statistics in a group's variables."""
    theirs = (*definition.shared, definition.m, definition.key, definition.head, definition.width)
    named = dict(zip(theirs, map(as_index, own if definition.shared else own[1:]), strict=True))
    scalars = (definition.query_part, definition.key_part, definition.value, definition.grad, definition.score)
    read = (*scalars, *(definition.statistics or ()))
    return [progress.expand(scalar.substitute({**replacements, **named})) for scalar in read]


def operand_type(tensor: Tensor, contraction: Contraction, reduced: Sequence[Variable]) -> DType | None:
    """Return the element type in which tensor cores multiply the factors, whose sums are over `reduced`; None where
    they cannot. Fragments of bytes are read along the sums alone."""
    types = {contraction.left.dtype, contraction.right.dtype}
    if types == {DType.I8}:
        return DType.I8 if run_along((contraction.left, contraction.right), reduced) else None
    if tensor.dtype != DType.F32 or not types <= {DType.F32, DType.F16, DType.BF16}:
        return None
    return types.pop() if len(types) == 1 else DType.F32


def grow_library(progress: Progress, seed: Tensor, definition: LibraryResult) -> tuple[LibraryGroup, list[Tensor]]:
    """Return the group of a library call, and the roots that it computes. A result whose one reader is a copy, or that
    the operation returns a copy of, is written to that copy directly."""
    places = {seed: definition.place}
    for tensor in progress.pending:
        other = progress.graph.definitions[tensor]
        if isinstance(other, LibraryResult) and other.call is definition.call:
            places[tensor] = other.place
    results = sorted(places, key=places.__getitem__)
    written = [_copy_of(progress, result) for result in results]
    return LibraryGroup(tuple(written), definition.call), list(dict.fromkeys((*results, *written)))


def _copy_of(progress: Progress, result: Tensor) -> Tensor:
    """Return the copy that a library's result is written to, from which others read it; else the result."""
    graph = progress.graph
    readers = [tensor for tensor in progress.pending if tensor is not result and result in graph.needs(tensor)]
    is_operand = any(result in operands_of(graph.definitions[reader]) for reader in readers)
    if result in graph.outputs or is_operand:
        return result
    for reader in readers:
        if (len(readers) == 1 or reader in graph.outputs) and _is_copy(progress, reader, result):
            progress.written_to[result] = reader
            return reader
    return result


class _HasAxes(Protocol):
    @property
    def batch_axes(self) -> tuple[int, ...]: ...
    @property
    def row_axes(self) -> tuple[int, ...]: ...
    @property
    def column_axes(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class _Space:
    """Index space (batch, m, n) of a contraction: the result's index in it, and the meaning of its variables."""

    coordinates: tuple[Variable, Variable, Variable]
    at: tuple[Index, ...]
    replacements: dict[Variable, Index]

    @classmethod
    def of(
        cls,
        progress: Progress,
        seed: Tensor,
        variables: Sequence[Variable],
        axes: _HasAxes,
        known: tuple[Variable, ...] = (),
    ) -> _Space:
        """Return the space of a tensor, whose first coordinates may be `known`."""
        groups = (axes.batch_axes, axes.row_axes, axes.column_axes)
        shapes = [[seed.shape[axis] for axis in group] for group in groups]
        names = list(zip(("batch", "m", "n"), shapes, strict=True))[len(known) :]
        batch, m, n = (*known, *(progress.variable(name, product(shape)) for name, shape in names))
        at: list[Index] = [as_index(0)] * len(seed.shape)
        for group, shape, coordinate in zip(groups, shapes, (batch, m, n), strict=True):
            for axis, position in zip(group, unravel_safe(as_index(coordinate), shape), strict=True):
                at[axis] = position
        return cls((batch, m, n), tuple(at), dict(zip(variables, at, strict=True)))

    @classmethod
    def by_phases(
        cls, progress: Progress, seed: Tensor, variables: Sequence[Variable], axes: _HasAxes, phases: Phases
    ) -> tuple[_Space, tuple[Index, ...], list[tuple[Variable, Index]]]:
        """Return the space of a tensor whose phases are batches, the shape of its rows, and the phases of a batch."""
        rows = dict(zip(phases.axes, phases.rows, strict=True))
        shape = [rows[axis].extent if axis in rows else size for axis, size in enumerate(seed.shape)]
        extents = [phase.extent for phase in phases.phases]
        shapes = [[*extents, *(shape[axis] for axis in axes.batch_axes)]]
        shapes += [[shape[axis] for axis in group] for group in (axes.row_axes, axes.column_axes)]
        named = zip(("batch", "m", "n"), shapes, strict=True)
        batch, m, n = (progress.variable(name, product(sizes)) for name, sizes in named)
        of_batch, *others = (
            unravel_safe(as_index(each), sizes) for each, sizes in zip((batch, m, n), shapes, strict=True)
        )
        at: list[Index] = [as_index(0)] * len(seed.shape)
        groups = (axes.batch_axes, axes.row_axes, axes.column_axes)
        for group, places in zip(groups, (of_batch[len(extents) :], *others), strict=True):
            for axis, position in zip(group, places, strict=True):
                at[axis] = position
        replacements = {row: at[axis] for axis, row in rows.items()}
        for axis, position in zip(phases.axes, phases.positions, strict=True):
            at[axis] = substitute(position, replacements)
        replacements |= {v: at[axis] for axis, v in enumerate(variables) if axis not in rows}
        phases_of_batch = list(zip(phases.phases, of_batch[: len(extents)], strict=True))
        return cls((batch, m, n), tuple(at), replacements), tuple(shapes[1]), phases_of_batch


def _phases_in_line(batch: Variable, phases: Phases) -> tuple[int, int]:
    """Return the number of phases along the last axis and the batches within each; 1 where that axis has no stride."""
    n_batches, n_phases = batch.extent.constant, product(phase.extent for phase in phases.phases).constant
    last = phases.phases[-1:]
    if n_batches is None or n_phases is None or phases.positions[-1].variables.isdisjoint(last):
        return 1, 1
    return last[0].extent.constant or 1, n_batches // n_phases


def _epilogue(progress: Progress, seed: Tensor, at: tuple[Index, ...], roots: list[Tensor]) -> list[Store]:
    """Take pending pointwise roots that read the sum element by element, and add them to `roots`."""
    stores: list[Store] = []
    own = Access(seed, at)
    for tensor in progress.pending:
        if progress.graph.is_hard(tensor) or seed not in progress.graph.needs(tensor):
            continue
        if not progress.is_ready(tensor, roots) or not progress.sizes.same(tensor.n_elements, seed.n_elements):
            continue
        for index in _places(progress, tensor, seed, at):
            scalar = progress.element(tensor, index, frozenset((seed,)))
            if scalar is not None and _reads_only_at(scalar, seed, at):
                scalar = rewrite(scalar, lambda access: own if access.tensor is seed else access)
                stores.append(Store(tensor, index, scalar))
                roots.append(tensor)
                break
    return stores


def _places(progress: Progress, tensor: Tensor, seed: Tensor, at: tuple[Index, ...]) -> Iterator[tuple[Index, ...]]:
    """Yield the possible indices of the element of `tensor` that reads the sum at `at`: as reshaped, and as the views
    between them permute it."""
    yield reshape(at, seed.shape, tensor.shape)
    path = _path(progress, tensor, seed)
    index: tuple[Index, ...] | None = at
    for source, reader in pairwise(reversed(path)):
        index = None if index is None else _moved(progress, reader, source, index)
    if path and index is not None:
        yield index


def _path(progress: Progress, tensor: Tensor, seed: Tensor) -> list[Tensor]:
    """Return the chain of tensors from `tensor` to the one that it finally reads; empty where the chain is not
    unique."""
    path = [tensor]
    while path[-1] is not seed:
        graph = progress.graph
        sources = [read for read in graph.reads(path[-1]) if read is seed or seed in graph.needs(read)]
        if len(sources) != 1:
            return []
        path += sources
    return path


def _moved(progress: Progress, reader: Tensor, source: Tensor, at: tuple[Index, ...]) -> tuple[Index, ...] | None:
    """Return the index of the reader's element that reads `source` at `at`, through a permutation or a reshape."""
    definition = progress.graph.definitions[reader]
    if not isinstance(definition, Pointwise):
        return None
    reads = {access.index for access in accesses(definition.body) if access.tensor is source}
    if len(reads) != 1:
        return None
    axes = {position: axis for axis, position in enumerate(reads.pop()) if source.shape[axis].constant != 1}
    own = [as_index(variable) for variable in definition.variables]
    if all(position in axes or size.constant == 1 for position, size in zip(own, reader.shape, strict=True)):
        return tuple(at[axes[position]] if position in axes else as_index(0) for position in own)
    if not progress.sizes.same(reader.n_elements, source.n_elements):
        return None
    return reshape(at, source.shape, reader.shape)


def _reads_only_at(scalar: Scalar, tensor: Tensor, at: tuple[Index, ...]) -> bool:
    flat = ravel(at, tensor.shape)
    return all(access.tensor is not tensor or ravel(access.index, tensor.shape) == flat for access in accesses(scalar))


def _is_copy(progress: Progress, tensor: Tensor, source: Tensor) -> bool:
    """Return True if the tensor copies the source in the same order, possibly through casts there and back."""
    definition = progress.graph.definitions[tensor]
    if not isinstance(definition, Pointwise) or tensor.shape != source.shape or tensor.dtype != source.dtype:
        return False
    index = tuple(as_index(variable) for variable in definition.variables)
    element = progress.element(tensor, index, frozenset((source,)))
    scalar = None if element is None else unconverted(element)
    if not isinstance(scalar, Access) or scalar.tensor is not source or scalar.mask is not None:
        return False
    return ravel(scalar.index, source.shape) == ravel(index, tensor.shape)
