"""Which conditions decide whether a thread comes to a place."""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.nodes import LOOPS

_BRANCHING = LOOPS | {"if_statement", "switch_statement", "conditional_expression"}


def conditions_around(function: Function, node: Node) -> Iterator[Node]:
    """The conditions of the branches and loops that hold the node, not those whose head it is in."""
    child = node
    for parent in function.around(node):
        condition = parent.child_by_field_id(fields.CONDITION) if parent.type in _BRANCHING else None
        if condition is not None and condition.id != child.id:
            yield condition
        child = parent
