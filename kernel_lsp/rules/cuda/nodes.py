"""The nodes of a function's body by their type. One query finds them all, much faster than a walk here."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from tree_sitter import Node, Query, QueryCursor

from kernel_lsp.rules.cuda.node_list import Found, end_of, start_of
from kernel_lsp.rules.cuda.parsing import language

if TYPE_CHECKING:
    from kernel_lsp.rules.cuda.model import Function

LOOPS = frozenset(("for_statement", "while_statement", "do_statement", "for_range_loop"))


class NodesOf:
    """An attribute of `Function`: the nodes of some types in its body, in the order of the text; put in order when
    first asked for."""

    def __init__(self, *types: str) -> None:
        self.types, self.name = frozenset(types), ""
        self.patterns = tuple(f"({node_type})" for node_type in types)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        _patterns[name], _types[name] = self.patterns, self.types

    def __get__(self, function: Function, owner: type) -> Found:
        nodes = function.__dict__[self.name] = function.inside.nodes(self.name)
        return nodes


class BinariesWith(NodesOf):
    """The binary expressions with any of some operators: those with others, the most nodes of all, are never made. It
    is the operators that are looked for: a pattern for a node with a part stays open for as long as the node is, and a
    sum of 500 terms is 500 nodes in each other."""

    def __init__(self, *operators: str) -> None:
        super().__init__(*operators)
        self.patterns = tuple(f'"{operator}"' for operator in operators)

    def __get__(self, function: Function, owner: type) -> Found:
        binaries = function.__dict__[self.name] = function.inside.binaries(self.name)
        return binaries


def captured_in(body: Node) -> dict[str, list[Node]]:
    """The nodes of all these attributes, unordered."""
    return _cursor().captures(body)


def captured_between(body: Node, start: int, end: int) -> dict[str, list[Node]]:
    """Those that the bytes ``[start, end)`` touch."""
    cursor = _cursor_between()
    cursor.set_byte_range(start, end)
    return cursor.captures(body)


def nodes_between(body: Node, name: str, start: int, end: int) -> list[Node]:
    """Those of one attribute, in order."""
    return in_order(captured_between(body, start, end).get(name, []))


def types_of(name: str) -> frozenset[str]:
    """What the query captures for this attribute."""
    return _types[name]


def binaries_around(operators: Iterable[Node]) -> list[Node]:
    """The binary expressions of these operators, in the order of the text."""
    around = [operator.parent for operator in operators]
    return in_order([node for node in around if node is not None and node.type == "binary_expression"])


class Nesting:
    """Nodes in the order of the text, with the one of them that is next around each. It is asked for what is around any
    node in a search and a few steps; the tree itself finds one parent from its root down."""

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
        """The index of the next one around each, -1 where there is none."""
        opened: list[int] = []
        for index, end in enumerate(self.ends):
            while opened and self.ends[opened[-1]] < end:
                opened.pop()
            self.outer.append(opened[-1] if opened else -1)
            opened.append(index)

    def around(self, node: Node) -> Iterator[Node]:
        """Those around `node`, from the inside out."""
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
    """In the order of a walk from the root: what is around a node stands before it."""
    if len(nodes) > 1:
        if len(set(map(start_of, nodes))) < len(nodes):
            nodes.sort(key=end_of, reverse=True)
        nodes.sort(key=start_of)
    return nodes


# --- below: the query

_patterns: dict[str, tuple[str, ...]] = {}
"""Of each attribute, as they are declared."""
_types: dict[str, frozenset[str]] = {}
"""What the nodes of an attribute are, or the operators that they are found by."""


@lru_cache(maxsize=1)
def _query() -> Query:
    lines = [f"{pattern} @{name}" for name, patterns in _patterns.items() for pattern in patterns]
    return Query(language(), "\n".join(lines))


@lru_cache(maxsize=1)
def _cursor() -> QueryCursor:
    return QueryCursor(_query())


@lru_cache(maxsize=1)
def _cursor_between() -> QueryCursor:
    """Another: a range stays with a cursor."""
    return QueryCursor(_query())
