"""Provide a lock-free cached property. `functools.cached_property` takes a lock on each first read until Python
3.12."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

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
