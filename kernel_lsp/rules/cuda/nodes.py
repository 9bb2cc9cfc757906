"""The nodes of a function's body by their type. One query finds them all, much faster than a walk here."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING

from tree_sitter import Node, Query, QueryCursor

from kernel_lsp.rules.cuda.parsing import language

if TYPE_CHECKING:
    from kernel_lsp.rules.cuda.model import Function

LOOPS = frozenset(("for_statement", "while_statement", "do_statement", "for_range_loop"))
start_of, end_of = attrgetter("start_byte"), attrgetter("end_byte")


class NodesOf:
    """An attribute of `Function`: the nodes of some types in its body, in the order of the text; put in order when
    first asked for."""

    def __init__(self, *types: str) -> None:
        self.patterns, self.name = tuple(f"({node_type})" for node_type in types), ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        _patterns[name] = self.patterns

    def __get__(self, function: Function, owner: type) -> list[Node]:
        nodes = function.__dict__[self.name] = function.inside.nodes(self.name)
        return nodes


class BinariesWith(NodesOf):
    """The binary expressions with any of some operators: those with others, the most nodes of all, are never made. It
    is the operators that are looked for: a pattern for a node with a part stays open for as long as the node is, and a
    sum of 500 terms is 500 nodes in each other."""

    def __init__(self, *operators: str) -> None:
        super().__init__()
        self.patterns = tuple(f'"{operator}"' for operator in operators)

    def __get__(self, function: Function, owner: type) -> list[Node]:
        binaries = function.__dict__[self.name] = function.inside.binaries(self.name)
        return binaries


def captured_in(body: Node) -> dict[str, list[Node]]:
    """The nodes of all these attributes, unordered."""
    return _cursor().captures(body)


def binaries_around(operators: list[Node]) -> list[Node]:
    """The binary expressions of these operators, in the order of the text."""
    around = [operator.parent for operator in operators]
    return in_order([node for node in around if node is not None and node.type == "binary_expression"])


class Nesting:
    """Nodes in the order of the text, with the one of them that is next around each. It is asked for what is around any
    node in a search and a few steps; the tree itself finds one parent from its root down."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.starts, self.ends = list(map(start_of, nodes)), list(map(end_of, nodes))
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
        end = node.end_byte
        index = bisect_right(self.starts, node.start_byte) - 1
        while index >= 0:
            if self.ends[index] >= end and self.nodes[index].id != node.id:
                yield self.nodes[index]
            index = self.outer[index]


def in_order(nodes: list[Node]) -> list[Node]:
    """In the order of a walk from the root: what is around a node stands before it."""
    if len(nodes) > 1:
        if len(set(map(start_of, nodes))) < len(nodes):
            nodes.sort(key=end_of, reverse=True)
        nodes.sort(key=start_of)
    return nodes


def within(nodes: list[Node], outer: Node) -> list[Node]:
    """Those of `nodes`, which are in the order of the text, that start within `outer`."""
    first = bisect_left(nodes, outer.start_byte, key=start_of)
    return nodes[first : bisect_left(nodes, outer.end_byte, lo=first, key=start_of)]


# --- below: the query

_patterns: dict[str, tuple[str, ...]] = {}
"""Of each attribute, as they are declared."""


@lru_cache(maxsize=1)
def _cursor() -> QueryCursor:
    lines = [f"{pattern} @{name}" for name, patterns in _patterns.items() for pattern in patterns]
    return QueryCursor(Query(language(), "\n".join(lines)))
