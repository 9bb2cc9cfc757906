"""Run the user's code on this machine: without a GPU that it asks for, and on the cores that are idle."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_ASKED: list[str] = []
"""Requests for a missing GPU under `without_cuda`, since the last `take_asked`."""


def take_asked() -> bool:
    """Check whether any code asked for a missing GPU since the last call."""
    asked = bool(_ASKED)
    _ASKED.clear()
    return asked


@contextlib.contextmanager
def without_cuda() -> Iterator[None]:
    """Map the device ``cuda`` to the CPU where no GPU is available. Changes nothing where one is."""
    if torch.cuda.is_available():
        yield
        return
    with CudaIsCpu():
        yield


class CudaIsCpu(TorchFunctionMode):
    """Maps the device, and notes that code asked for it."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if getattr(function, "__name__", "") == "cuda" and args and isinstance(args[0], torch.Tensor):
            _ASKED.append("cuda()")
            return args[0]
        if _is_cuda(kwargs.get("device")):
            _ASKED.append("device=")
            kwargs["device"] = torch.device("cpu")
        if function is torch.Tensor.to:
            args = tuple(torch.device("cpu") if _is_cuda(argument) else argument for argument in args)
        return function(*args, **kwargs)


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


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
