"""What a worker does while it imports: nothing that could wait, and the slow start of the GPU's driver beside it."""

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
    """Import without the garbage collector, which would look again and again at the objects of two thousand modules,
    all of which stay: a first capture takes 2.9 s instead of 3.4 (two cores, torch 2.13). What the first imports made
    is left out of every later collection; of later ones it is not, when garbage of the user's may be among it."""
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
    """Asking the collector whether it has would take longer than a small case: it counts."""
    gc.freeze()


def start_driver() -> threading.Thread:
    """Have the driver of NVIDIA's GPUs look for them, which torch asks of it sooner or later, while modules are
    imported. Without one nothing happens."""
    thread = threading.Thread(target=_start_driver, name="driver", daemon=True)
    thread.start()
    return thread


def _start_driver() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(DRIVER).cuInit(0)
