"""Values that are compared by a hash of their content."""

from __future__ import annotations

import hashlib
from typing import Any

DIGEST_BYTES = 16


def digest_of(*parts: object) -> bytes:
    """Return a content hash of the parts: bytes as they are, everything else by its text."""
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        hasher.update(len(data).to_bytes(4, "little"))
        hasher.update(data)
    return hasher.digest()


class Digested:
    """Base of values compared and hashed by `digest`, a hash of the content."""

    __slots__ = ("variables",)

    digest: bytes
    variables: frozenset[Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digested) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)
