"""Bound the threads that reach an access: from the conditions around it, and from the block's size."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.kernel_texts import assigned
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.threads.threads import is_loop_variable, may_depend_on_thread, values_of

MAX_STEPS = 8
"""Maximum names and sums that an index is traced through."""
THREAD_INDICES = frozenset(f"threadIdx.{axis}" for axis in "xyz")
_BLOCK_OF_GRID_INDEX = re.compile(
    r"blockIdx\.(?P<a>[xyz])\s*\*\s*(?P<m>\w+)\s*\+\s*threadIdx\.(?P=a)"
    r"|\b(?P<n>\w+)\s*\*\s*blockIdx\.(?P<b>[xyz])\s*\+\s*threadIdx\.(?P=b)"
    r"|threadIdx\.(?P<c>[xyz])\s*\+\s*(?:blockIdx\.(?P=c)\s*\*\s*(?P<o>\w+)|(?P<p>\w+)\s*\*\s*blockIdx\.(?P=c))"
)
"""``blockIdx.x * SIZE + threadIdx.x`` in any order, which covers the grid once only where SIZE is the block's size."""

_NAMED_INDEX = re.compile(r"=\s*((?:threadIdx|blockIdx)\.[xyz])\s*[;,]")


@dataclass(frozen=True)
class Place:
    """An index split into a counter (None for a constant) and an offset."""

    counter: Node | None
    offset: int


@dataclass(frozen=True)
class ThreadRange:
    """The first and the last thread along an axis. `last` is None where the text does not say it; `end` is then the
    source of the number of threads, or empty."""

    first: int = 0
    last: int | None = None
    end: str = ""


def place_of(function: Function, node: Node | None, depth: int = 0) -> Place | None:
    """Return the counter and the offset of an index, traced through names that are set once."""
    if node is None or depth > MAX_STEPS:
        return None
    value = function.constant(node)
    if value is not None:
        return Place(None, value)
    if node.type == "unary_expression" and function.source(node).startswith("-"):
        inner = function.constant(node.named_children[0]) if node.named_children else None
        return None if inner is None else Place(None, -inner)
    if node.type == "parenthesized_expression":
        return place_of(function, node.named_children[0], depth + 1)
    if node.type == "field_expression":
        return Place(node, 0) if is_thread_index(function, node) else None
    if node.type == "binary_expression":
        return _sum_of(function, node, depth)
    variable = function.variable(node)
    if variable is None or variable in function.parameters:
        return None
    if is_loop_variable(function, variable):
        return Place(node, 0)
    is_fixed = variable.value is not None and not variable.writes and len(function.named(variable.name)) == 1
    return place_of(function, variable.value, depth + 1) if is_fixed else None


def is_thread_index(function: Function, node: Node) -> bool:
    return function.source(node).replace(" ", "") in THREAD_INDICES


def thread_range(function: Function, access: Node, counter: Node) -> ThreadRange | None:
    """Return the threads of a full block that reach the access; None where a condition may exclude any of them."""
    axis = function.source(counter).replace(" ", "")
    found: ThreadRange | None = _block_threads(function, axis)
    child = access
    for parent in function.around(access):
        condition = parent.child_by_field_id(fields.CONDITION)
        if parent.type == "binary_expression" and function.operator(parent) in ("&&", "||"):
            condition = parent.child_by_field_id(fields.LEFT)
        is_inside = condition is not None and condition.id != child.id
        if condition is not None and is_inside and found is not None:
            alternative = parent.child_by_field_id(fields.ALTERNATIVE)
            is_other = (alternative is not None and alternative.id == child.id) or function.operator(parent) == "||"
            found = _within(function, condition, found, axis, is_other)
        child = parent
    return found if found is not None and all(_leaves_by_grid(function, r, access) for r in function.returns) else None


def bounds_grid(function: Function, condition: Node) -> bool:
    """Return whether the condition only bounds indices across the grid from above, which every thread of a full block
    satisfies."""
    return _compares_grid(function, condition, ("<", "<="), "&&")


def block_size(function: Function, axis: str) -> str:
    """Return the source of the block's size along `threadIdx.x`, as the index across the grid implies it, or ""."""
    if "block sizes" not in function.caches:
        function.caches["block sizes"] = _read_block_sizes(function)
    size: str = function.caches["block sizes"].get(axis[-1], "")
    return size


def _read_block_sizes(function: Function) -> dict[str, str]:
    """Return the one size along each axis, except where it is a parameter."""
    if "threadIdx" not in function.text or "blockIdx" not in function.text:
        return {}
    names: dict[str, set[str]] = {}
    for found in _BLOCK_OF_GRID_INDEX.finditer(_with_thread_indices(function)):
        axis = found["a"] or found["b"] or found["c"]
        names.setdefault(axis, set()).add(found["m"] or found["n"] or found["o"] or found["p"])
    sizes = {axis: found.pop() for axis, found in names.items() if len(found) == 1}
    return {
        axis: name
        for axis, name in sizes.items()
        if name not in ("x", "y", "z") and not any(v in function.parameters for v in function.named(name))
    }


