"""Find stencil accesses that leave the image at a border, for KL201: ``x - 1`` where only ``x < w`` is checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.bounds.thread_range import bare, place_of
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.names import names_in_text
from kernel_lsp.rules.cuda.threads.threads import is_loop_variable, values_of
from kernel_lsp.rules.cuda.variables import Variable

MAX_LEAVES = 64
"""Comparisons of a kernel's conditions that are read."""
_OF_GRID = re.compile(
    r"(?:\(\w+\)|\(longlong\))?\(?(?:blockIdx\.([xyz])\*[\w.]+\+threadIdx\.\1|[\w.]+\*blockIdx\.([xyz])\+threadIdx\.\2"
    r"|threadIdx\.([xyz])\+(?:blockIdx\.\3\*[\w.]+|[\w.]+\*blockIdx\.\3))\)?"
)
"""An index across the grid that begins at 0, without spaces."""
_CLAMPS = ("min", "max", "clamp", "abs", "umin", "imin", "imax")
_INDICES = frozenset(("threadIdx", "blockIdx"))


@dataclass(frozen=True)
class Shift:
    """A coordinate of an access, and the lowest constant that is added to it."""

    coordinate: Variable
    offset: int


def before_the_border(kernel: Function) -> Iterator[tuple[Node, str]]:
    """Yield each access at a coordinate minus a constant, with the coordinate, where no condition of the kernel keeps
    the first ones away; one access for each coordinate."""
    found: set[str] = set()
    lower = _names_with_minus(kernel)
    for place, text in enumerate(kernel.file.texts(kernel.subscripts)):
        if "-" not in text and lower.isdisjoint(names_in_text(text)):
            continue
        access = kernel.subscripts[place]
        array = kernel.variable(access.child_by_field_id(fields.ARGUMENT))
        indices = access.child_by_field_id(fields.INDICES)
        if array is None or not array.is_pointer or array not in kernel.parameters or array.writes or indices is None:
            continue
        for shift in _shifts(kernel, indices.named_children[0]) if indices.named_children else ():
            name = shift.coordinate.name
            if shift.offset < 0 and name not in found and not _may_begin_later(kernel, shift.coordinate):
                found.add(name)
                yield access, name


def _names_with_minus(kernel: Function) -> frozenset[str]:
    """Return the variables whose first value has a minus, or is made of one of these. Indices without either, which
    are most, need not be read."""
    values = [(v.name, kernel.source(v.value)) for v in kernel.all_variables() if v.value is not None]
    found = {name for name, text in values if "-" in text}
    while more := {name for name, text in values if name not in found and not found.isdisjoint(names_in_text(text))}:
        found |= more
    return frozenset(found)


def beyond_the_row(kernel: Function) -> Iterator[tuple[Node, str]]:
    """Yield the accesses ``x[row * rows + col]`` where ``row < rows`` and ``col < cols`` are checked, with the text of
    what the row's index is multiplied by: a row has as many elements as its columns."""
    sizes = _checked_sizes(kernel)
    for access in kernel.subscripts if len(sizes) > 1 else ():
        indices = access.child_by_field_id(fields.INDICES)
        terms = [] if indices is None else list(_terms(kernel, _value(kernel, indices.named_children[0])))
        products = [term for sign, term in terms if sign > 0 and kernel.operator(term) == "*"]
        columns = [v for sign, term in terms if sign > 0 and (v := _coordinate(kernel, term)) is not None]
        if len(terms) != 2 or len(products) != 1 or len(columns) != 1:
            continue
        sides = [bare(side) for f in (fields.LEFT, fields.RIGHT) if (side := products[0].child_by_field_id(f))]
        for side, other in (sides, sides[::-1]):
            row, length = _coordinate(kernel, side), kernel.source(other)
            bounds = sizes.get(columns[0].name, set())
            if row is not None and sizes.get(row.name) == {length} and bounds and length not in bounds:
                yield access, length


def _checked_sizes(kernel: Function) -> dict[str, set[str]]:
    """Return the parameters that each index across the grid is compared with."""
    found: dict[str, set[str]] = {}
    for condition in kernel.conditions():
        for comparison in kernel.binaries_within(condition):
            left, right = (comparison.child_by_field_id(f) for f in (fields.LEFT, fields.RIGHT))
            if left is None or right is None or kernel.operator(comparison) not in ("<", ">="):
                continue
            coordinate, size = _coordinate(kernel, left), kernel.variable(right)
            if coordinate is not None and size is not None and size in kernel.parameters and not size.writes:
                found.setdefault(coordinate.name, set()).add(size.name)
    return found


def is_of_grid(value: str) -> bool:
    """Return whether the text of a value is an index across the grid that begins at 0."""
    return _OF_GRID.fullmatch(value.replace(" ", "")) is not None


