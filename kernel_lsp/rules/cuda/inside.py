"""What a function has by its tree alone: the same for all functions whose texts have one shape."""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.nodes import binaries_around, captured_in, in_order
from kernel_lsp.rules.cuda.variables import Declarator, declarators_of, parameters_of
from kernel_lsp.rules.once import once


class Inside:
    """The nodes of a function with this declarator and body, each list in the order of the text. What it gives is not
    to be changed."""

    def __init__(self, declarator: Node, body: Node) -> None:
        self.declarator, self.body = declarator, body
        self.parents: dict[int, Node | None] = {}
        """What is known of the node around each."""
        self.ordered: dict[str, list[Node]] = {}

    @once
    def captured(self) -> dict[str, list[Node]]:
        """The nodes of every `NodesOf`, unordered."""
        return captured_in(self.body)

    def nodes(self, name: str) -> list[Node]:
        """Those of the `NodesOf` of this name."""
        nodes = self.ordered.get(name)
        if nodes is None:
            nodes = self.ordered[name] = in_order(self.captured.get(name, []))
        return nodes

    def binaries(self, name: str) -> list[Node]:
        """The binary expressions of the `BinariesWith` of this name, whose operators were captured."""
        nodes = self.ordered.get(name)
        if nodes is None:
            nodes = self.ordered[name] = binaries_around(self.captured.get(name, []))
        return nodes

    def parent(self, node: Node | None) -> Node | None:
        """The node around `node`, None for the body itself."""
        if node is None or node.id == self.body.id:
            return None
        cache, key = self.parents, node.id
        if key not in cache:
            cache[key] = node.parent
        return cache[key]

    @once
    def all_parents(self) -> dict[int, Node | None]:
        """The node around each node of the body. The tree finds one parent from its root down, which takes as long as
        it is deep: where code is nested beyond all measure, one walk that notes them all is much faster."""
        found: dict[int, Node | None] = {}
        waiting = [self.body]
        while waiting:
            node = waiting.pop()
            for child in node.children:
                found[child.id] = node
                waiting.append(child)
        return found

    @once
    def parameters(self) -> list[Declarator]:
        """Those of the parameters."""
        return list(parameters_of(self.declarator, self.body))

    @once
    def locals(self) -> list[Declarator]:
        """Those of the variables in the body."""
        return [d for node in self.nodes("declarations") for d in declarators_of(node, self._block_of(node))]

    @once
    def writes(self) -> list[tuple[Node, Node]]:
        """Each assignment and update of a name, with the name."""
        return list(self._writes())

    # --- below: what these are made of

    def _block_of(self, declaration: Node) -> Node:
        """Where the names of the declaration end."""
        block = self.parent(declaration)
        if block is not None and block.type == "condition_clause":
            block = self.parent(block)
        return self.body if block is None else block

    def _writes(self) -> Iterator[tuple[Node, Node]]:
        for attribute, part in (("assignments", fields.LEFT), ("updates", fields.ARGUMENT)):
            for write in self.nodes(attribute):
                target = write.child_by_field_id(part)
                if target is not None and target.type == "identifier":
                    yield write, target
