"""Surround the kernels of every exported operator: contract, counters, fallback, gradients by PyTorch.

The part below the imports is carried by the shared runtime of operator files and by each package, word for word.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

# --- Contract, counters, fallback, gradients by PyTorch ---------------------------------------------------

DTYPES = {
    **{"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16},
    **{"i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8},
    **{"u8": torch.uint8, "bool": torch.bool},
}
_NUMBERS: dict[str, Any] = {"int": (int, torch.SymInt), "bool": bool}
_ANY_NUMBER = (int, float, torch.SymInt, torch.SymFloat)


class Contract(NamedTuple):
    """Inputs that the kernels take. Keys are a name and its type, ``x: f32[B, D]`` or ``n: int``; keys of `where` are
    conditions as the plan writes them. `kept` are tensors that a forward returns for its backward, behind its
    results."""

    inputs: Mapping[str, tuple[Tensor, tuple[int, ...]]]
    results: Mapping[str, tuple[int, ...]]
    where: Mapping[str, bool] = {}
    numbers: Mapping[str, Any] = {}
    kept: Mapping[str, tuple[int, ...]] = {}

    @property
    def returned(self) -> Mapping[str, tuple[int, ...]]:
        """Return all that the kernels return: results, and what is kept."""
        return {**self.results, **self.kept}


def require(name: str, types: str, *tensors: Tensor) -> None:
    """Raise ValueError for a tensor whose sizes are not those that code was captured with, ``x: f32[B, 64]; ...``.
    Sizes of one are not compared: every capture fixes them, and code seldom computes with them."""
    for label, tensor in zip(types.split("; "), tensors):
        dims = [dim for dim in label[label.index("[") + 1 : -1].split(", ") if dim]
        differing = [size for dim, size in zip(dims, tensor.shape) if dim.isdigit() and int(dim) not in (1, size)]
        if tensor.dim() != len(dims) or differing:
            raise ValueError(f"{name} was captured with {label}; capture it again")


def sizes(tensor: Any, rank: int) -> tuple[int, ...]:
    """Return the tensor's shape; zeros, which no contract takes, for another rank or no tensor."""
    return tuple(tensor.shape) if isinstance(tensor, Tensor) and tensor.dim() == rank else (0,) * rank


def holds(condition: Callable[[], Any]) -> bool:
    """Evaluate a condition; one that divides by zero, or by what is no number, does not hold."""
    try:
        return bool(condition())
    except (TypeError, ZeroDivisionError):
        return False


