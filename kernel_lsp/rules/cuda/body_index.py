"""Index a function by its syntax tree alone. Functions whose texts share one shape share the index."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import partial

from tree_sitter import Node

from kernel_lsp.rules.cached import once
from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.edit_window import OFFSETS, Spans, Window
from kernel_lsp.rules.cuda.node_list import Found, FoundNodes, FoundSpans, spans_of, touched_by
from kernel_lsp.rules.cuda.nodes import (
    binaries_around,
    captured_between,
    captured_in,
    in_order,
    nodes_between,
    types_of,
)
from kernel_lsp.rules.cuda.variables import Declarator, declarators_of, parameters_of

NO_SPANS = Spans(array(OFFSETS), array(OFFSETS))


class Inside:
    """The nodes of a function with this declarator and body, each list in source order. Callers must not modify the
    results."""

    def __init__(self, declarator: Node, body: Node) -> None:
        self.declarator, self.body = declarator, body
        self.parents: dict[int, Node | None] = {}
        """The known parents, by node id."""
        self.ordered: dict[str, Found] = {}
        self.around_operators: dict[str, Found] = {}
        self.spans: dict[str, Spans] | None = None
        """The spans of every `NodesOf`, if they are known from the tree before an edit."""

    @once
    def captured(self) -> dict[str, list[Node]]:
        """The nodes of every `NodesOf`, unordered."""
        return captured_in(self.body)

    def nodes(self, name: str) -> Found:
        """Return the nodes of the `NodesOf` with this name, or the operators of a `BinariesWith`."""
        found = self.ordered.get(name)
        if found is None:
            found = self.ordered[name] = self._found(name)
        return found

    def binaries(self, name: str) -> Found:
        """Return the binary expressions of the `BinariesWith` with this name."""
        found = self.around_operators.get(name)
        if found is None:
            found = self.around_operators[name] = FoundNodes(binaries_around(self.nodes(name)))
        return found

    def carry(self, old: Inside, window: Window) -> None:
        """Rebase the node spans of the same function before an edit, which changed it at `window` or not at all.
        Applies only if the old spans are known or the old nodes were read."""
        if old.spans is None and "captured" not in old.__dict__:
            return
        before = old.all_spans()
        start, end = self.body.start_byte, self.body.end_byte
        if window.new_end <= start or end <= window.start:
            self.spans = before
            return
        within = window.within(start)
        touching = captured_between(self.body, window.start - 1, window.new_end + 1)
        self.spans = {
            name: before.get(name, NO_SPANS).carried(within, touched_by(within, touching.get(name, []), start))
            for name in before.keys() | touching.keys()
        }

    def all_spans(self) -> dict[str, Spans]:
        """Return the spans of every non-empty `NodesOf`."""
        if self.spans is None:
            start = self.body.start_byte
            self.spans = {name: spans_of(self.nodes(name), start) for name in self.captured}
        return self.spans

    def without_nodes(self) -> Inside:
        """Return a copy that keeps only the spans. In long functions the nodes take megabytes."""
        inside = Inside(self.declarator, self.body)
        if self.spans is not None or "captured" in self.__dict__:
            inside.spans = self.all_spans()
        return inside

    def parent(self, node: Node | None) -> Node | None:
        """Return the parent of `node`, None for the body itself."""
        if node is None or node.id == self.body.id:
            return None
        cache, key = self.parents, node.id
        if key not in cache:
            cache[key] = node.parent
        return cache[key]

    @once
    def all_parents(self) -> dict[int, Node | None]:
        """The parent of each node in the body. A tree finds a parent from its root in time proportional to the
        depth. For deeply nested code one walk that records all parents is much faster."""
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
        """The declarators of the parameters."""
        return list(parameters_of(self.declarator, self.body))

    @once
    def locals(self) -> list[Declarator]:
        """The declarators of the local variables."""
        return [d for node in self.nodes("declarations") for d in declarators_of(node, self._block_of(node))]

    @once
    def writes(self) -> list[tuple[Node, Node]]:
        """Each assignment or update of a name, with the name."""
        return list(self._writes())

    # --- below: helpers of the index

    def _found(self, name: str) -> Found:
        if self.spans is None:
            return FoundNodes(in_order(self.captured.get(name, [])))
        return FoundSpans(
            self.body, self.spans.get(name, NO_SPANS), types_of(name), partial(nodes_between, self.body, name)
        )

    def _block_of(self, declaration: Node) -> Node:
        """Return the block in which the declared names are visible."""
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
