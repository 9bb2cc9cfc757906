"""The kernel's view of a loop: its tensors in order, and the axes that its steps do not read across."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from kernel_lsp.core.expression import free_names
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import expanded, product
from kernel_lsp.generate.ir.scalar import Access, Loop, Operation, Scalar, accesses, masked, nodes, rewrite
from kernel_lsp.generate.ir.sizes import to_expression
from kernel_lsp.generate.ir.tensor import LoopTensor, Pointwise, Reduction, StepLoop
from kernel_lsp.generate.loops.steps import NoLoopError, OpenSizesError, Steps
from kernel_lsp.generate.lowering.builder import positions

MAX_SHARED_BYTES = 48 << 10
"""Maximum bytes of what the steps of a block keep: static shared memory."""
MAX_TERMS = 1 << 19
"""Maximum terms of the sums of a step for one block: more are faster as a kernel of the whole GPU per step."""
MANY_STEPS = 64
"""Minimum steps of a loop that is rolled whatever a block takes: kernels of each step would not compile in time."""
MAX_FREE_OPERATIONS = 2
"""Maximum operations of a value that is computed where it is read."""
CHEAP = ("cast", "mul", "add", "sub", "neg")
KINDS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")


def loop_of(steps: Steps, group: Sequence[int], over_all: Callable[[Scalar], Scalar]) -> StepLoop:
    """Return the loop of the places in `group`, whose other reads are those of `over_all`. Raises NoLoopError where
    no kernel can have it."""
    found = []
    for place in group:
        definition, first = steps.definitions[place], steps.firsts.get(place)
        if isinstance(definition, Reduction) and definition.kind not in KINDS:
            raise NoLoopError("kind of reduction")
        definition = replace(definition, body=over_all(definition.body))
        if isinstance(definition, Reduction):
            definition = replace(definition, contraction=None)
        if first is not None:
            first = replace(first, body=over_all(first.body))
        found.append(LoopTensor(steps.now[place], steps.before[place], definition, first))
    loop = _with_batch_axes(StepLoop(steps.step, tuple(found)))
    if names := frozenset[str]().union(*map(_open_names, loop.tensors)):
        raise OpenSizesError(names)
    if shared_bytes(loop) > MAX_SHARED_BYTES or (terms_of(loop) > MAX_TERMS and len(steps.tensors) < MANY_STEPS):
        raise NoLoopError("too much for a block")
    return loop


def _open_names(entry: LoopTensor) -> frozenset[str]:
    """Return the dims of what a block keeps and adds up."""
    sizes = list(entry.own_shape)
    if isinstance(entry.definition, Reduction):
        sizes += [variable.extent for variable in entry.definition.reduced]
    return frozenset().union(*(free_names(to_expression(expanded(size))) for size in sizes))


def own_reads(loop: StepLoop, entry: LoopTensor) -> list[Access]:
    """Return what an entry reads of its loop."""
    own = {tensor for each in loop.tensors for tensor in (each.now, each.before)}
    return [access for access in accesses(entry.definition.body) if access.tensor in own]


def _with_batch_axes(loop: StepLoop) -> StepLoop:
    """Return the loop with the axes along which each element reads those of its own place alone, whatever their
    position: the columns of a state that products read by rows are apart."""
    found: list[list[int]] = []
    for axis in range(len(loop.tensors[0].now.shape)):
        axes = _followed(loop, axis)
        is_other = axes is not None and all(known[at] != own for known in found for at, own in enumerate(axes))
        if axes is not None and is_other:  # a diagonal has one axis for two of its matrix
            found.append(axes)
    tensors = (replace(entry, batch_axes=tuple(axes[at] for axes in found)) for at, entry in enumerate(loop.tensors))
    return replace(loop, tensors=tuple(tensors))


def _followed(loop: StepLoop, axis: int) -> list[int] | None:
    """Return the axis of each tensor that goes with `axis` of the first one; None where a step reads across it, or
    reads a part of it."""
    numbers = {tensor: at for at, entry in enumerate(loop.tensors) for tensor in (entry.now, entry.before)}
    own = [positions(entry.definition.variables) for entry in loop.tensors]
    reads = [
        (reader, numbers[access.tensor], access.index)
        for reader, entry in enumerate(loop.tensors)
        for access in own_reads(loop, entry)
    ]
    axes = {0: axis}
    for _ in loop.tensors:
        for reader, read, index in reads:
            if reader in axes and (place := own[reader][axes[reader]]) in index:
                axes.setdefault(read, index.index(place))
            if read in axes and (place := index[axes[read]]) in own[reader]:
                axes.setdefault(reader, own[reader].index(place))
    if len(axes) < len(loop.tensors) or loop.tensors[0].now.shape[axis].constant == 1:
        return None
    if any(index[axes[read]] != own[reader][axes[reader]] for reader, read, index in reads):
        return None
    size = loop.tensors[0].now.shape[axis]
    if any(entry.now.shape[axes[at]] != size for at, entry in enumerate(loop.tensors)):
        return None
    return [axes[at] for at in range(len(loop.tensors))]


def shared_bytes(loop: StepLoop) -> int:
    """Return the bytes that a block keeps."""
    copies = {entry.now: 2 if has_two(loop, entry) else 1 for entry in loop.tensors}
    sizes = (copies[entry.now] * elements_of(entry) * entry.now.dtype.itemsize for entry in loop.tensors)
    return 2 * sum(sizes) if any(entry.now.dtype.itemsize == 2 for entry in loop.tensors) else sum(sizes)


def terms_of(loop: StepLoop) -> int:
    """Return the terms that a block adds up in a step."""
    found = 0
    for entry in loop.tensors:
        if isinstance(entry.definition, Reduction):
            terms = product(variable.extent for variable in entry.definition.reduced).constant
            found += elements_of(entry) * (terms or MAX_TERMS)
    return found


def has_two(loop: StepLoop, entry: LoopTensor) -> bool:
    """Return True if a step reads an entry of the step before while it writes its own."""
    return entry.first is not None and not updates_in_place(loop, entry)


def updates_in_place(loop: StepLoop, entry: LoopTensor) -> bool:
    """Return True if the entry may replace its value of the step before: nothing reads that later, and each element
    reads its own alone."""
    later = False
    for other in loop.tensors:
        reads = [access for access in own_reads(loop, other) if access.tensor is entry.before]
        if other is entry:
            later = True
            if any(access.index != positions(entry.definition.variables) for access in reads):
                return False
        elif reads and later:
            return False
    return True


def as_pointwise(entry: LoopTensor) -> Pointwise:
    """Return the definition as an expression, with a loop for a reduction."""
    definition = entry.definition
    if isinstance(definition, Pointwise):
        return definition
    loop = Loop(definition.kind, definition.reduced, entry.now.dtype, definition.body)
    return Pointwise(definition.variables, loop)


def elements_of(entry: LoopTensor) -> int:
    """Return the elements of a tensor at one place along the batch axes."""
    size = product(entry.own_shape).constant
    assert size is not None, "loops have constant sizes beside their batch"
    return size


def with_inlined(loop: StepLoop, needed: Collection[int]) -> tuple[StepLoop, tuple[int, ...]]:
    """Return the loop without the tensors that only their own step reads, where each of their elements is read once,
    and the places that are left. Those in `needed` stay. A tensor less is a barrier less in each step."""
    entries = dict(enumerate(loop.tensors))
    while (
        place := next((at for at in entries if at not in needed and _can_be_inlined(loop, entries, at)), None)
    ) is not None:
        gone = entries.pop(place)
        entries = {at: _without(entry, gone) for at, entry in entries.items()}
    return replace(loop, tensors=tuple(entries.values())), tuple(entries)


def _can_be_inlined(loop: StepLoop, entries: Mapping[int, LoopTensor], place: int) -> bool:
    own, n_reads = entries[place], 0
    is_reduction = isinstance(own.definition, Reduction) or _has_loop(own.definition.body)
    for entry in entries.values():
        definition = entry.definition
        n_terms = 1
        if isinstance(definition, Reduction):
            n_terms = product(variable.extent for variable in definition.reduced).constant or 0
        for access in accesses(definition.body):
            if access.tensor is own.before:
                return False
            if access.tensor is own.now:
                is_in_loop = not access.variables <= set(_free(definition))
                if is_in_loop or (is_reduction and isinstance(definition, Reduction)):
                    return False
                n_reads += elements_of(entry) * n_terms
    return 0 < n_reads <= elements_of(own) or (n_reads > 0 and not is_reduction and _is_free(own.definition.body))


def _free(definition: Pointwise | Reduction) -> tuple[Variable, ...]:
    return definition.variables if isinstance(definition, Pointwise) else definition.domain


def _has_loop(body: Scalar) -> bool:
    return any(isinstance(node, Loop) for node in nodes(body))


def _is_free(body: Scalar) -> bool:
    """Return True if the value costs no more than to read it."""
    operations = [node for node in nodes(body) if isinstance(node, Operation)]
    return len(operations) <= MAX_FREE_OPERATIONS and all(node.name in CHEAP for node in operations)


def _without(entry: LoopTensor, gone: LoopTensor) -> LoopTensor:
    """Return the entry with the expression of another one in its place."""
    whole = as_pointwise(gone)

    def read(access: Access) -> Scalar:
        if access.tensor is not gone.now:
            return access
        body = whole.body.substitute(dict(zip(whole.variables, access.index, strict=True)))
        return body if access.mask is None else masked(access.mask, body)

    return replace(entry, definition=replace(entry.definition, body=rewrite(entry.definition.body, read)))


def loop_over(loop: StepLoop, rewritten: Callable[[Scalar], Scalar]) -> StepLoop:
    """Return the loop over other tensors beside its own."""
    own = {tensor for entry in loop.tensors for tensor in (entry.now, entry.before)}

    def others(scalar: Scalar) -> Scalar:
        kept = {access.tensor for access in accesses(scalar)} & own
        return rewrite(scalar, lambda access: access if access.tensor in kept else rewritten(access))

    return replace(loop, tensors=tuple(_changed(entry, others) for entry in loop.tensors))


def _changed(entry: LoopTensor, change: Callable[[Scalar], Scalar]) -> LoopTensor:
    first = entry.first if entry.first is None else replace(entry.first, body=change(entry.first.body))
    return replace(entry, definition=replace(entry.definition, body=change(entry.definition.body)), first=first)