def ceil_div(left: int, right: int) -> int:
    """Divide and round up."""
    return -(-left // right)


def mismatch(contract: Contract) -> str:
    """Explain why dtypes or shapes are not those of the plan; empty when they are."""
    for label, value in contract.numbers.items():
        name, _, type_ = label.partition(": ")
        if not isinstance(value, _NUMBERS.get(type_, _ANY_NUMBER)):
            return f"{name} is not of type {type_ or 'float'}"
    for label, (tensor, shape) in contract.inputs.items():
        if not _is_tensor(tensor, _dtype_of(label), len(shape)):
            return label.replace(": ", " is not a non-empty ")
    for label, (tensor, shape) in contract.inputs.items():
        if tuple(tensor.shape) != tuple(shape):
            return label.replace(": ", " is not ")
    return ""


def transformed() -> str:
    """Explain why PyTorch must see its own operators in a call, which it records or differentiates; empty where it
    need not."""
    if torch.compiler.is_compiling():
        return _EXPORTED if getattr(torch.compiler, "is_exporting", bool)() else ""
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace records PyTorch's operators"
    if torch._C._functorch.maybe_current_level() is not None:
        return "torch.func transforms PyTorch's operators"
    return "forward-mode gradients are PyTorch's" if forward_ad._current_level >= 0 else ""


_EXPORTED = "torch.export records PyTorch's operators"


def outside(contract: Contract) -> str:
    """Explain why the kernels cannot take the inputs; empty when they can."""
    reason = mismatch(contract)
    if reason:
        return f"{reason}: record a run with such inputs, and optimize again"
    reason = _not_on_one_gpu(*[tensor for tensor, _ in contract.inputs.values()])
    if reason:
        return reason
    for condition, is_met in contract.where.items():
        if not is_met:
            return f"{condition} does not hold"
    return ""


def fake_results(contract: Contract) -> Any:
    """Return results without data inside the contract's shapes, for tracing and `torch.compile`."""
    device = next(iter(contract.inputs.values()))[0].device
    results = [torch.empty(shape, dtype=_dtype_of(label), device=device) for label, shape in contract.returned.items()]
    return results[0] if len(results) == 1 else tuple(results)


def kept_by_none(contract: Contract) -> tuple[Tensor, ...]:
    """Return zeros in place of what the kernels would keep: PyTorch computes the gradients of what it has computed.
    They are empty where the inputs are not those of the plan, whose sizes are not known then."""
    device = next(tensor.device for tensor, _ in contract.inputs.values() if isinstance(tensor, Tensor))
    is_known = bool(contract.kept) and not mismatch(contract)
    shapes = [shape if is_known else (0,) * len(shape) for shape in contract.kept.values()]
    return tuple([torch.zeros(s, dtype=_dtype_of(label), device=device) for label, s in zip(contract.kept, shapes)])


def _dtype_of(label: str) -> torch.dtype:
    return DTYPES[label.split(": ")[1].split("[")[0]]


def _is_tensor(value: Any, dtype: torch.dtype, rank: int) -> bool:
    is_typed = isinstance(value, Tensor) and value.dtype == dtype
    return is_typed and value.dim() == rank and 0 not in value.shape and value.layout == torch.strided


def _not_on_one_gpu(*tensors: Tensor) -> str:
    """Explain why the tensors are not where kernels can run; empty when they are."""
    device = tensors[0].device
    if device.type != "cuda":
        return f"the tensors are on {device.type}"
    return "" if all(tensor.device == device for tensor in tensors) else "the tensors are on several devices"


def arrangement(returns: Callable[..., Any] | None, original: Callable[..., Any]) -> tuple[Callable[..., Any], str]:
    """Return the function that arranges an operator's results as `original` returns them, and why there is none.
    Classes are looked up in the original's file, then in their modules."""
    classes = {}
    for name, module in (getattr(returns, "__kwdefaults__", None) or {}).items():
        space = getattr(inspect.unwrap(original), "__globals__", {})
        classes[name] = space.get(name, getattr(sys.modules.get(module), name, None))
        if not isinstance(classes[name], type):
            return tuple, f"the class {name}, which the code returns, is not found in {module}"

    def arranged(results: Any) -> Any:
        listed = (results,) if isinstance(results, Tensor) else results
        return results if returns is None else returns(listed, **classes)

    return arranged, ""


class Calls:
    """Counts of one operator: kernel calls by operation, fallback calls by reason."""

    def __init__(self) -> None:
        self.kernels: dict[str, int] = {}
        self.fallback: dict[str, int] = {}
        self.told: set[str] = set()
        self.is_reported = False
        self._lock = threading.Lock()

    def count(self, table: dict[str, int], key: str) -> bool:
        """Count one call; true when it is the first with this key."""
        with self._lock:
            table[key] = table.get(key, 0) + 1
            return table[key] == 1


_CALLS: dict[str, Calls] = {}


def count_kernels(name: str, operation: str) -> None:
    """Count a call that the kernels computed."""
    calls = _CALLS[name]
    if calls.count(calls.kernels, operation) and calls.is_reported:
        print(f"{operation}: computed by its CUDA kernels")


def fell_back(name: str, reason: str) -> bool:
    """Count a call that PyTorch computes, and warn of its reason."""
    calls = _CALLS[name]
    calls.count(calls.fallback, reason)
    return warn_once(name, reason)


def warn_once(name: str, reason: str) -> bool:
    """Warn that PyTorch computes, once per process and reason."""
    calls = _CALLS[name]
    if reason not in calls.told:
        calls.told.add(reason)
        message = f"{name.split('@')[0]}: computed by PyTorch, not by its CUDA kernels: {reason}"
        warnings.warn(message, stacklevel=_level_of_caller())
        if calls.is_reported:
            print(message)
    return True


def _level_of_caller() -> int:
    """Return the stack level, seen from the caller, of the nearest code outside of torch and the operators' folder."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    return level


def _is_ours(file: str) -> bool:
    return os.path.dirname(file) == os.path.dirname(__file__) or file.startswith(os.path.dirname(torch.__file__))


# `torch.compiler.assume_constant_result` without importing the compiler: called once per compilation, not traced.
fell_back._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch's own mark


def _empty_like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _own(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return the results contiguous, each in its own memory: an operator may not return its inputs or views."""
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
    """Let autograd run inside an operator's own code, which is below it. It leaves no graph behind."""
    autograd = torch._C.DispatchKey.AutogradFunctionality
    with torch.no_grad(), torch._C._SetExcludeDispatchKeyGuard(autograd, False):
        yield


def _gradients(
    reference: Callable[..., Any],
    arguments: Sequence[Any],
    needed: Sequence[bool],
    result_gradients: Sequence[Tensor],
) -> tuple[Any, ...]:
    """Return the gradient of each argument that needs one, None for the others, by running the reference again."""
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
