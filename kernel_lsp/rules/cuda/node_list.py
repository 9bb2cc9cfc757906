"""List the nodes of some types in a function's body, materialised lazily. Most nodes of a long body are reused
across edits."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import overload

from tree_sitter import Node

from kernel_lsp.rules.cached import once
from kernel_lsp.rules.cuda.edit_window import OFFSETS, Spans, Window


class Lost(Exception):
    """Raised if a node is not at its expected position: the tree changed outside the edited text."""


DEEP = 24
"""Maximum ancestors of a position before pages are used. A tree finds a node from its root down, which is slower
than a walk over a page at this depth."""
PAGE_NODES = 64
start_of, end_of = attrgetter("start_byte"), attrgetter("end_byte")


class Found(Sequence[Node]):
    """A sequence of nodes in source order. Their spans are known without the nodes."""

    @property
    @abstractmethod
    def starts(self) -> Sequence[int]:
        """The start of each node, in bytes from the start of its part of the file."""

    @property
    @abstractmethod
    def ends(self) -> Sequence[int]:
        """The end of each node, in bytes from the start of its part of the file."""

    def within(self, outer: Node) -> list[Node]:
        """Return the nodes that start within `outer`."""
        first = bisect_left(self.starts, outer.start_byte)
        return list(self[first : bisect_left(self.starts, outer.end_byte, lo=first)])

    def __len__(self) -> int:
        return len(self.starts)


class FoundNodes(Found):
    """Nodes that are already materialised."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    @once
    def starts(self) -> list[int]:
        return list(map(start_of, self.nodes))

    @once
    def ends(self) -> list[int]:
        return list(map(end_of, self.nodes))

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    @overload
    def __getitem__(self, index: int) -> Node: ...
    @overload
    def __getitem__(self, index: slice) -> list[Node]: ...
    def __getitem__(self, index: int | slice) -> Node | list[Node]:
        return self.nodes[index]


class FoundSpans(Found):
    """Nodes known by their spans alone. `between` returns the nodes that a byte range touches, in order."""

    def __init__(
        self, body: Node, spans: Spans, types: frozenset[str], between: Callable[[int, int], list[Node]]
    ) -> None:
        self.body, self.types, self.between = body, types, between
        self.origin, self.spans = body.start_byte, spans
        self.known: list[Node | None] = [None] * len(spans.starts)
        self.deep_pages: dict[int, bool] = {}

    @once
    def starts(self) -> list[int]:
        origin = self.origin
        return [origin + start for start in self.spans.starts]

    @once
    def ends(self) -> list[int]:
        origin = self.origin
        return [origin + end for end in self.spans.ends]

    def __len__(self) -> int:
        return len(self.known)

    def __iter__(self) -> Iterator[Node]:
        return map(self.node, range(len(self.known)))

    @overload
    def __getitem__(self, index: int) -> Node: ...
    @overload
    def __getitem__(self, index: slice) -> list[Node]: ...
    def __getitem__(self, index: int | slice) -> Node | list[Node]:
        if isinstance(index, slice):
            return list(map(self.node, range(*index.indices(len(self.known)))))
        return self.node(index)

    def within(self, outer: Node) -> list[Node]:
        """Return the nodes that start within `outer`."""
        first = bisect_left(self.starts, outer.start_byte)
        last = bisect_left(self.starts, outer.end_byte, lo=first)
        return list(map(self.node, range(first, last))) if first < last else []

    def node(self, index: int) -> Node:
        """Return the node at this index."""
        node = self.known[index]
        if node is not None:
            return node
        start, end = self.starts[index], self.ends[index]
        page = index // PAGE_NODES
        is_deep = self.deep_pages.get(page)
        if is_deep is None:
            is_deep = self.deep_pages[page] = self._is_deep(start)
        if is_deep:
            return self._of_page(index, page)
        node = self.body.descendant_for_byte_range(start, end)
        while node is not None and node.type not in self.types and node.id != self.body.id:
            node = node.parent  # an ancestor or descendant may start at the same byte
        if node is None or node.start_byte != start or node.end_byte != end:
            raise Lost
        self.known[index] = node
        return node

    # --- below: pages

    def _of_page(self, index: int, page: int) -> Node:
        """Return the node at this index; all nodes of its page are materialised together."""
        starts, first = self.starts, page * PAGE_NODES
        last = min(first + PAGE_NODES, len(starts)) - 1
        nodes = self.between(starts[first], starts[last] + 1)
        nodes = nodes[bisect_left(nodes, starts[first], key=start_of) : bisect_right(nodes, starts[last], key=start_of)]
        first = bisect_left(starts, starts[first])
        if first + len(nodes) > len(starts):
            raise Lost
        self.known[first : first + len(nodes)] = nodes
        node = self.known[index]
        if node is None or node.end_byte != self.ends[index]:
            raise Lost
        return node

    def _is_deep(self, place: int) -> bool:
        cursor = self.body.walk()
        return all(cursor.goto_first_child_for_byte(place) is not None for _ in range(DEEP))


def spans_of(nodes: Found, origin: int) -> Spans:
    """Return the spans of the nodes relative to the byte `origin`."""
    return Spans(
        array(OFFSETS, [start - origin for start in nodes.starts]),
        array(OFFSETS, [end - origin for end in nodes.ends]),
    )


def touched_by(window: Window, nodes: list[Node], origin: int) -> list[tuple[int, int]]:
    """Return the spans of the nodes that touch the window in a new tree. All offsets are relative to the byte
    `origin`."""
    spans = [(node.start_byte - origin, node.end_byte - origin) for node in nodes]
    touching = [(start, end) for start, end in spans if end > window.start and start < window.new_end]
    return sorted(touching, key=lambda span: (span[0], -span[1]))
