"""Values that are compared by a hash of their content."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

DIGEST_BYTES = 16


def digest_of(*parts: object) -> bytes:
    """Return a content hash of the parts: bytes as they are, everything else by its text."""
    data = [part if isinstance(part, bytes) else repr(part).encode() for part in parts]
    joined = b"".join([piece for each in data for piece in (len(each).to_bytes(4, "little"), each)])
    return hashlib.blake2b(joined, digest_size=DIGEST_BYTES).digest()


class Digested:
    """Base of values compared and hashed by `digest`, a hash of the content."""

    __slots__ = ("variables",)

    digest: bytes
    variables: frozenset[Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digested) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


Node = TypeVar("Node", bound=Any)
"""A digested value with `operands` of its kind."""


def operands_first(root: Node, is_done: Callable[[Node], bool]) -> Iterator[Node]:
    """Yield the nodes below a root, and it, that are not done, each behind its operands. A visitor that is done with a
    node once it was yielded needs no recursion, however deep the expression is."""
    pending = [root]
    while pending:
        left = [operand for operand in pending[-1].operands if not is_done(operand)]
        if left:
            pending.extend(left)
        elif not is_done(node := pending.pop()):
            yield node


class Rebuilding(Generic[Node]):
    """Rebuilds an expression bottom up, each shared node once."""

    def __init__(self) -> None:
        self._done: dict[bytes, Node] = {}

    def run(self, root: Node) -> Node:
        """Return what the expression becomes."""
        for node in operands_first(root, lambda entry: entry.digest in self._done or self.is_kept(entry)):
            self.visit(node)
        return self.visit(root)

    def visit(self, node: Node) -> Node:
        """Return what the node becomes; its operands are done."""
        if self.is_kept(node):
            return node
        done = self._done.get(node.digest)
        if done is None:
            done = self._done[node.digest] = self.rebuilt(node)
        return done

    def is_kept(self, node: Node) -> bool:
        """Return True if the node stays as it is."""
        return False

    @abstractmethod
    def rebuilt(self, node: Node) -> Node:
        """Return what the node becomes."""
