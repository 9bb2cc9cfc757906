"""Roll the unrolled loops of a graph: what steps do not pass on is computed for all steps at once, the rest step by
step in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from kernel_lsp.generate.fusion.graph import live_tensors, scalars_of
from kernel_lsp.generate.ir.digest import digest_of
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.scalar import Access, Scalar, accesses, compare, index_value, masked, rewrite, select
from kernel_lsp.generate.ir.tensor import Buffer, LoopResult, Pointwise, Reduction, Tensor, is_view, through_views
from kernel_lsp.generate.loops.joined import with_joined_steps
from kernel_lsp.generate.loops.periods import find_steps, outline
from kernel_lsp.generate.loops.readouts import loop_with_readouts
from kernel_lsp.generate.loops.rebuilding import Rebuilder, UnknownDefinitionError
from kernel_lsp.generate.loops.split_products import with_split_products
from kernel_lsp.generate.loops.steps import NoLoopError, OpenSizesError, Steps
from kernel_lsp.generate.loops.sums import sum_over_steps, summand
from kernel_lsp.generate.lowering.arithmetic import op
from kernel_lsp.generate.lowering.builder import positions
from kernel_lsp.generate.lowering.table import LoweredGraph

MAX_LOOPS = 4
"""Maximum loops of a graph: a backward has those of its forward, too."""


def rolled(lowered: LoweredGraph) -> LoweredGraph:
    """Return the graph with a definition per loop where it has the definitions of every step."""
    open_names = set[str]()
    for _ in range(MAX_LOOPS):
        found = _with_one_rolled(lowered, open_names)
        if found is None:
            break
        lowered = found
    return replace(lowered, sizes_to_fix=lowered.sizes_to_fix | open_names) if open_names else lowered


def n_loops(*graphs: LoweredGraph | None) -> int:
    """Return the number of loops in the graphs."""
    tensors = [tensor for graph in graphs if graph is not None for tensor in graph.tensors]
    return len({id(tensor.definition.loop) for tensor in tensors if isinstance(tensor.definition, LoopResult)})


def _with_one_rolled(lowered: LoweredGraph, open_names: set[str]) -> LoweredGraph | None:
    """Return the graph with one more loop; None where there is no other. Add the sizes to `open_names` that a kernel
    would need as constants."""
    if lowered.window_gradients or lowered.given or not _runs(_computed(lowered)):
        return None
    try:
        lowered = with_split_products(lowered)
    except UnknownDefinitionError:
        return None
    tensors = _computed(lowered)
    for start, period, n_steps in _runs(tensors):
        rows = [tensors[start + step * period :][:period] for step in range(n_steps)]
        for chosen in (rows, rows[1:]):  # the first step may begin with other values
            try:
                return _rolled(lowered, chosen)
            except OpenSizesError as problem:
                open_names |= problem.names
            except (NoLoopError, UnknownDefinitionError):
                continue
    return None


def _computed(lowered: LoweredGraph) -> list[Tensor]:
    """Return what the outputs need, without arguments and views."""
    live = live_tensors([output.tensor for output in lowered.outputs], {})
    return [tensor for tensor in live if not isinstance(tensor.definition, Buffer) and not is_view(tensor)]


def _runs(tensors: Sequence[Tensor]) -> list[tuple[int, int, int]]:
    """Return the first place, the tensors per step and the steps of runs, the longest first."""
    outlines = [outline(tensor) for tensor in tensors]
    found: list[tuple[int, int, int]] = []
    while len(found) < MAX_LOOPS and (run := find_steps(outlines)) is not None:
        start, period, n_steps = run
        found.append(run)
        for place in range(start, start + period * n_steps):
            outlines[place] = digest_of("taken", place)
    return found


def _rolled(lowered: LoweredGraph, rows: Sequence[Sequence[Tensor]]) -> LoweredGraph:
    """Return the graph with the steps `rows` as a loop. Raises NoLoopError where they are none."""
    steps = Steps.of(rows)
    groups = _components(steps)
    if not any(is_loop for _, is_loop in groups):
        raise NoLoopError("no step needs another")
    rebuilder = Rebuilder(lowered)
    for tensor in _needed_before(rows):
        rebuilder.add(tensor)
    members = {tensor for row in rows for tensor in row}
    live = live_tensors([output.tensor for output in lowered.outputs], {})
    reads = (through_views(scalar) for other in live if other not in members for scalar in scalars_of(other.definition))
    read_later = {access.tensor for scalar in reads for access in accesses(scalar)}
    read_later |= {output.tensor for output in lowered.outputs}
    _add_rolled(rebuilder, steps, groups, read_later)
    for tensor in live:
        if tensor not in members and tensor not in rebuilder.made:
            rebuilder.add(tensor, with_joined_steps)
    return rebuilder.graph()


def _needed_before(rows: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Return what the steps read and do not compute, and all that this needs."""
    members = [tensor for row in rows for tensor in row]
    behind = set(members)
    before: list[Tensor] = []
    for tensor in live_tensors(members, {}):
        if tensor in behind or any(a.tensor in behind for a in accesses(*scalars_of(tensor.definition))):
            behind.add(tensor)
        else:
            before.append(tensor)
    return before


