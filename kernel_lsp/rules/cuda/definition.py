"""Read a function's definition in the outline of a file."""

from __future__ import annotations

from tree_sitter import Node

from kernel_lsp.rules.cached import once
from kernel_lsp.rules.cuda import fields

MAX_DECLARATORS = 60
"""Maximum nested declarators of a function. Deeper ones declare none."""


class Definition:
    """A function definition in the outline. `outer` is its template declaration, or the definition itself."""

    def __init__(self, node: Node, outer: Node, is_conditionally_compiled: bool, namespace: str = "") -> None:
        self.node, self.outer, self.is_conditionally_compiled = node, outer, is_conditionally_compiled
        self.namespace = namespace

    @once
    def declarator(self) -> Node | None:
        """The function's declarator; None if the text declares no function."""
        return _function_declarator(self.node)

    @once
    def plain_name(self) -> Node | None:
        """The function's name if it is a single unqualified identifier."""
        name = None if self.declarator is None else self.declarator.child_by_field_id(fields.DECLARATOR)
        return name if name is not None and name.type == "identifier" else None

    @once
    def n_parameters(self) -> int:
        declared = None if self.declarator is None else self.declarator.child_by_field_id(fields.PARAMETERS)
        return 0 if declared is None else sum(child.type != "comment" for child in declared.named_children)

    @once
    def body(self) -> Node | None:
        """The function's block of statements; None without one."""
        body = self.node.child_by_field_id(fields.BODY)
        if body is not None and body.type == "try_statement":
            body = body.child_by_field_id(fields.BODY)
        return body if body is not None and body.type == "compound_statement" else None


def _function_declarator(node: Node) -> Node | None:
    declarator = node.child_by_field_id(fields.DECLARATOR)
    for _ in range(MAX_DECLARATORS):
        if declarator is None or declarator.type == "function_declarator":
            return declarator
        declarator = declarator.child_by_field_id(fields.DECLARATOR) or next(
            (child for child in declarator.named_children if child.type.endswith("declarator")), None
        )
    return None
