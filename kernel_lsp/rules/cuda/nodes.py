"""Group the nodes of a function's body by type. One query finds them all, much faster than a walk in Python."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING

from tree_sitter import Node, Query, QueryCursor

from kernel_lsp.rules.cached import once
from kernel_lsp.rules.cuda.parsing import language

if TYPE_CHECKING:
    from kernel_lsp.rules.cuda.model import Function

start_of, end_of = attrgetter("start_byte"), attrgetter("end_byte")
LOOPS = frozenset(("for_statement", "while_statement", "do_statement", "for_range_loop"))


class Found(list[Node]):
    """Nodes in source order."""

    @once
    def starts(self) -> list[int]:
        return list(map(start_of, self))

    @once
    def ends(self) -> list[int]:
        return list(map(end_of, self))

    def within(self, outer: Node) -> list[Node]:
        """Return the nodes that start within `outer`."""
        first = bisect_left(self.starts, outer.start_byte)
        return self[first : bisect_left(self.starts, outer.end_byte, lo=first)]


class NodesOf:
    """An attribute of `Function`: the nodes of some types in its body, in source order. They are sorted on first
    use."""

    def __init__(self, *types: str) -> None:
        self.name = ""
        self.patterns = tuple(f"({node_type})" for node_type in types)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        _patterns[name] = self.patterns

    def __get__(self, function: Function, owner: type) -> Found:
        nodes = function.__dict__[self.name] = Found(self.read(function.captured.get(self.name, [])))
        return nodes

    def read(self, captured: list[Node]) -> list[Node]:
        """Return the attribute's nodes from those that the query captured."""
        return in_order(captured)


class BinariesWith(NodesOf):
    """The binary expressions with any of some operators. Expressions with other operators, the most frequent nodes,
    are never materialised. The query matches operators, not expressions: a pattern with a child stays open for the
    whole node, and a sum of 500 terms nests 500 nodes."""

    def __init__(self, *operators: str) -> None:
        super().__init__(*operators)
        self.patterns = tuple(f'"{operator}"' for operator in operators)

    def read(self, captured: list[Node]) -> list[Node]:
        return binaries_around(captured)


def captured_in(body: Node) -> dict[str, list[Node]]:
    """Return the nodes of all these attributes, unordered."""
    return _cursor().captures(body)


def binaries_around(operators: Iterable[Node]) -> list[Node]:
    """Return the binary expressions of these operators, in source order."""
    around = [operator.parent for operator in operators]
    return in_order([node for node in around if node is not None and node.type == "binary_expression"])


class Nesting:
    """Nodes in source order, each with the nearest enclosing one of them. It finds the enclosing nodes of any node
    by one search and a few steps. The tree itself finds a parent from its root down."""

    def __init__(self, *found: Found) -> None:
        places = [
            (start, -end, which, index)
            for which, nodes in enumerate(found)
            for index, (start, end) in enumerate(zip(nodes.starts, nodes.ends, strict=True))
        ]
        if len(found) > 1:
            places.sort()
        self.found, self.places = found, places
        self.starts, self.ends = [place[0] for place in places], [-place[1] for place in places]
        self.outer: list[int] = []
        """The index of the nearest enclosing node of each, -1 without one."""
        opened: list[int] = []
        for index, end in enumerate(self.ends):
            while opened and self.ends[opened[-1]] < end:
                opened.pop()
            self.outer.append(opened[-1] if opened else -1)
            opened.append(index)

    def around(self, node: Node) -> Iterator[Node]:
        """Yield the enclosing nodes of `node`, innermost first."""
        start, end = node.start_byte, node.end_byte
        index = bisect_right(self.starts, start) - 1
        while index >= 0:
            if self.ends[index] >= end:
                around = self._node(index)
                if around.id != node.id:
                    yield around
            index = self.outer[index]

    def _node(self, index: int) -> Node:
        _, _, which, number = self.places[index]
        return self.found[which][number]


def in_order(nodes: list[Node]) -> list[Node]:
    """Return the nodes in preorder: an enclosing node precedes its children."""
    if len(nodes) > 1:
        if len(set(map(start_of, nodes))) < len(nodes):
            nodes.sort(key=end_of, reverse=True)
        nodes.sort(key=start_of)
    return nodes


_patterns: dict[str, tuple[str, ...]] = {}
"""The query patterns of each attribute, in declaration order."""


@lru_cache(maxsize=1)
def _query() -> Query:
    lines = [f"{pattern} @{name}" for name, patterns in _patterns.items() for pattern in patterns]
    return Query(language(), "\n".join(lines))


@lru_cache(maxsize=1)
def _cursor() -> QueryCursor:
    return QueryCursor(_query())


_IN_NAMES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_BEFORE_NO_NAME = _IN_NAMES | frozenset(b".")
_POINT = re.compile(rb"\.(?:(?<=[\d']\.)|(?=\d))[\d']*(?:[eE][+-]?\d+)?(?![a-zA-Z0-9.'])")
"""The decimal point of ``0.5``, ``5.`` or ``.5e3`` without a suffix. It begins with a literal character, which makes
the search fast."""
_EXPONENT = re.compile(rb"[eE](?<=[\d'][eE])[+-]?\d+(?![a-zA-Z0-9.'])")
"""The exponent of ``1e3`` without a suffix."""


def next_mention(data: bytes, word: bytes, start: int, end: int) -> int:
    """Return the first position in the bytes ``[start, end)`` where the name occurs other than as a field, -1
    without one. A plain text search avoids compiling a pattern per name."""
    start = data.find(word, start, end) if word else -1
    while start >= 0:
        after = start + len(word)
        is_whole = data[start - 1] not in _BEFORE_NO_NAME and data[after] not in _IN_NAMES
        if is_whole and data[start - 2 : start] != b"->":
            return start
        start = data.find(word, after, end)
    return -1


def doubles_in(body: Node, data: bytes) -> list[Node]:
    """Return the number literals of a body that may be doubles, in source order."""
    places = [
        m.start() for pattern in (_POINT, _EXPONENT) for m in pattern.finditer(data, body.start_byte, body.end_byte)
    ]
    nodes = [body.descendant_for_byte_range(start, start + 1) for start in sorted(places)]
    return list({node.id: node for node in nodes if node is not None and node.type == "number_literal"}.values())