def _with_thread_indices(function: Function) -> str:
    """Return the function's text with names that only stand for a thread's index replaced by it."""
    if "thread indices" not in function.caches:
        text = function.text
        for name, value in {(name, found[1]) for name, found in assigned(_NAMED_INDEX, text)}:
            if len(function.named(name)) == 1 and not function.named(name)[0].writes:
                text = re.sub(rf"(?<![\w.]){name}\b(?!\s*=[^=])", value, text)
        function.caches["thread indices"] = {0: text}
    found: str = function.caches["thread indices"][0]
    return found


def _sum_of(function: Function, node: Node, depth: int) -> Place | None:
    left, right = (place_of(function, node.child_by_field_id(f), depth + 1) for f in (fields.LEFT, fields.RIGHT))
    operator = function.operator(node)
    if left is None or right is None or operator not in ("+", "-"):
        return None
    if right.counter is None:
        return Place(left.counter, left.offset + (right.offset if operator == "+" else -right.offset))
    return Place(right.counter, left.offset + right.offset) if left.counter is None and operator == "+" else None


def _block_threads(function: Function, axis: str) -> ThreadRange:
    name = block_size(function, axis)
    if not name:
        return ThreadRange()
    known = function.named(name)
    value = int(name) if name.isdigit() else function.file.constants.get(name)
    if known:
        value = function.constant(known[0].value) if len(known) == 1 and known[0].is_const else None
    return ThreadRange(last=None if value is None else value - 1, end=name)


def _within(function: Function, condition: Node, threads: ThreadRange, axis: str, is_other: bool) -> ThreadRange | None:
    """Return the threads that also satisfy a condition; `is_other` for those that do not."""
    condition = bare(condition)
    if not may_depend_on_thread(function, condition) or (not is_other and bounds_grid(function, condition)):
        return threads
    left, right = (condition.child_by_field_id(f) for f in (fields.LEFT, fields.RIGHT))
    operator = function.operator(condition)
    if is_other or condition.type != "binary_expression" or left is None or right is None:
        return None
    if operator == "&&":
        inner = _within(function, left, threads, axis, is_other)
        return None if inner is None else _within(function, right, inner, axis, is_other)
    place, limit = place_of(function, left), function.constant(right)
    if place is None or place.counter is None or limit is None:
        return None
    if function.source(place.counter).replace(" ", "") != axis:
        return threads if is_thread_index(function, place.counter) else None
    limit -= place.offset
    if operator in ("<", "<="):
        last = limit - (operator == "<")
        return replace(threads, last=last if threads.last is None else min(last, threads.last), end="")
    if operator in (">", ">="):
        return replace(threads, first=max(threads.first, limit + (operator == ">")))
    return ThreadRange(limit, limit) if operator == "==" else None


def _leaves_by_grid(function: Function, node: Node, access: Node) -> bool:
    """Return whether a `return` is behind the access, or only that of threads beyond the end of the grid."""
    if node.start_byte > access.start_byte:
        return True
    conditions = [branch.child_by_field_id(fields.CONDITION) for branch in function.branches_around(node)]
    return bool(conditions) and all(
        condition is not None and _compares_grid(function, condition, (">", ">="), "||") for condition in conditions
    )


def _compares_grid(function: Function, condition: Node, operators: tuple[str, ...], connection: str) -> bool:
    condition = _named_condition(function, bare(condition))
    left, right = (condition.child_by_field_id(f) for f in (fields.LEFT, fields.RIGHT))
    if condition.type != "binary_expression" or left is None or right is None:
        return False
    if function.operator(condition) == connection:
        return all(_compares_grid(function, side, operators, connection) for side in (left, right))
    if function.operator(condition) not in operators or may_depend_on_thread(function, right):
        return False
    left = _without_constant(function, left)
    variable = function.variable(left)
    values = [left] if variable is None else list(values_of(variable))
    return len(values) == 1 and "blockIdx" in function.source(values[0]) and "threadIdx" not in function.source(right)


def _named_condition(function: Function, condition: Node) -> Node:
    """Return the condition that a name stands for: ``const bool inside = x < w && y < h;``."""
    variable = function.variable(condition)
    is_fixed = variable is not None and variable.value is not None and not variable.writes
    return bare(variable.value) if variable is not None and is_fixed and variable.value is not None else condition


def _without_constant(function: Function, node: Node) -> Node:
    """Return ``i`` of ``i + 1``: a full block behind the first and before the last satisfies either bound."""
    left, right = node.child_by_field_id(fields.LEFT), node.child_by_field_id(fields.RIGHT)
    is_shifted = function.operator(node) in ("+", "-") and function.constant(right) is not None
    return left if is_shifted and left is not None and function.variable(left) is not None else node


def bare(condition: Node) -> Node:
    """Return the condition without its parentheses."""
    while condition.type in ("parenthesized_expression", "condition_clause") and condition.named_child_count == 1:
        condition = condition.named_children[0]
    return condition
