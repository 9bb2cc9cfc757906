"""What every exported operator does around its kernels: contract, fallback, alignment, gradients by PyTorch.

The part below the imports is carried by each operator file, word for word, before the CUDA runtime.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .cuda_runtime import CudaError, on_device

# --- Operator support: the contract, the fallback, tensors as kernels need them, gradients by PyTorch -----

VECTOR_BYTES = 16  # the widest load of a kernel: torch's own allocations are aligned to 512
MAX_BOUND = 1024  # kinds of inputs whose launches a thread keeps
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)
_SAID: set[tuple[str, str]] = set()


class _ThreadsLaunches(threading.local):
    """The launches that a thread has bound, by the kind of their inputs. A launch holds the addresses of its
    tensors, so threads cannot share it."""

    def __init__(self) -> None:
        self.by_inputs: dict[tuple[Any, ...], tuple[Any, ...] | str] = {}


_BOUND = _ThreadsLaunches()


def _is_tensor(value: Any, dtype: torch.dtype, rank: int) -> bool:
    is_typed = isinstance(value, Tensor) and value.dtype == dtype
    return is_typed and value.dim() == rank and 0 not in value.shape


def _not_on_one_gpu(*tensors: Tensor) -> str:
    """Why the tensors are not where kernels can run; empty when they are."""
    device = tensors[0].device
    if device.type != "cuda":
        return f"the tensors are on {device.type}"
    return "" if all(tensor.device == device for tensor in tensors) else "the tensors are on several devices"


def _say_once(name: str, reason: str) -> None:
    """Tell the user, once per process, that PyTorch does the work and why."""
    if not torch.compiler.is_compiling() and (name, reason) not in _SAID:
        _SAID.add((name, reason))
        warnings.warn(f"{name}: computed by PyTorch, not by its CUDA kernels: {reason}", stacklevel=3)


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


def _empty_like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _own(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[Any, ...]:
    """The results, contiguous, each in memory of its own: an operator may not return its inputs or views."""
    taken = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    owned = []
    for result in results:
        if not result.is_contiguous() or result.untyped_storage().data_ptr() in taken:
            result = result.clone(memory_format=torch.contiguous_format)
        taken.add(result.untyped_storage().data_ptr())
        owned.append(result)
    return tuple(owned)


@contextlib.contextmanager
def _autograd_in_operator() -> Iterator[None]:
    """Lets autograd run inside an operator's own code, which is below it. It leaves no graph behind."""
    autograd = torch._C.DispatchKey.AutogradFunctionality
    with torch.no_grad(), torch._C._SetExcludeDispatchKeyGuard(autograd, False):
        yield


def _gradients(
    reference: Callable[..., Any],
    arguments: Sequence[Any],
    needed: Sequence[bool],
    result_gradients: Sequence[Tensor],
) -> tuple[Any, ...]:
    """The gradient for each argument that needs one, None for the others, by running the reference again."""
    again = torch.is_grad_enabled()  # then the gradients must be differentiable themselves
    with torch.enable_grad():
        inputs = list(arguments)
        for index in (index for index, is_needed in enumerate(needed) if is_needed):
            tensor = inputs[index]
            inputs[index] = tensor.view_as(tensor) if again else tensor.detach().requires_grad_()
        results = reference(*inputs)
        results = (results,) if isinstance(results, Tensor) else results
        floating = [result for result in results if result.is_floating_point()]
        pairs = [(r, g) for r, g in zip(floating, result_gradients) if r.requires_grad]
        wanted = [tensor for tensor, is_needed in zip(inputs, needed) if is_needed]
        if not pairs or not wanted:
            return tuple(torch.zeros_like(t) if is_needed else None for t, is_needed in zip(inputs, needed))
        found = iter(
            torch.autograd.grad(
                [result for result, _ in pairs],
                wanted,
                [gradient for _, gradient in pairs],
                create_graph=again,
                materialize_grads=True,
            )
        )
    return tuple(next(found) if is_needed else None for is_needed in needed)