def _components(steps: Steps) -> list[tuple[tuple[int, ...], bool]]:
    """Return the places that need each other across steps, with whether they do, in an order in which they can be
    computed."""
    n = len(steps.definitions)
    needs = [{place for place, _ in steps.needs(place)} for place in range(n)]
    reach = [set(each) for each in needs]
    for middle in range(n):
        for place in range(n):
            if middle in reach[place]:
                reach[place] |= reach[middle]
    groups: list[tuple[tuple[int, ...], bool]] = []
    seen: set[int] = set()
    for place in range(n):
        if place not in seen:
            group = tuple(
                other for other in range(n) if other == place or (other in reach[place] and place in reach[other])
            )
            seen.update(group)
            groups.append((group, place in reach[place]))
    ordered: list[tuple[tuple[int, ...], bool]] = []
    done: set[int] = set()
    while len(ordered) < len(groups):
        left = [entry for entry in groups if done.isdisjoint(entry[0])]
        ready = [entry for entry in left if set().union(*(needs[at] for at in entry[0])) <= done | set(entry[0])]
        others = [entry for entry in ready if not entry[1]]  # a loop may take in what reads them
        ordered += others or ready[:1]
        done.update(*(group for group, _ in others or ready[:1]))
    return ordered


def _add_rolled(
    rebuilder: Rebuilder, steps: Steps, groups: Sequence[tuple[tuple[int, ...], bool]], read_later: Collection[Tensor]
) -> None:
    """Add a tensor with an axis of steps for each place, and views of it for the tensors of the steps."""
    whole: dict[int, Tensor] = {}

    def over_all(scalar: Scalar) -> Scalar:
        return _for_all_steps(scalar, steps, whole, rebuilder)

    for group, is_loop in groups:
        place = group[0]
        if place in whole:
            continue
        is_sum = group == (place,) and _is_last_read(steps, place, group, read_later)
        added = summand(steps, place) if is_sum else None
        if added is not None:
            _add_sum(rebuilder, steps, place, sum_over_steps(steps, place, added, over_all))
        elif is_loop:
            loop, group = loop_with_readouts(steps, group, whole, over_all)
            for at, each in enumerate(group):
                n_steps = as_index(1) if _is_last_read(steps, each, group, read_later) else steps.step.extent
                whole[each] = _add_whole(rebuilder, steps, each, LoopResult(loop, at), n_steps)
        else:
            definition = _definition_for_all(steps, place, over_all)
            whole[place] = _add_whole(rebuilder, steps, place, definition, steps.step.extent)
    for number, row in enumerate(steps.tensors):
        for place, tensor in enumerate(row):
            if place in whole and whole[place].shape[0] == steps.step.extent:
                rebuilder.view_of(tensor, whole[place], number)
            elif place in whole and row is steps.tensors[-1]:
                rebuilder.view_of(tensor, whole[place], 0)


