"""What every exported operator does around its kernels: contract, fallback, gradients by PyTorch.

The part below the imports is carried by each operator file and each operator package, word for word.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

# --- Operator support: the contract, the fallback, gradients by PyTorch ----------------------------------

_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)
_SAID: set[tuple[str, str]] = set()


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
