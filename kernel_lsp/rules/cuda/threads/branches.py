"""Find the conditions that control whether a thread reaches a node."""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.model import Function


def conditions_around(function: Function, node: Node) -> Iterator[Node]:
    """Yield the conditions of enclosing branches and loops, except those whose head contains the node."""
    place = node.start_byte
    for branch in function.branches_around(node):
        condition = branch.child_by_field_id(fields.CONDITION)
        if condition is not None and not condition.start_byte <= place < condition.end_byte:
            yield condition
