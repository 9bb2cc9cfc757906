"""Cache earlier results by everything they depend on. The oldest entry is evicted first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """A cache of at most `max_entries` values that take at most `max_bytes` together. Each pause while typing in a long
    function leaves one version of its text behind, so a limit on entries alone would not bound the memory.

    `n_bytes_of` returns the size of an entry. It must return the same size for a value that replaces another of its
    key.
    """

    def __init__(self, max_entries: int, max_bytes: int, n_bytes_of: Callable[[Key, Value], int]) -> None:
        self._max_entries, self._max_bytes, self._n_bytes_of = max_entries, max_bytes, n_bytes_of
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        return self._entries.get(key)

    def keep(self, key: Key, value: Value) -> None:
        """Add or replace a value. A value that exceeds the byte limit by itself is not kept."""
        n_before = len(self._entries)
        self._entries[key] = value
        if len(self._entries) == n_before:
            return
        self.n_bytes += self._n_bytes_of(key, value)
        while self.n_bytes > self._max_bytes or len(self._entries) > self._max_entries:
            self.n_bytes -= self._n_bytes_of(*self._entries.popitem(last=False))

    def clear(self) -> None:
        self._entries.clear()
        self.n_bytes = 0
