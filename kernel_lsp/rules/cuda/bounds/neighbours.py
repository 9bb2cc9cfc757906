"""Find accesses that a bounds check of another index does not cover, for KL201."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.bounds.thread_range import bare, bounds_grid
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.threads.threads import block_names, growth, thread_names
from kernel_lsp.rules.cuda.variables import Variable

MAX_CONJUNCTS = 8
_FLOATS = ("float", "double", "half", "__half")
_HAS_ONE_MORE = re.compile(r"edge|bound|offset|knot|prefix|cum|grid|ptr|row|stag|face|node", re.IGNORECASE)
"""Names of arrays that have an element more than what lies between their elements."""


def beyond_the_check(kernel: Function) -> Iterator[tuple[Node, str, str]]:
    """Yield each access at ``i + 1`` that only ``i < n`` guards, with the index and the size. The array is written and
    accessed at ``i``, too, so n counts its elements: row pointers, which have one more, are only read."""
    if kernel.name in kernel.file.kernels_of_shortened_sizes:
        return
    for branch in kernel.branches:
        checked = _checked_index(kernel, branch)
        if checked is None:
            continue
        index, size = checked
        accesses = list(_guarded_by(kernel, branch, index))
        at_index: dict[int, list[Node]] = {}
        for other in accesses:
            if _is_at(kernel, other, index) and (array := _array(kernel, other)) is not None:
                at_index.setdefault(array.name_node.id, []).append(other)
        for access in accesses:
            array, distance = _array(kernel, access), _distance(kernel, access, index)
            if array is None or not distance or not _may_be_last(kernel, index, distance):
                continue
            own = at_index.get(array.name_node.id, [])
            is_of_floats = array.element in _FLOATS and not _HAS_ONE_MORE.search(array.name)
            if own and (is_of_floats or any(_is_written(kernel, each) for each in (access, *own))):
                yield access, kernel.source(_index(access) or access), kernel.source(size)
                break


def unguarded_coordinates(kernel: Function) -> Iterator[Node]:
    """Yield the accesses at ``row * cols + col`` that nothing guards, in a kernel that checks other coordinates."""
    checks = (branch.child_by_field_id(fields.CONDITION) for branch in kernel.branches)
    if kernel.returns or not any(condition is not None and bounds_grid(kernel, condition) for condition in checks):
        return
    rights = [both.child_by_field_id(fields.RIGHT) for both in kernel.connections]
    for access in kernel.subscripts:
        is_second = any(
            right is not None and right.start_byte <= access.start_byte < right.end_byte for right in rights
        )
        is_free = not is_second and next(kernel.branches_around(access), None) is None
        if is_free and _array(kernel, access) is not None and _is_coordinate(kernel, _index(access)):
            yield access


def _checked_index(kernel: Function, branch: Node) -> tuple[Variable, Node] | None:
    """Return the index and the size of ``if (i < n)`` or ``if (i >= n) return;`` where nothing else is asked of i."""
    condition = branch.child_by_field_id(fields.CONDITION)
    if branch.type != "if_statement" or condition is None:
        return None
    parts = [bare(condition)]
    for part in parts[:MAX_CONJUNCTS]:
        if kernel.operator(part) in ("&&", "||"):
            sides = (part.child_by_field_id(field) for field in (fields.LEFT, fields.RIGHT))
            parts += [bare(side) for side in sides if side is not None]
    operator = ">=" if _returns(kernel, branch) else "<"
    for part in parts:
        index, size = kernel.variable(part.child_by_field_id(fields.LEFT)), part.child_by_field_id(fields.RIGHT)
        if index is None or kernel.operator(part) != operator or kernel.variable(size) not in kernel.parameters:
            continue
        leaves = (other for other in parts if other.id != part.id and kernel.operator(other) not in ("&&", "||"))
        is_alone = not any(index.name in kernel.names_in(other) for other in leaves)
        is_of_grid = index.value is not None and "blockIdx" in kernel.source(index.value) and not index.writes
        if size is not None and is_alone and is_of_grid and len(kernel.named(index.name)) == 1:
            return index, size
    return None


def _returns(kernel: Function, branch: Node) -> bool:
    return any(True for _ in kernel.returns.within(branch))


def _guarded_by(kernel: Function, branch: Node, index: Variable) -> Iterator[Node]:
    """Yield the subscripts at the index, or beyond it, that no condition about it guards but the check before them."""
    is_early = _returns(kernel, branch)
    start = branch.end_byte if is_early else branch.start_byte
    block = kernel.body if is_early else branch.child_by_field_id(fields.CONSEQUENCE)
    if block is None:
        return
    others = [node for node in kernel.returns if start < node.start_byte]
    for access in kernel.subscripts.within(block):
        if access.start_byte < start or not (_is_at(kernel, access, index) or _distance(kernel, access, index)):
            continue
        inner = (each for each in kernel.branches_around(access) if each.id != branch.id and each.start_byte >= start)
        conditions = (each.child_by_field_id(fields.CONDITION) for each in inner)
        is_asked = any(condition is None or index.name in kernel.names_in(condition) for condition in conditions)
        is_behind_return = any(node.start_byte < access.start_byte for node in others)
        expression = takewhile(lambda parent: not parent.type.endswith("statement"), kernel.around(access))
        is_second = any(kernel.operator(each) in ("&&", "||") for each in expression if each.start_byte >= start)
        if not is_asked and not is_behind_return and not is_second:
            yield access


def _array(kernel: Function, access: Node) -> Variable | None:
    array = kernel.variable(access.child_by_field_id(fields.ARGUMENT))
    return array if array is not None and array.is_pointer and array in kernel.parameters else None


def _index(access: Node) -> Node | None:
    indices = access.child_by_field_id(fields.INDICES)
    return indices.named_children[0] if indices is not None and indices.named_children else None


def _is_at(kernel: Function, access: Node, index: Variable) -> bool:
    return kernel.variable(_index(access)) is index


def _distance(kernel: Function, access: Node, index: Variable) -> int:
    """Return the constant in ``v[i + 1]``, 0 for other accesses."""
    node = _index(access)
    if node is None or kernel.operator(node) != "+":
        return 0
    left, right = node.child_by_field_id(fields.LEFT), node.child_by_field_id(fields.RIGHT)
    if kernel.variable(right) is index:
        left, right = right, left
    return (kernel.constant(right) or 0) if kernel.variable(left) is index else 0


def _may_be_last(kernel: Function, index: Variable, distance: int) -> bool:
    """Return whether ``i + distance`` may reach a size that i is below. An index of every second element may not where
    sizes are even, as they are for a kernel that handles pairs."""
    step = growth(kernel, index.name_node) if index.value is None else growth(kernel, index.value)
    if not isinstance(step, int) or step < 1:
        return False
    return step <= distance or any(_is_uniform_term(kernel, term) for term in sum_terms(kernel, index.value))


def sum_terms(kernel: Function, node: Node | None) -> Iterator[Node]:
    """Yield the terms of a sum, last first; the node itself if it is none."""
    while node is not None:
        node = bare(node)
        if node.type != "binary_expression" or kernel.operator(node) != "+":
            yield node
            return
        right = node.child_by_field_id(fields.RIGHT)
        if right is not None:
            yield from sum_terms(kernel, right)
        node = node.child_by_field_id(fields.LEFT)


def _is_uniform_term(kernel: Function, term: Node) -> bool:
    return kernel.names_in(term).isdisjoint(thread_names(kernel) | block_names(kernel))


def _is_written(kernel: Function, access: Node) -> bool:
    array, text = _array(kernel, access), kernel.source(access)
    targets = (write.child_by_field_id(fields.LEFT) for write in kernel.assignments)
    return any(left is not None and _array(kernel, left) is array and kernel.source(left) == text for left in targets)


def _is_coordinate(kernel: Function, node: Node | None) -> bool:
    """Return whether the index is ``row * cols + col``, where a row and a column lie somewhere in the grid."""
    if node is None or kernel.operator(node) != "+":
        return False
    product, column = node.child_by_field_id(fields.LEFT), node.child_by_field_id(fields.RIGHT)
    if product is None or kernel.operator(product) != "*" or not _is_of_grid(kernel, column):
        return False
    row, size = product.child_by_field_id(fields.LEFT), product.child_by_field_id(fields.RIGHT)
    return _is_of_grid(kernel, row) and kernel.variable(size) in kernel.parameters


def _is_of_grid(kernel: Function, node: Node | None) -> bool:
    names = {kernel.source(node)} if kernel.variable(node) is not None and node is not None else frozenset[str]()
    return not names.isdisjoint(thread_names(kernel)) and not names.isdisjoint(block_names(kernel))
