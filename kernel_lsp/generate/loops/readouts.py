"""Find what each step reads out of a loop's state, such as a query's product with it, and compute it in the loop: the
states of all steps need not lie in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, MutableMapping, Sequence

from kernel_lsp.generate.ir.index import divide_exactly, product
from kernel_lsp.generate.ir.scalar import Scalar, accesses
from kernel_lsp.generate.ir.tensor import Pointwise, Reduction, StepLoop, Tensor
from kernel_lsp.generate.loops.bodies import loop_of
from kernel_lsp.generate.loops.steps import NoLoopError, Steps


def loop_with_readouts(
    steps: Steps, group: Sequence[int], known: MutableMapping[int, Tensor], over_all: Callable[[Scalar], Scalar]
) -> tuple[StepLoop, tuple[int, ...]]:
    """Return the loop of the places in `group`, of what reads them out and of the outer products that both need, with
    its places. `known` has the tensors of places that are computed before; those that the loop computes are taken out.
    Raises NoLoopError where no kernel can have the group."""
    joined = tuple(group)
    for place, definition in enumerate(steps.definitions):
        if isinstance(definition, Reduction) and place not in {*joined, *known}:
            way = _way(steps, place, group, {*joined, *known})
            if way and _reads_once(steps, definition, group):
                joined += way
    if joined != tuple(group):
        joined += _outer_products(steps, known, joined)
        joined = tuple(sorted(joined))  # what reads the step before comes before its update
        replaced = {place: known.pop(place) for place in joined if place in known}  # reads are of the loop's own
        try:
            return loop_of(steps, joined, over_all), joined
        except NoLoopError:
            known.update(replaced)
    return loop_of(steps, group, over_all), tuple(group)


def _outer_products(steps: Steps, known: Collection[int], readers: Collection[int]) -> tuple[int, ...]:
    """Return the known places that the readers need and that are expressions of smaller tensors alone: to compute them
    again costs less than to read them."""
    found = set[int]()
    for place in sorted(known):
        definition = steps.definitions[place]
        if isinstance(definition, Pointwise) and place not in steps.firsts:
            wanted = {variable for variable in definition.variables if variable.extent.constant != 1}
            whole = [access.tensor for access in accesses(definition.body) if wanted <= access.variables]
            if all(tensor in steps.now and steps.now.index(tensor) in found for tensor in whole):
                found.add(place)
    needed = set(readers)
    for place in sorted(found, reverse=True):
        if any((place, 0) in steps.needs(reader) for reader in needed):
            needed.add(place)
    return tuple(needed - set(readers))


def _way(steps: Steps, place: int, group: Collection[int], computed: Collection[int]) -> tuple[int, ...]:
    """Return the places from the group to a reduction, in order; none where these are more than expressions."""
    found, pending, reads_group = {place}, [place], False
    while pending:
        for needed, _ in steps.needs(pending.pop()):
            reads_group |= needed in group
            if needed in computed or needed in found:
                continue
            if not isinstance(steps.definitions[needed], Pointwise) or needed in steps.firsts:
                return ()
            found.add(needed)
            pending.append(needed)
    return tuple(sorted(found)) if reads_group else ()


def _reads_once(steps: Steps, definition: Reduction, group: Collection[int]) -> bool:
    """Return True if the reduction has no more terms than a tensor of the group has elements. A product with a weight
    has more: all steps at once are one product."""
    terms = product(variable.extent for variable in definition.domain)
    sizes = (steps.now[place].n_elements for place in group)
    return any((times := divide_exactly(size, terms)) is not None and times.constant for size in sizes)
