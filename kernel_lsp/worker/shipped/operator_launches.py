"""How an operator file keeps the launches that it has bound, and readies tensors for them.

The part below the imports is carried by each operator file, word for word, between the support and the CUDA runtime.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch import Tensor

from .cuda_runtime import CudaError, on_device
from .operator_support import _say_once

# --- Bound launches: kept by the kind of inputs, and tensors as kernels need them --------------------------

VECTOR_BYTES = 32  # of the widest load on sm_100, and of wmma's: torch's own allocations are aligned to 512
MAX_BOUND = 1024  # kinds of inputs whose launches a thread keeps


class _ThreadsLaunches(threading.local):
    """The launches that a thread has bound, by the kind of their inputs. A launch holds the addresses of its
    tensors, so threads cannot share it."""

    def __init__(self) -> None:
        self.by_inputs: dict[tuple[Any, ...], tuple[Any, ...] | str] = {}


_BOUND = _ThreadsLaunches()


def _bound(
    name: str,
    key: tuple[Any, ...],
    outside: Callable[..., str],
    bind: Callable[..., Any],
    *arguments: Any,
) -> tuple[Any, ...] | str:
    """The launches for these inputs, or why there are none; kept for the next inputs of the same kind."""
    reason = outside(*arguments)
    launches: tuple[Any, ...] = ()
    if not reason:
        tensor = next(argument for argument in arguments if isinstance(argument, Tensor))
        try:
            with on_device(tensor.device.index):
                launches = bind(*arguments)
        except (CudaError, OverflowError, OSError) as error:
            reason = str(error)
    if reason:
        _say_once(name, reason)
    if len(_BOUND.by_inputs) >= MAX_BOUND:
        _BOUND.by_inputs.clear()
    _BOUND.by_inputs[key] = reason or launches
    return _BOUND.by_inputs[key]


def _ready(tensor: Tensor) -> Tensor:
    """The tensor as kernels read it: contiguous, and aligned for their widest load."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % VECTOR_BYTES else tensor
