"""What was found before, by all that it depends on; the oldest goes when it is too much."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """Values by key, at most `max_entries` with at most `max_bytes` together. Whoever types in a long function leaves
    its text behind with every pause: by their number alone, entries take as much as functions are long.

    `n_bytes_of` is what an entry takes. For a value that takes the place of another of its key it gives the same.
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
        """Add a value, or put it in the place of another. One that is too much by itself is not kept."""
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
