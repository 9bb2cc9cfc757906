"""Evaluate the integer expressions of host code: sizes, and the axes of a grid or block."""

from __future__ import annotations

import re

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.outline import MAX_DEPTH


def known_value(function: Function, node: Node | None, depth: int = 0) -> int | None:
    """Return the value of an integer expression. Variables that are set once and never passed on are resolved."""
    if node is None or depth > MAX_DEPTH:
        return None
    value = function.constant(node)
    if value is not None:
        return value
    if node.type == "parenthesized_expression" and node.named_child_count == 1:
        return known_value(function, node.named_children[0], depth + 1)
    if node.type == "binary_expression":
        left = known_value(function, node.child_by_field_id(fields.LEFT), depth + 1)
        right = known_value(function, node.child_by_field_id(fields.RIGHT), depth + 1)
        return _applied(function.operator(node), left, right)
    if node.type == "field_expression":
        return _field_value(function, node, depth)
    value_node = definition(function, node)
    return None if value_node is None else known_value(function, value_node, depth + 1)


def _field_value(function: Function, node: Node, depth: int) -> int | None:
    """Return the value of ``block.x`` of a `dim3`."""
    owner, axis = node.child_by_field_id(fields.ARGUMENT), function.source(node).rpartition(".")[2]
    variable = function.variable(owner)
    if owner is None or variable is None or variable.element != "dim3" or axis not in ("x", "y", "z"):
        return None
    sizes = axes(function, owner)
    index = "xyz".index(axis)
    return known_value(function, sizes[index], depth + 1) if index < len(sizes) else None


def _applied(operator: str, left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return None
    if operator in ("/", "%"):
        return None if right <= 0 or left < 0 else left // right if operator == "/" else left % right
    if operator == "<<":
        return left << right if 0 <= right < 64 else None
    return {"+": left + right, "-": left - right, "*": left * right}.get(operator)


def definition(function: Function, node: Node) -> Node | None:
    """Return the initial value of a local variable that is set once."""
    variable = function.variable(node)
    if variable is None or variable.writes or variable in function.parameters or variable.is_pointer:
        return None
    text = function.source(function.body)
    is_passed = f"&{variable.name}" in text.replace(" ", "") or re.search(rf">>\s*{variable.name}\b", text)
    return None if is_passed else variable.value


def expanded(function: Function, node: Node, depth: int = 0) -> str:
    """Return the text of an expression together with the initial values of its variables."""
    names = sorted(function.names_in(node)) if depth < 3 else []
    values = (variable.value for name in names for variable in function.named(name))
    return " ".join([function.source(node), *(expanded(function, value, depth + 1) for value in values if value)])


def axes(function: Function, node: Node, depth: int = 0) -> list[Node]:
    """Return the sizes in ``dim3(x, y)``, in a variable of that type, or the size alone."""
    variable = function.variable(node)
    if variable is not None and variable.element == "dim3" and variable.value is not None and depth == 0:
        is_changed = bool(variable.writes) or re.search(rf"\b{variable.name}\.[xyz]\s*[-+*/]?=", function.text)
        return [] if is_changed else axes(function, variable.value, depth + 1)
    if node.type == "call_expression" and function.callee(node) == "dim3":
        return function.arguments(node)
    return list(node.named_children) if node.type in ("argument_list", "initializer_list") else [node]