def _is_last_read(steps: Steps, place: int, group: Collection[int], read_later: Collection[Tensor]) -> bool:
    """Return True if nothing outside the loop of the group reads a step but the last: it alone is stored."""
    if place >= len(steps.tensors[0]):
        return False
    others = [other for other in range(len(steps.definitions)) if other not in group]
    if any(place == needed for other in others for needed, _ in steps.needs(other)):
        return False
    return not any(row[place] in read_later for row in steps.tensors[:-1])


def _add_sum(rebuilder: Rebuilder, steps: Steps, place: int, definition: Pointwise | Reduction) -> None:
    """Add the sum of all steps, to which the first value belongs."""
    tensor, first = steps.tensors[-1][place], steps.firsts[place]
    summed = rebuilder.new(f"{tensor.name}_sum", tensor.dtype, tensor.shape, definition, tensor)
    own = positions(first.variables)
    total = op("add", rebuilder.rewritten(first.body), Access(summed, own))
    rebuilder.made[tensor] = rebuilder.new(
        tensor.name, tensor.dtype, tensor.shape, Pointwise(first.variables, total), tensor
    )


def _add_whole(
    rebuilder: Rebuilder, steps: Steps, place: int, definition: Pointwise | Reduction | LoopResult, n_steps: Index
) -> Tensor:
    one = steps.now[place]
    name = one.name.removesuffix("_step")
    return rebuilder.new(name, one.dtype, (n_steps, *one.shape), definition, one)


def _definition_for_all(steps: Steps, place: int, over_all: Callable[[Scalar], Scalar]) -> Pointwise | Reduction:
    """Return the definition of a place for all steps at once."""
    definition, step = steps.definitions[place], steps.step
    if isinstance(definition, Pointwise):
        return Pointwise((step, *definition.variables), over_all(definition.body))
    body = over_all(definition.body)
    made = replace(definition, variables=(step, *definition.variables), domain=(step, *definition.domain), body=body)
    if definition.contraction is None:
        return made
    left, right = over_all(definition.contraction.left), over_all(definition.contraction.right)
    batch, rows, columns = (
        tuple(axis + 1 for axis in axes)
        for axes in (
            definition.contraction.batch_axes,
            definition.contraction.row_axes,
            definition.contraction.column_axes,
        )
    )
    if step not in right.variables:
        rows = (0, *rows)
    elif step not in left.variables:
        columns = (0, *columns)
    else:
        batch = (0, *batch)
    contraction = replace(
        definition.contraction, left=left, right=right, batch_axes=batch, row_axes=rows, column_axes=columns
    )
    return replace(made, contraction=contraction)


def _for_all_steps(scalar: Scalar, steps: Steps, whole: Mapping[int, Tensor], rebuilder: Rebuilder) -> Scalar:
    """Return the scalar with reads of steps that are computed before as reads of the tensors of all steps."""
    now = {tensor: place for place, tensor in enumerate(steps.now)}
    before = {tensor: place for place, tensor in enumerate(steps.before)}
    step = as_index(steps.step)

    def read(access: Access) -> Scalar:
        if access.tensor in now:
            place = now[access.tensor]
            return Access(whole[place], (step, *access.index), access.mask) if place in whole else access
        if access.tensor in before:
            place = before[access.tensor]
            return _of_step_before(access, whole[place], steps, place, rebuilder) if place in whole else access
        return Access(rebuilder.made_for(access.tensor), access.index, access.mask)

    return rewrite(scalar, read)


def _of_step_before(access: Access, whole: Tensor, steps: Steps, place: int, rebuilder: Rebuilder) -> Scalar:
    """Return the element of the step before, for the first step its first value."""
    step, first = as_index(steps.step), steps.firsts[place]
    is_later = compare("ge", index_value(step), index_value(as_index(1)))
    earlier = masked(is_later, Access(whole, (step - 1, *access.index)))
    value = rebuilder.rewritten(first.body.substitute(dict(zip(first.variables, access.index, strict=True))))
    is_first = compare("lt", index_value(step), index_value(as_index(1)))
    found = select(is_later, earlier, masked(is_first, value))
    return found if access.mask is None else masked(access.mask, found)
