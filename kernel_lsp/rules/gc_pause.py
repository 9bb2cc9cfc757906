"""Pause garbage collection while a text is analysed. Nothing becomes garbage before the end, and collection takes
time."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

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
