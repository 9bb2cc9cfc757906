"""Resolve subscripts and pointers: the parameter they access, and the stride between consecutive threads."""

from __future__ import annotations

from dataclasses import dataclass

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.outline import MAX_DEPTH
from kernel_lsp.rules.cuda.threads.threads import Growth, Stride, growth, may_depend_on_thread, summed
from kernel_lsp.rules.cuda.variables import Variable


@dataclass(frozen=True, slots=True)
class Reach:
    """An address within a parameter's memory. `step` is the stride in elements along `threadIdx.x`."""

    array: Variable
    step: Growth


def index_of(subscript: Node) -> Node | None:
    """Return the index of a subscript, if it has one."""
    indices = subscript.child_by_field_id(fields.INDICES)
    return indices.named_children[0] if indices is not None and indices.named_child_count == 1 else None


def reach_of(function: Function, subscript: Node) -> Reach | None:
    """Return the element of a pointer parameter, or of a local pointer into one, that a subscript accesses. None for
    others."""
    if subscript.type != "subscript_expression":
        return None
    start, index = pointed(function, subscript.child_by_field_id(fields.ARGUMENT)), index_of(subscript)
    return None if start is None or index is None else _moved(function, start, index, "+")


def pointed(function: Function, node: Node | None, depth: int = 0) -> Reach | None:
    """Return the address that ``x``, ``x + row * n``, ``&x[row * n]`` or a name for one points to. None if the text
    does not determine it."""
    if node is None or depth > MAX_DEPTH:
        return None
    kind = node.type
    if kind == "identifier":
        return reach_of_variable(function, function.variable(node), depth)
    if kind == "parenthesized_expression" and node.named_child_count == 1:
        return pointed(function, node.named_children[0], depth + 1)
    if kind == "pointer_expression" and function.operator(node) == "&":
        inner = node.child_by_field_id(fields.ARGUMENT)
        return None if inner is None else reach_of(function, inner)
    if kind == "binary_expression" and function.operator(node) in ("+", "-"):
        return _sum_reach(function, node, depth)
    return None


def reach_of_variable(function: Function, variable: Variable | None, depth: int = 0) -> Reach | None:
    """Return the address that a pointer is initialised with."""
    if variable is None or not variable.is_pointer:
        return None
    cache, key = function.caches.setdefault("reaches", {}), variable.name_node.id
    if key not in cache:
        cache[key] = None  # guard against a pointer defined by itself
        cache[key] = _new_reach(function, variable, depth)
    return cache[key]


def _sum_reach(function: Function, node: Node, depth: int) -> Reach | None:
    left, right = node.child_by_field_id(fields.LEFT), node.child_by_field_id(fields.RIGHT)
    operator = function.operator(node)
    start = pointed(function, left, depth + 1)
    if start is None and operator == "+":
        start, right = pointed(function, right, depth + 1), left
    return None if start is None or right is None else _moved(function, start, right, operator)


def _moved(function: Function, start: Reach, offset: Node, operator: str) -> Reach:
    return Reach(start.array, summed(start.step, growth(function, offset), operator))


def _new_reach(function: Function, variable: Variable, depth: int) -> Reach | None:
    is_parameter = variable in function.parameters
    reach = Reach(variable, 0) if is_parameter else pointed(function, variable.value, depth + 1)
    for write in variable.writes:
        reach = None if reach is None else _after(function, reach, write)
    return reach


def _after(function: Function, reach: Reach, write: Node) -> Reach | None:
    """Return the address after ``p += step`` or ``++p``. None after any other assignment."""
    if write.type == "update_expression":
        return reach
    operator, right = function.operator(write), write.child_by_field_id(fields.RIGHT)
    if operator not in ("+=", "-=") or right is None:
        return None
    if not may_depend_on_thread(function, right):
        return reach
    if function.loop_around(write) is not None:
        return Reach(reach.array, Stride.UNKNOWN)
    return _moved(function, reach, right, operator[0])
