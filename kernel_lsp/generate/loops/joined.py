"""Read the results of all steps at once where a definition chooses among the tensors of the steps, as a stack does."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index, divide_exactly
from kernel_lsp.generate.ir.scalar import (
    Access,
    Constant,
    Operation,
    Scalar,
    accesses,
    as_position,
    compare,
    index_value,
    masked,
    select,
)
from kernel_lsp.generate.ir.tensor import Definition, Pointwise, Tensor, through_views
from kernel_lsp.generate.loops.periods import MIN_STEPS

MAX_OTHERS = 4
"""Maximum parts of a stack, before and behind those of the steps, that are other tensors."""


def with_joined_steps(tensor: Tensor, definition: Definition) -> Definition:
    """Return the definition with one read in place of the choice among many steps."""
    if not isinstance(definition, Pointwise) or sum(1 for _ in accesses(definition.body)) < MIN_STEPS:
        return definition
    for variable in definition.variables:
        width = _width(_bounds(definition.body, variable))
        n_parts = None if width is None else divide_exactly(variable.extent, width)
        if width is None or n_parts is None or n_parts.constant is None:
            continue
        body = _joined(definition.body, variable, width, n_parts.constant)
        if body is not None:
            return Pointwise(definition.variables, body)
    return definition


def _bounds(body: Scalar, variable: Variable) -> set[Index]:
    """Return the places at which the choices along an axis begin or end."""
    found, pending = set[Index](), [body]
    while pending:
        node = pending.pop()
        if not isinstance(node, Operation):
            continue
        if node.name in ("select", "logical_and"):
            pending += node.operands
        elif node.name in ("lt", "ge"):
            place, bound = map(as_position, node.operands)
            found |= {bound} if place == as_index(variable) else set()
    return found


def _width(bounds: Collection[Index]) -> Index | None:
    """Return the size of parts of one size that begin at the bounds; None where they have several."""
    if len(bounds) < MIN_STEPS - 1:
        return None
    for width in bounds:
        numbers = [divide_exactly(bound, width) for bound in bounds]
        if width.terms and len(width.terms) == 1 and all(each is not None and each.constant for each in numbers):
            return width
    return None


def _joined(body: Scalar, variable: Variable, width: Index, n_parts: int) -> Scalar | None:
    """Return the element from parts of a width; None where too few of them are steps of one tensor."""
    within = Variable("within", -1, width)
    parts = [_at(body, variable, width * part + as_index(within)) for part in range(n_parts)]
    first, last = 0, len(parts)
    while first < last and _growth(parts, first, last) is None:
        if first < MAX_OTHERS:
            first += 1
        elif len(parts) - last < MAX_OTHERS:
            first, last = 0, last - 1
        else:
            return None
    if last - first < MIN_STEPS:
        return None
    return _chosen(parts, first, last, variable, within)


def _at(body: Scalar, variable: Variable, place: Index) -> Scalar:
    """Return the body at a place along an axis, which decides the choices."""
    node = body
    while isinstance(node, Operation) and node.name == "select":
        decided = node.operands[0].substitute({variable: place})
        if not isinstance(decided, Constant):
            break
        node = node.operands[1] if decided.value else node.operands[2]
    return through_views(node.substitute({variable: place}))


def _growth(parts: Sequence[Scalar], first: int, last: int) -> list[Index] | None:
    """Return by how much the index grows from part to part; None where they are not reads of one tensor."""
    reads = [part for part in parts[first:last] if isinstance(part, Access) and part.mask is None]
    if len(reads) < max(2, last - first) or len({read.tensor for read in reads}) > 1:
        return None
    growth = [later - earlier for earlier, later in zip(reads[0].index, reads[1].index, strict=True)]
    if any(each.variables or each.reads_memory for each in growth):
        return None
    for number, read in enumerate(reads):
        expected = [start + step * number for start, step in zip(reads[0].index, growth, strict=True)]
        if list(read.index) != expected:
            return None
    return growth


def _chosen(parts: Sequence[Scalar], first: int, last: int, variable: Variable, within: Variable) -> Scalar | None:
    growth, start = _growth(parts, first, last), parts[first]
    if growth is None or not isinstance(start, Access):
        return None
    place, width = as_index(variable), within.extent
    local = {within: place % width}
    number = place // width - first
    index = [own + step * number for own, step in zip(start.index, growth, strict=True)]
    found: Scalar = Access(start.tensor, index).substitute(local)
    for part in range(first - 1, -1, -1):
        found = _either(place, width * (part + 1), parts[part].substitute(local), found)
    for part in range(last, len(parts)):
        found = _either(place, width * part, found, parts[part].substitute(local))
    return found


def _either(place: Index, bound: Index, before: Scalar, behind: Scalar) -> Scalar:
    """Return `before` at places below the bound, else `behind`; neither is read elsewhere."""
    is_before = compare("lt", index_value(place), index_value(bound))
    is_behind = compare("ge", index_value(place), index_value(bound))
    return select(is_before, masked(is_before, before), masked(is_behind, behind))
