"""Provide a lock-free cached property. `functools.cached_property` takes a lock on each first read until Python
3.12."""

from __future__ import annotations

import gc
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
