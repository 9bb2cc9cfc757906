"""Choose how many threads PyTorch's operators on processors use."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence

import torch

FEW_ELEMENTS = 1 << 20
"""Elements of all inputs up to which a few threads take milliseconds."""
FEW_THREADS = 4
LOAD = "/proc/loadavg"


@contextlib.contextmanager
def threads_for(shapes: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Use as many of PyTorch's threads as there are idle cores, and a few for few elements. OpenMP's threads wait for
    the last of them after every operation. Where another program occupies its core, that takes a time slice."""
    n_threads = torch.get_num_threads()
    is_small = sum(math.prod(shape) for shape in shapes.values()) <= FEW_ELEMENTS
    try:
        torch.set_num_threads(max(1, min(n_threads, n_idle_cores(), FEW_THREADS if is_small else n_threads)))
        yield
    finally:
        torch.set_num_threads(n_threads)


def n_idle_cores() -> int:
    """Return the cores on which only this process runs at present; all of them where the system does not tell. May be
    less than one."""
    n_cores = os.cpu_count() or 1
    try:
        with open(LOAD, encoding="ascii") as file:
            n_running = int(file.read().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return n_cores
    return n_cores - (n_running - 1)