def _shifts(kernel: Function, index: Node) -> Iterator[Shift]:
    """Yield the coordinates of an index such as ``(y - 1) * w + x + 1``, each with its constant."""
    terms = list(_terms(kernel, _value(kernel, index)))
    bare_ones = [v for sign, term in terms if sign > 0 and (v := _coordinate(kernel, term)) is not None]
    if len(bare_ones) == 1:
        yield Shift(bare_ones[0], sum(_lowest(kernel, sign, term) for sign, term in terms))
    rows = {kernel.source(term) for sign, term in terms if sign < 0 and kernel.variable(term) in kernel.parameters}
    for sign, term in terms:
        if sign < 0 or kernel.operator(term) != "*":
            continue
        sides = [term.child_by_field_id(fields.LEFT), term.child_by_field_id(fields.RIGHT)]
        for side, other in (sides, sides[::-1]):
            if side is None or other is None:
                continue
            inner = list(_terms(kernel, side))
            coordinates = [v for up, part in inner if up > 0 and (v := _coordinate(kernel, part)) is not None]
            if len(coordinates) == 1:
                offset = sum(_lowest(kernel, up, part) for up, part in inner)
                yield Shift(coordinates[0], offset - (kernel.source(other) in rows))


def _value(kernel: Function, index: Node) -> Node:
    """Return the sum that a name stands for: that of ``int at = y * w + x;``."""
    variable = kernel.variable(index)
    is_fixed = variable is not None and variable.value is not None and not variable.writes
    if variable is None or not is_fixed or _coordinate(kernel, index) is not None or variable.value is None:
        return index
    return variable.value


def _terms(kernel: Function, node: Node, sign: int = 1) -> Iterator[tuple[int, Node]]:
    """Yield the terms of a sum with their signs; a name for a sum of coordinates counts as that sum."""
    node = bare(node)
    operator = kernel.operator(node) if node.type == "binary_expression" else ""
    left, right = node.child_by_field_id(fields.LEFT), node.child_by_field_id(fields.RIGHT)
    if operator not in ("+", "-") or left is None or right is None:
        inner = _value(kernel, node)
        if inner.id != node.id:
            yield from _terms(kernel, inner, sign)
        else:
            yield sign, node
        return
    yield from _terms(kernel, left, sign)
    yield from _terms(kernel, right, sign if operator == "+" else -sign)


def _coordinate(kernel: Function, node: Node) -> Variable | None:
    """Return the variable of an index across the grid that begins at 0 and never changes."""
    variable = kernel.variable(node)
    if variable is None or variable.value is None or variable.writes or len(kernel.named(variable.name)) != 1:
        return None
    return variable if is_of_grid(kernel.source(variable.value)) else None


def _lowest(kernel: Function, sign: int, term: Node) -> int:
    """Return the lowest value of a constant, or of a loop's counter that begins below 0; 0 for other terms."""
    place = place_of(kernel, term)
    if place is None:
        return 0
    if place.counter is None:
        return sign * place.offset
    counter = kernel.variable(place.counter)
    if sign < 0 or counter is None or not is_loop_variable(kernel, counter) or counter.value is None:
        return 0
    first = place_of(kernel, counter.value)
    return first.offset + place.offset if first is not None and first.counter is None and first.offset < 0 else 0


def _may_begin_later(kernel: Function, coordinate: Variable) -> bool:
    """Return whether any condition, or clamp, may keep the first values of a coordinate away: all but ``x < w``."""
    about = _names_made_of(kernel, coordinate.name)
    if any(not kernel.names_in(call).isdisjoint(about) for call in kernel.calls_named(_CLAMPS)):
        return True
    return any(
        not kernel.names_in(leaf).isdisjoint(about | _INDICES) and not _is_upper_check(kernel, leaf)
        for leaf in _leaves(kernel)
    )


def _names_made_of(kernel: Function, name: str) -> frozenset[str]:
    """Return the name, and those of variables that its value goes into."""
    names = {name}
    for _ in range(3):
        for variable in kernel.all_variables():
            if any(not kernel.names_in(value).isdisjoint(names) for value in values_of(variable)):
                names.add(variable.name)
    return frozenset(names)


def _leaves(kernel: Function) -> Iterator[Node]:
    """Yield the comparisons of all conditions."""
    waiting = [bare(condition) for condition in kernel.conditions()]
    for _ in range(MAX_LEAVES):
        if not waiting:
            return
        node = waiting.pop()
        sides = [node.child_by_field_id(field) for field in (fields.LEFT, fields.RIGHT)]
        if kernel.operator(node) in ("&&", "||"):
            waiting += [bare(side) for side in sides if side is not None]
        else:
            yield node
    yield from waiting


def _is_upper_check(kernel: Function, leaf: Node) -> bool:
    """Return whether the comparison bounds one name from above, by a size."""
    left, right = leaf.child_by_field_id(fields.LEFT), leaf.child_by_field_id(fields.RIGHT)
    variable = kernel.variable(left)
    if variable is None or right is None or kernel.operator(leaf) not in ("<", "<=", ">", ">="):
        return False
    is_size = kernel.constant(right) is None and kernel.names_in(right).isdisjoint(_INDICES | {variable.name})
    is_coordinate = left is not None and _coordinate(kernel, left) is not None
    return is_loop_variable(kernel, variable) or (is_size and is_coordinate)
