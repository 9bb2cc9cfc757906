"""Cache what the rules compute: a property without a lock, and results bounded in number and bytes.

`functools.cached_property` takes a lock on each first read until Python 3.12."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar, overload

Value = TypeVar("Value")


class once(Generic[Value]):
    """Decorate a method as a property that stores its first result as the attribute. Single-threaded use only."""

    def __init__(self, read: Callable[[Any], Value]) -> None:
        self.read, self.name, self.__doc__ = read, read.__name__, read.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> once[Value]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...
    def __get__(self, instance: object | None, owner: type) -> once[Value] | Value:
        if instance is None:
            return self
        value = instance.__dict__[self.name] = self.read(instance)
        return value


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def uncollected(work: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wrap a function so that garbage collection is disabled during the call. A disabled collector stays disabled."""

    @wraps(work)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not gc.isenabled():
            return work(*args, **kwargs)
        gc.disable()
        try:
            return work(*args, **kwargs)
        finally:
            gc.enable()

    return run


Key = TypeVar("Key")
Entry = TypeVar("Entry")


class Kept(Generic[Key, Entry]):
    """A cache of at most `max_entries` values that take at most `max_bytes` together. Each pause while typing in a long
    function leaves one version of its text behind, so a limit on entries alone would not bound the memory.

    `n_bytes_of` returns the size of an entry."""

    def __init__(self, max_entries: int, max_bytes: int, n_bytes_of: Callable[[Key, Entry], int]) -> None:
        self._max_entries, self._max_bytes, self._n_bytes_of = max_entries, max_bytes, n_bytes_of
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def get(self, key: Key) -> Entry | None:
        return self._entries.get(key)

    def keep(self, key: Key, value: Entry) -> None:
        """Add or replace a value. A value that exceeds the byte limit by itself is not kept."""
        if key in self._entries:
            self.n_bytes -= self._n_bytes_of(key, self._entries.pop(key))
        self._entries[key] = value
        self.n_bytes += self._n_bytes_of(key, value)
        while self.n_bytes > self._max_bytes or len(self._entries) > self._max_entries:
            self.n_bytes -= self._n_bytes_of(*self._entries.popitem(last=False))

    def clear(self) -> None:
        self._entries.clear()
        self.n_bytes = 0
