"""Run code that asks for a GPU on a machine without one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

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
    import torch

    if torch.cuda.is_available():
        yield
        return
    with _cuda_is_cpu()():
        yield


def _cuda_is_cpu() -> type:
    import torch
    from torch.overrides import TorchFunctionMode

    class CudaIsCpu(TorchFunctionMode):
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

    return CudaIsCpu


def _is_cuda(value: Any) -> bool:
    import torch

    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))
