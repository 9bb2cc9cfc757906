"""No garbage collection while a text is read: nothing of it is garbage before the end, and looking takes time."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def uncollected(work: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same function, during which the collector rests if it did not before."""

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
