"""Which conditions decide whether a thread comes to a place."""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.model import Function


def conditions_around(function: Function, node: Node) -> Iterator[Node]:
    """The conditions of the branches and loops that hold the node, not those whose head it is in."""
    place = node.start_byte
    for branch in function.branches_around(node):
        condition = branch.child_by_field_id(fields.CONDITION)
        if condition is not None and not condition.start_byte <= place < condition.end_byte:
            yield condition
