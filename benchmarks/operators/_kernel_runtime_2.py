# Written by kernel-lsp (runtime 2): 5f3507f23aea50fa.
"""Runtime 2 of kernel-lsp's operators, shared by every operator file in this folder.

It needs the standard library and torch, and nothing of kernel-lsp. `kernel-lsp` writes it beside the operators
and replaces it with newer text of the same version; operators for another version bring a file of their own.

What an operator file uses:

    CudaOperator              registration, launches, autograd, fallback; kernels compiled by NVRTC
    captured_with             the sizes that code was captured for, from a launch plan
    ModuleUse                 how a module's method calls the operator, and the settings it was captured with
    Operator.calls            counts of kernel calls and, by reason, of fallback calls
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib
import json
import linecache
import logging
import math
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

VERSION = 2


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
        dims = label[label.index("[") + 1 : -1].split(", ")
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


def outside(contract: Contract) -> str:
    """Explain why the kernels cannot take the inputs; empty when they can."""
    reason = mismatch(contract) or _not_on_one_gpu(*[tensor for tensor, _ in contract.inputs.values()])
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
    return is_typed and value.dim() == rank and 0 not in value.shape


def _not_on_one_gpu(*tensors: Tensor) -> str:
    """Explain why the tensors are not where kernels can run; empty when they are."""
    device = tensors[0].device
    if device.type != "cuda":
        return f"the tensors are on {device.type}"
    return "" if all(tensor.device == device for tensor in tensors) else "the tensors are on several devices"


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
        warnings.warn(message, stacklevel=5)
        if calls.is_reported:
            print(message)
    return True


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


# --- The operator in place of a function or of a module's method ------------------------------------------


class ModuleUse:
    """Arguments that a module's method gives the operator: `inputs` are the method's own arguments, `state` the
    parameters and buffers behind them. `settings` are attributes that the kernels have in them as constants, and
    `training` is the mode they were captured in, None where both modes compute the same; `modes` are those of
    submodules in the other one."""

    def __init__(
        self,
        method: str,
        inputs: Sequence[str],
        state: Sequence[str],
        settings: Mapping[str, Any] | None = None,
        training: bool | None = None,
        modes: Mapping[str, bool] | None = None,
    ) -> None:
        self.method, self.inputs, self.state = method, tuple(inputs), tuple(state)
        self.settings, self.training, self.modes = dict(settings or {}), training, dict(modes or {})

    def why_not(self, module: torch.nn.Module) -> str:
        """Explain why the kernels cannot stand for this module; empty when they can."""
        for name, captured in self.settings.items():
            found = _attribute(module, name)
            if not isinstance(found, type(captured)) or found != captured:
                return f"{name} is {found}, and the kernels were made for {captured}: optimize this module, too"
        if self.training is not None:
            for path, part in module.named_modules():
                if part.training != self.modes.get(path, self.training):
                    return _OTHER_MODE[self.training]
        return ""

    def arguments(self, module: torch.nn.Module, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Return the operator's arguments, or None for a call that was not captured."""
        given = _given(self.inputs, {}, inputs, keywords)
        return None if given is None else (*given, *[_attribute(module, path) for path in self.state])


_OTHER_MODE = {
    False: "the kernels were made for eval mode, which computes something else: call .eval(), or run with --backward",
    True: "the kernels were made for training mode, which computes something else: run without --backward for eval",
}
_OTHER_CALL = "called with other arguments than the captured call: {names}"


class Operator:
    """A PyTorch operator with its contract and its fallback. `call` takes the arguments of `reference`, and so does
    `contract`; those of the backward stand behind the gradients of the results and what it is `given` of the forward,
    by place among all that the forward returns. Of that the last `n_kept` are no results. `gradients` names the
    arguments whose gradients the backward returns, `captured` the numbers that the reference has in it as constants."""

    def __init__(
        self,
        name: str,
        module_name: str,
        call: Callable[..., Any],
        contract: Callable[..., Contract],
        reference: Callable[..., Any],
        *,
        backward_contract: Callable[..., Contract] | None = None,
        gradients: Sequence[str] = (),
        captured: Mapping[str, Any] | None = None,
        module: ModuleUse | None = None,
        given: Sequence[int] = (),
        n_kept: int = 0,
    ) -> None:
        self.name, self.contract, self.reference = name, contract, reference
        self.call = _results_of(call, n_kept) if n_kept else call
        self.given, self.n_kept = tuple(given), n_kept
        self.module, self.captured, self.module_name = module, dict(captured or {}), module_name
        self.backward_contract, self.gradients = backward_contract, tuple(gradients)
        code = contract.__code__
        self.argument_names = code.co_varnames[: code.co_argcount]
        self.key = f"{name}@{module_name}"
        self._classes: dict[type, type] = {}
        _CALLS[self.key] = Calls()

    def __reduce__(self) -> Any:
        return _operator_of, (self.module_name,)

    def __call__(self, *arguments: Any) -> Any:
        """Compute by the kernels inside the contract, by the captured PyTorch code outside."""
        reason = self.outside(arguments)
        if reason:
            fell_back(self.key, reason)
            return self.reference(*arguments)
        return self.call(*arguments)

    def outside(self, arguments: Sequence[Any]) -> str:
        """Explain why the kernels cannot take the arguments; empty when they can."""
        return outside(self.contract(*arguments))

    def calls(self) -> dict[str, dict[str, int]]:
        """Count the calls so far that PyTorch computed, by reason; compiled code counts once per compilation."""
        return {"fallback": dict(_CALLS[self.key].fallback)}

    # the fallback

    def forward_by_pytorch(self, *arguments: Any) -> Any:
        """Compute the results by the reference, in tensors of their own as an operator must return them."""
        inputs = [value for value in arguments if isinstance(value, Tensor)]
        with torch.autocast(inputs[0].device.type, enabled=False):
            results = self.reference(*arguments)
        owned = _own((results,) if isinstance(results, Tensor) else results, inputs)
        returned = owned + kept_by_none(self.contract(*arguments)) if self.n_kept else owned
        return returned[0] if isinstance(results, Tensor) and not self.n_kept else returned

    def backward_by_pytorch(self, *arguments: Any) -> Any:
        """Compute the gradients that the kernels would: the reference again, under autograd."""
        n_before = len(arguments) - len(self.argument_names)
        result_gradients = arguments[: n_before - len(self.given)]
        needed = [name in self.gradients for name in self.argument_names]
        with _autograd_in_operator():
            found = _gradients(self.reference, arguments[n_before:], needed, result_gradients)
        by_name = dict(zip(self.argument_names, found))
        results = [by_name[name] for name in self.gradients]
        owned = _own(results, [value for value in arguments if isinstance(value, Tensor)])
        return owned if len(owned) > 1 else owned[0]

    def fake_forward(self, *arguments: Any) -> Any:
        """Return results without data, for tracing and `torch.compile`."""
        contract = self.contract(*arguments)
        if not mismatch(contract):
            return fake_results(contract)
        results = self.reference(*arguments)
        if isinstance(results, Tensor) and not self.n_kept:
            return _empty_like(results)
        listed = (results,) if isinstance(results, Tensor) else results
        return (*map(_empty_like, listed), *kept_by_none(contract))

    def fake_backward(self, *arguments: Any) -> Any:
        """Return gradients without data, for tracing and `torch.compile`."""
        assert self.backward_contract is not None
        contract = self.backward_contract(*arguments)
        if not mismatch(contract):
            return fake_results(contract)
        given = dict(zip(self.argument_names, arguments[-len(self.argument_names) :]))
        results = tuple([_empty_like(given[name]) for name in self.gradients])
        return results[0] if len(results) == 1 else results

    # in place of PyTorch code

    def why_not(self, arguments: Sequence[Any]) -> str:
        """Explain why the original code must compute these arguments; empty when the kernels can."""
        reason = self.outside(arguments)
        if reason or not self.captured or not torch.is_grad_enabled():
            return reason
        if any(isinstance(value, Tensor) and value.requires_grad for value in arguments):
            for name, value in zip(self.argument_names, arguments):
                if name in self.captured and value != self.captured[name]:
                    return f"{name} is not {self.captured[name]}, the captured value, which gradients need"
        return ""

    def use_in(self, module: torch.nn.Module, report: bool) -> torch.nn.Module:
        """Have the module's method computed by the operator, and return the module."""
        assert self.module is not None
        self._report(report)
        kind = type(module)
        reason = "" if getattr(kind, "_kernel_operator", None) is self else self._swap_class(module)
        reason = reason or self.module.why_not(module)
        if reason:
            warn_once(self.key, reason)
        elif report:
            print(f"{self.name}: {kind.__name__} uses its CUDA kernels")
        return module

    def use(self, original: Callable[..., Any], defaults: Mapping[str, Any], report: bool) -> FunctionUse:
        """Return `original`, computed by the operator where it can be."""
        self._report(report)
        if report:
            print(f"{self.name}: {getattr(original, '__name__', 'the function')} uses its CUDA kernels")
        return FunctionUse(self, original, defaults)

    def _report(self, is_wanted: bool) -> None:
        calls = _CALLS[self.key]
        calls.is_reported = calls.is_reported or is_wanted

    def _swap_class(self, module: torch.nn.Module) -> str:
        """Give the module a class whose method asks the operator first; explain what prevents it."""
        assert self.module is not None
        if self.module.method in vars(module):
            return f"this module has a '{self.module.method}' of its own beside its class's"
        try:
            module.__class__ = self.class_over(type(module))
        except (TypeError, AttributeError) as error:
            return f"the class of this module cannot be extended: {error}"
        return ""

    def class_over(self, base: type) -> type:
        """Return the subclass of a module's class whose method asks the operator first."""
        if base not in self._classes:
            assert self.module is not None
            names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
            members = {self.module.method: _method(self, base), "__reduce_ex__": _reduce_used}
            self._classes[base] = type(base.__name__, (base,), {**names, **members, "_kernel_operator": self})
        return self._classes[base]


class FunctionUse:
    """A function computed by an operator where it can be, by its own code everywhere else."""

    def __init__(self, operator: Operator, original: Callable[..., Any], defaults: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, original)
        self._operator, self._original, self._defaults = operator, original, dict(defaults)

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        arguments = _given(self._operator.argument_names, self._defaults, inputs, keywords)
        if arguments is None:
            reason = _OTHER_CALL.format(names=_names_of(inputs, keywords))
        else:
            reason = self._operator.why_not(arguments)
        if not reason:
            return self._operator.call(*arguments)
        fell_back(self._operator.key, reason)
        return self._original(*inputs, **keywords)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


def _results_of(call: Callable[..., Any], n_kept: int) -> Callable[..., Any]:
    """Return the operator's call without what the backward alone needs."""

    def results(*arguments: Any) -> Any:
        found = call(*arguments)[:-n_kept]
        return found[0] if len(found) == 1 else found

    return results


def _method(operator: Operator, base: type) -> Callable[..., Any]:
    """Return the method of `Operator.class_over`: the operator inside its contract, the class's own code outside."""
    use = operator.module
    assert use is not None
    own = getattr(base, use.method)

    def computed(self: Any, *inputs: Any, **keywords: Any) -> Any:
        arguments = use.arguments(self, inputs, keywords)
        reason = use.why_not(self)
        if arguments is None:
            reason = _OTHER_CALL.format(names=_names_of(inputs, keywords))
        reason = reason or operator.why_not(arguments)
        if not reason:
            return operator.call(*arguments)
        fell_back(operator.key, reason)
        return own(self, *inputs, **keywords)

    return functools.wraps(own)(computed)


def _reduce_used(self: Any, protocol: Any) -> Any:
    """Pickle as the class below does, and use the operator again: the class here has no name of its own."""
    used = type(self)
    try:
        self.__class__ = used.__base__
        make, arguments, *state = self.__reduce_ex__(protocol)
    finally:
        self.__class__ = used
    return (_used_again, (used._kernel_operator, make, arguments), *state)


def _used_again(operator: Operator, make: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    module = make(*arguments)
    module.__class__ = operator.class_over(type(module))
    return module


def _operator_of(module_name: str) -> Operator:
    return importlib.import_module(module_name).OPERATOR  # type: ignore[no-any-return]


def _attribute(module: Any, path: str) -> Any:
    """Return ``module.norm.weight`` for ``norm.weight``; None where there is none."""
    for part in path.split("."):
        module = getattr(module, part, None)
    return module


def _given(
    names: Sequence[str], defaults: Mapping[str, Any], inputs: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:
    """Return the arguments of a call in the order of `names`, or None for a call with others."""
    values = dict(zip(names, inputs))
    if len(inputs) > len(names) or any(name in values or name not in names for name in keywords):
        return None
    values = {**defaults, **values, **keywords}
    return tuple([values[name] for name in names]) if len(values) == len(names) else None


def _names_of(inputs: Sequence[Any], keywords: Mapping[str, Any]) -> str:
    """Describe a call: ``2 by position, shift``."""
    return ", ".join([f"{len(inputs)} by position", *keywords])


# --- CUDA runtime: compile with NVRTC, keep the result on disk, launch through the driver -----------------

_logger = logging.getLogger(__name__)

CACHE_FORMAT = 1
NVRTC_OPTIONS = (
    *("--std=c++17", "-default-device", "-lineinfo", "-DINFINITY=__int_as_float(0x7f800000)"),
    *("-DHUGE_VALF=__int_as_float(0x7f800000)", "-DNAN=__int_as_float(0x7fffffff)"),
    *("-DFLT_MAX=3.402823466e+38F", "-DFLT_MIN=1.175494351e-38F"),
    *("-DFLT_EPSILON=1.192092896e-07F", "-DM_PI=3.14159265358979323846"),
    *("-DM_SQRT2=1.41421356237309504880", "-DM_SQRT1_2=0.70710678118654752440"),
    *("-DM_2_SQRTPI=1.12837916709551257390", "-DM_LOG2E=1.4426950408889634074"),
    *("-DM_LN2=0.69314718055994530942", "-DINT_MAX=0x7fffffff"),
)  # the constants are nvcc's own, which kernels use without an include
FIXED_WIDTH = ("int8_t", "int16_t", "int32_t", "int64_t", "intptr_t")
FIXED_WIDTH_HEADER = "--pre-include=cuda/std/cstdint"  # nvcc's own headers bring int64_t and the like, too
SHORT_TYPES = re.compile(r"\b(?:uint|ushort)\b")
SHORT_TYPES_HEADER = "short_types.h"  # and these, by way of the C library's
SHORT_TYPES_TEXT = "typedef unsigned short ushort; typedef unsigned int uint;\n"
# What code for sm_90a may use and for sm_90 may not, and what ptxas says of such an instruction.
FIRST_WITH_OWN = 90
ASKS_FOR_OWN = re.compile(r"\b__CUDA_ARCH_(?:FEAT_SM\d+_ALL|SPECIFIC__|FAMILY_SPECIFIC__)")
NEEDS_OWN = re.compile(r"not supported on \.target|cannot be compiled for architecture|requires \.target")
# More dynamic shared memory per block, or more blocks per cluster, must be asked for (programming guide).
PORTABLE_CLUSTER_BLOCKS = 8
MAX_GRID_X, MAX_GRID_YZ = 2**31 - 1, 2**16 - 1  # every compute capability from 3.0 on
# Values of enums in cuda.h.
FUNCTION_MAX_DYNAMIC_SHARED_BYTES = 8
FUNCTION_NON_PORTABLE_CLUSTER_ALLOWED = 14
LAUNCH_ATTRIBUTE_COOPERATIVE = 2
LAUNCH_ATTRIBUTE_CLUSTER = 4

NO_HEADERS: Mapping[str, str] = {}
POINTER = "pointer"
_C_TYPES: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    **dict.fromkeys(("char", "signed char", "int8_t"), ctypes.c_int8),
    **dict.fromkeys(("unsigned char", "uint8_t"), ctypes.c_uint8),
    **dict.fromkeys(("short", "int16_t"), ctypes.c_int16),
    **dict.fromkeys(("unsigned short", "uint16_t"), ctypes.c_uint16),
    **dict.fromkeys(("int", "int32_t"), ctypes.c_int32),
    **dict.fromkeys(("unsigned", "unsigned int", "uint32_t"), ctypes.c_uint32),
    **dict.fromkeys(("long", "long long", "int64_t", "ptrdiff_t"), ctypes.c_int64),
    **dict.fromkeys(("unsigned long", "unsigned long long", "uint64_t", "size_t"), ctypes.c_uint64),
}
_HALF_TYPES = {"__half": torch.float16, "half": torch.float16, "__nv_bfloat16": torch.bfloat16}


class CudaError(RuntimeError):
    """NVRTC or the CUDA driver is missing or refused. The message has the call and the error's own name."""


Compiled = tuple[bytes, dict[str, str]]
"""A cubin, and the symbol of each name expression in it."""


class KernelLibrary:
    """A `.cu` text whose kernels are compiled at first use, once per GPU architecture, and cached on disk.

    `names` are C++ name expressions, e.g. ``rms_norm_rows<256>``; `headers` are those of C and C++ that the
    text includes and NVRTC does not have, by name.
    """

    def __init__(
        self, text: str, file_name: str, names: Sequence[str], headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        self._text, self._file_name, self._names = text, file_name, tuple(sorted(set(names)))
        self._headers = headers
        self._functions: dict[tuple[int, str], ctypes.c_void_p] = {}
        self._lock = threading.Lock()

    def function(self, name: str, device_index: int) -> ctypes.c_void_p:
        """The kernel's handle on a GPU, which must be current. Raises CudaError with the compiler's log."""
        make_context_current(device_index)
        with self._lock:
            if (device_index, name) not in self._functions:
                names = self._names if name in self._names else (name,)
                architecture = architecture_of(device_index)
                code, symbols = compiled(self._text, self._file_name, names, architecture, self._headers)
                module = load_module(code)
                for each in names:
                    self._functions[device_index, each] = find_function(module, symbols[each])
            return self._functions[device_index, name]


class KernelLaunch:
    """One launch with everything fixed but the stream and the tensors. Not for two threads at once.

    `arguments` holds `POINTER` for a tensor, or a C++ type and its value. `attributes` may hold
    ``cooperative`` (1), ``cluster`` (blocks along x) and ``max_shared`` (bytes). Raises OverflowError for a
    value that its C++ type cannot hold, and for a grid larger than a GPU takes.
    """

    def __init__(
        self,
        function: ctypes.c_void_p,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        arguments: Sequence[str | tuple[str, float]],
        attributes: Mapping[str, int],
    ) -> None:
        if grid[0] > MAX_GRID_X or max(grid[1:]) > MAX_GRID_YZ:
            raise OverflowError(f"a grid of {tuple(grid)} blocks is larger than a GPU takes")
        values = [ctypes.c_void_p() if argument == POINTER else pack(*argument) for argument in arguments]
        self._pointers = [value for value in values if isinstance(value, ctypes.c_void_p)]
        self._values = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self._keep_alive = (values, _launch_attributes(attributes))
        listed = self._keep_alive[1]
        self._config = _LaunchConfig(*grid, *block, shared_bytes, None, listed, len(listed))
        self._reference = ctypes.byref(self._config)
        self._function = function
        self._is_empty = 0 in grid  # nothing to do, and the driver refuses it
        self._launch = driver().cuLaunchKernelEx
        _allow(function, shared_bytes, attributes)

    def __call__(self, stream: int, *pointers: int) -> None:
        """Launch on a stream handle, with the tensors' addresses in the order of the kernel's parameters."""
        if self._is_empty:
            return
        for slot, address in zip(self._pointers, pointers):
            slot.value = address
        self._config.stream = stream
        status = self._launch(self._reference, self._function, self._values, None)
        if status:
            _check(status, "cuLaunchKernelEx")


def on_device(index: int) -> contextlib.AbstractContextManager[Any]:
    """Makes a GPU current; costs nothing when it is."""
    return contextlib.nullcontext() if torch.cuda.current_device() == index else torch.cuda.device(index)


def current_stream(index: int) -> int:
    """The handle of PyTorch's current stream, without the Python object around it (Triton reads it so)."""
    return torch._C._cuda_getCurrentRawStream(index)


def architecture_of(device_index: int) -> str:
    """E.g. ``sm_90``."""
    major, minor = torch.cuda.get_device_capability(device_index)
    return f"sm_{major}{minor}"


def make_context_current(device_index: int) -> None:
    """Give this thread the context that PyTorch uses on a GPU: the driver's calls need one, and a new thread
    has none until something asks for it."""
    current = ctypes.c_int(-1)
    if driver().cuCtxGetDevice(ctypes.byref(current)) == 0 and current.value == device_index:
        return
    torch.cuda.init()
    context = ctypes.c_void_p()
    status = driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device_index)
    _check(status, "cuDevicePrimaryCtxRetain")
    _check(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent")


def load_module(code: bytes) -> ctypes.c_void_p:
    """A cubin or PTX text, loaded into the current context."""
    module = ctypes.c_void_p()
    _check(driver().cuModuleLoadData(ctypes.byref(module), code + b"\0"), "cuModuleLoadData")
    return module


def find_function(module: ctypes.c_void_p, symbol: str) -> ctypes.c_void_p:
    """A kernel of a module by its mangled name."""
    function = ctypes.c_void_p()
    status = driver().cuModuleGetFunction(ctypes.byref(function), module, symbol.encode())
    _check(status, f"cuModuleGetFunction({symbol})")
    return function


def compiled(
    text: str,
    file_name: str,
    names: Sequence[str],
    architecture: str,
    headers: Mapping[str, str] = NO_HEADERS,
) -> Compiled:
    """The machine code of a `.cu` text, from the cache or NVRTC. Raises CudaError with the compiler's log."""
    nvrtc_path, include = find_nvrtc()
    compiler = [nvrtc_path.name, nvrtc_path.resolve().name, nvrtc_path.stat().st_size, str(include)]
    given = [CACHE_FORMAT, text, dict(headers), file_name, list(names), architecture]
    key = json.dumps([*given, compiler, NVRTC_OPTIONS])
    entry = _cache_directory() / f"{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    cached = _read_cache(entry)
    if cached is not None:
        return cached
    program = _Program(nvrtc_path, text, file_name, headers)
    code, symbols = _compiled_for(architecture, program, names, include)
    _write_cache(entry, code, symbols)
    return code, symbols


def find_nvrtc() -> tuple[Path, Path]:
    """NVRTC and the directory of its headers: torch's wheels first, then $CUDA_HOME, then the system's."""
    for root in _toolkit_roots():
        for library in sorted(root.glob("lib*/libnvrtc.so.*"), key=lambda path: len(path.name)):
            for include in (root / "include", root.parent / "cuda_runtime" / "include"):
                if (include / "cuda_fp16.h").is_file():
                    return library, include
    raise CudaError("no NVRTC with its headers found: pip install nvidia-cuda-nvrtc nvidia-cuda-runtime")


def pack(cuda_type: str, value: float) -> Any:
    """A value as its C++ type holds it. Raises OverflowError when it cannot."""
    if cuda_type in _HALF_TYPES:
        bits = torch.tensor(value, dtype=_HALF_TYPES[cuda_type]).view(torch.int16)
        return ctypes.c_int16(int(bits.item()))
    c_type = _C_TYPES[cuda_type]
    packed = c_type(value if c_type in (ctypes.c_float, ctypes.c_double) else int(value))
    if isinstance(packed.value, int) and packed.value != value:
        raise OverflowError(f"{value} does not fit a kernel parameter of type {cuda_type}")
    return packed


def driver() -> ctypes.CDLL:
    """The CUDA driver. Raises CudaError where there is none."""
    global _driver
    if _driver is None:
        try:
            _driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"no CUDA driver: {error}") from error
    return _driver


_driver: ctypes.CDLL | None = None
_ALLOWING = threading.Lock()


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute of cuda.h: a 64-byte union, of which we set the first three words."""

    _fields_ = [("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = [
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("n_attributes", ctypes.c_uint),
    ]


def _launch_attributes(attributes: Mapping[str, int]) -> ctypes.Array[_LaunchAttribute]:
    listed = []
    if "cooperative" in attributes:
        listed.append(_LaunchAttribute(LAUNCH_ATTRIBUTE_COOPERATIVE, 0, (attributes["cooperative"],)))
    if "cluster" in attributes:
        listed.append(_LaunchAttribute(LAUNCH_ATTRIBUTE_CLUSTER, 0, (attributes["cluster"], 1, 1)))
    return (_LaunchAttribute * len(listed))(*listed)


def _allow(function: ctypes.c_void_p, shared_bytes: int, attributes: Mapping[str, int]) -> None:
    shared_bytes = max(shared_bytes, attributes.get("max_shared", 0))
    with _ALLOWING:
        if shared_bytes > 0 and shared_bytes > _allowed_shared_bytes(function):
            status = driver().cuFuncSetAttribute(function, FUNCTION_MAX_DYNAMIC_SHARED_BYTES, shared_bytes)
            _check(status, f"{shared_bytes} bytes of shared memory")
    if attributes.get("cluster", 1) > PORTABLE_CLUSTER_BLOCKS:
        status = driver().cuFuncSetAttribute(function, FUNCTION_NON_PORTABLE_CLUSTER_ALLOWED, 1)
        _check(status, f"a cluster of {attributes['cluster']} blocks")


def _allowed_shared_bytes(function: ctypes.c_void_p) -> int:
    """Return the limit of dynamic shared memory: what a function's own variables leave of 48 KiB, or what it was
    allowed before, which other launches of it may need."""
    n_bytes = ctypes.c_int()
    status = driver().cuFuncGetAttribute(ctypes.byref(n_bytes), FUNCTION_MAX_DYNAMIC_SHARED_BYTES, function)
    _check(status, "cuFuncGetAttribute")
    return n_bytes.value


def _check(status: int, call: str) -> None:
    if status == 0:
        return
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    driver().cuGetErrorName(status, ctypes.byref(name))
    driver().cuGetErrorString(status, ctypes.byref(text))
    raise CudaError(f"{call}: {(name.value or b'?').decode()} ({status}): {(text.value or b'?').decode()}")


def _compiled_for(architecture: str, program: _Program, names: Sequence[str], include: Path) -> Compiled:
    """For the architecture, or with the instructions that it alone has where the text needs them."""
    has_own = int(architecture[len("sm_") :]) >= FIRST_WITH_OWN
    if not (has_own and ASKS_FOR_OWN.search(program.text)):
        try:
            return program.compile(names, architecture, include)
        except CudaError as error:
            if not (has_own and NEEDS_OWN.search(str(error))):
                raise
    return program.compile(names, f"{architecture}a", include)


class _Program:
    """A text and the compiler for it."""

    def __init__(self, nvrtc_path: Path, text: str, file_name: str, headers: Mapping[str, str]) -> None:
        for builtins in nvrtc_path.parent.glob("libnvrtc-builtins.so.*"):
            # NVRTC looks for it by name, which fails outside the loader's path unless it is there already.
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self._nvrtc = ctypes.CDLL(str(nvrtc_path))
        self._nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        self._handle = ctypes.c_void_p()
        self._needs_integers = "stdint" not in text and any(name in text for name in FIXED_WIDTH)
        self._has_short_types = SHORT_TYPES.search(text) is not None
        self.text, self._file_name = text, file_name
        short = {SHORT_TYPES_HEADER: SHORT_TYPES_TEXT} if self._has_short_types else {}
        self._headers = {**headers, **short}

    def compile(self, names: Sequence[str], architecture: str, include: Path) -> Compiled:
        folders = [include, include / "cccl", *_cccl_folders()]
        options = [f"--gpu-architecture={architecture}", *(f"-I{folder}" for folder in folders), *NVRTC_OPTIONS]
        if self._needs_integers:
            options.append(FIXED_WIDTH_HEADER)
        if self._has_short_types:
            options.append(f"--pre-include={SHORT_TYPES_HEADER}")
        encoded = _c_strings(options)
        source, headers = (self.text.encode(), self._file_name.encode()), self._headers
        given = (len(headers), _c_strings(headers.values()), _c_strings(headers))
        self._call("CreateProgram", ctypes.byref(self._handle), *source, *given)
        for name in names:
            self._call("AddNameExpression", self._handle, name.encode())
        try:
            self._call("CompileProgram", self._handle, len(options), encoded)
        except CudaError as error:
            log = self._bytes("ProgramLog").rstrip(b"\0").decode(errors="replace")
            raise CudaError(f"{error}\n{log}") from error
        symbols = {name: self._symbol(name) for name in names}
        code = self._bytes("CUBIN")
        self._call("DestroyProgram", ctypes.byref(self._handle))
        return code, symbols

    def _symbol(self, name: str) -> str:
        symbol = ctypes.c_char_p()
        self._call("GetLoweredName", self._handle, name.encode(), ctypes.byref(symbol))
        return (symbol.value or b"").decode()

    def _bytes(self, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", self._handle, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"Get{what}", self._handle, buffer)
        return buffer.raw

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._nvrtc, f"nvrtc{name}")(*arguments)
        if status:
            raise CudaError(f"nvrtc{name}: {self._nvrtc.nvrtcGetErrorString(status).decode()}")


def _c_strings(texts: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    encoded = [text.encode() for text in texts]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def _toolkit_roots() -> Iterator[Path]:
    packages = [Path(torch.__file__).parent.parent, *(Path(entry) for entry in sys.path if entry)]
    for directory in dict.fromkeys(packages):
        yield from sorted(directory.glob("nvidia/cu[0-9]*"), reverse=True)
        yield from directory.glob("nvidia/cuda_nvrtc")
    yield from (Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name))
    yield from sorted(Path("/usr/local").glob("cuda*"))
    yield Path("/usr")


def _cccl_folders() -> list[Path]:
    """Headers of CCCL in any toolkit: `cooperative_groups.h` needs them, and PyTorch's wheels do not have them."""
    folders = [root / "include" / part for root in _toolkit_roots() for part in ("cccl", "")]
    return [folder for folder in folders if (folder / "nv" / "target").is_file()][:1]


def _cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernel_lsp" / "cubin"


def _read_cache(entry: Path) -> Compiled | None:
    """Return what an earlier process compiled; None for no file, and for a torn or foreign one."""
    try:
        header, _, code = entry.read_bytes().partition(b"\n")
        facts = json.loads(header)
        return (code, facts["symbols"]) if facts["sha256"] == hashlib.sha256(code).hexdigest() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_cache(entry: Path, code: bytes, symbols: Mapping[str, str]) -> None:
    """Best effort: a read-only home directory costs a compilation per process and nothing else."""
    facts = {"sha256": hashlib.sha256(code).hexdigest(), "symbols": dict(symbols)}
    temporary = entry.with_name(f"{entry.name}.{os.getpid()}.tmp")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(json.dumps(facts).encode() + b"\n" + code)
        os.replace(temporary, entry)
    except OSError as error:
        _logger.debug("the compiled kernel is not cached: %s", error)
        with contextlib.suppress(OSError):
            temporary.unlink()


# --- Launch plans ---------------------------------------------------------------------------------------

MAY_DIVIDE_BY_ZERO = re.compile(r"ceil_div|[/%] *[^/ \d]")
TYPED_NUMBER = re.compile(r"([a-z_][\w ]*)\((.*)\)")
LIBRARY_STEP = re.compile(r"(\w+)::(\w+)\((.*)\) -> \((.*)\)")


class Plan:
    """One operation as the launch plan of the `.cu` file states it. Expressions are Python's, names without a type in
    `op:` have that of the `forward`, whose arguments ``...`` stands for, and a list in `scratch:` has one type."""

    def __init__(self, text: str, forward: Plan | None = None) -> None:
        self.forward = forward
        self.order: list[str] = []
        self.inputs: dict[str, str] = {}
        self.numbers: dict[str, str] = {}
        self.where: list[str] = []
        self.steps: list[tuple[str, str, str]] = []
        self.kept: dict[str, str] = {}
        self.scratch: dict[str, str] = {}
        for line in re.sub(r"\n\s+", " ", text.strip()).splitlines():
            directive, _, body = line.partition(": ")
            self._add(directive, body)

    def _add(self, directive: str, body: str) -> None:
        if directive == "op":
            self._declare(body)
        elif directive == "where":
            self.where.append(body)
        elif directive in ("keeps", "scratch"):
            (self.kept if directive == "keeps" else self.scratch).update(_typed_alike(_entries(body)))
        else:
            step, _, condition = directive.partition("[")
            self.steps.append((step, condition[:-1], body))

    def _declare(self, body: str) -> None:
        takes, _, returns = body.rpartition(" -> ")
        self.name, _, takes = takes.partition("(")
        known = self.forward.types() if self.forward is not None else {}
        own = [each for each in _entries(takes[:-1]) if each != "..."]
        arguments = dict(_typed(each, known) for each in own)
        self.before = [*arguments]  # of a backward: what it takes before the forward's arguments
        if takes.endswith("...)"):
            assert self.forward is not None
            arguments.update({**self.forward.inputs, **self.forward.numbers})
            self.order = [*self.before, *self.forward.order]
        else:
            self.order = self.before
        self.inputs = {name: type_ for name, type_ in arguments.items() if type_.endswith("]")}
        self.numbers = {name: type_ for name, type_ in arguments.items() if not type_.endswith("]")}
        entries = [each.split(" = ") for each in _entries(returns[1:-1])]
        self.same = {each[0]: each[1] for each in entries if len(each) == 2}
        self.results = dict(_typed(each[0], known) for each in entries if len(each) == 1)

    def types(self) -> dict[str, str]:
        """Return the types of what a backward takes and returns, by name."""
        types = {**self.inputs, **self.results}
        renamed = {f"grad_{name.removesuffix('_')}": type_ for name, type_ in types.items()}  # as in `argument_of`
        gradients = {f"grad_{name}": type_ for name, type_ in types.items()}
        return {**self.inputs, **renamed, **gradients, **self.results, **self.kept}

    def argument_of(self, gradient: str) -> str:
        """Return the argument that a gradient belongs to; an underscore tells it from a name that the file has."""
        name = gradient[len("grad_") :]
        return name if name in self.order else f"{name}_"

    def given(self) -> list[int]:
        """Return what a backward is given of all that its forward returns, by place."""
        assert self.forward is not None
        returned = [*self.forward.results, *self.forward.kept]
        return [returned.index(name) for name in self.before if name in returned]

    def same_gradients(self) -> dict[str, str | int]:
        """Return the arguments whose gradient is another argument's, by name, or a result's, by its number."""
        held = {name: place for place, name in enumerate(self.before)}
        return {self.argument_of(name): held.get(of, self.argument_of(of)) for name, of in self.same.items()}

    @property
    def kernels(self) -> list[str]:
        """List the kernels that no shape chooses."""
        names = dict.fromkeys(body.partition("<<<")[0] for step, _, body in self.steps if step == "launch")
        return [name for name in names if "{" not in name]

    def schema(self) -> str:
        """Return the schema behind the name: ``(Tensor x, float eps) -> Tensor``."""
        types = {"int": "SymInt", "float": "float", "bool": "bool"}
        takes = ", ".join(f"{types.get(self.numbers.get(name, ''), 'Tensor')} {name}" for name in self.order)
        returned = ["Tensor"] * (len(self.results) + len(self.kept))
        return f"({takes}) -> {returned[0] if len(returned) == 1 else '(' + ', '.join(returned) + ')'}"

    # as Python

    def functions(self, file: str) -> tuple[Callable[..., Contract], Callable[..., Any]]:
        """Return the contract, and the steps, whose first argument is the `Run` that launches."""
        arguments = ", ".join(self.order)
        contract = [f"def contract({arguments}):", *_indented(self._contract())]
        steps = [f"def steps(run, {arguments}):", *_indented(self._steps())]
        source, place = "\n".join([*contract, *steps, ""]), f"{file}::{self.name}"
        linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
        attention = (sdpa_forward, sdpa_backward, sdpa_forward_kept, sdpa_backward_kept)
        known = {each.__name__: each for each in (sizes, holds, ceil_div, Contract, *attention)}
        names: dict[str, Any] = {"torch": torch, "math": math, **known}
        exec(compile(source, place, "exec"), names)  # text of this file's own plan
        return names["contract"], names["steps"]

    def _contract(self) -> list[str]:
        where = [*(self.forward.where if self.forward is not None and self.order != self.before else ()), *self.where]
        inputs = [f"{_label(item)}: ({item[0]}, {_shape(item[1])})" for item in self.inputs.items()]
        conditions = [f"{each!r}: {self._condition(each)}" for each in where]
        numbers = [f"{_label(item)}: {item[0]}" for item in self.numbers.items()]
        parts = [inputs, _shapes(self.results), conditions, numbers, _shapes(self.kept)]
        made = ", ".join("{" + ", ".join(part) + "}" for part in parts)
        return [*self._dims("sizes({name}, {rank})"), f"return Contract({made})"]

    def _condition(self, text: str) -> str:
        may_fail = MAY_DIVIDE_BY_ZERO.search(text) or not self.numbers.keys().isdisjoint(re.findall(r"\w+", text))
        return f"holds(lambda: {text})" if may_fail else text

    def _dims(self, shape: str) -> list[str]:
        """Assign each dim, from the first tensor and place at which it stands alone."""
        lines, known = [], {*self.numbers}
        for name, type_ in self.inputs.items():
            dims = _dims_of(type_)
            own = ["_" if not d.isidentifier() or d in known or d in dims[:i] else d for i, d in enumerate(dims)]
            known.update(own)
            if any(dim != "_" for dim in own):
                lines.append(f"{', '.join(own)}, = {shape.format(name=name, rank=len(own))}")
        return lines

    def _steps(self) -> list[str]:
        returned = {**self.results, **self.kept}
        tensors = {**self.inputs, **returned, **self.scratch}
        device, made = f"{next(iter(self.inputs))}.device", self._made()
        lines = self._dims("{name}.shape")
        for name, type_ in {**returned, **self.scratch}.items():
            if name not in made:
                dtype = DTYPES[type_.partition("[")[0]]
                lines.append(f"{name} = torch.empty({_shape(type_)}, dtype={dtype}, device={device})")
        for step, condition, body in self.steps:
            own = _STEPS[step](body, tensors)
            lines += [f"if {condition}:", *_indented(own)] if condition else own
        lines.append(f"return {', '.join(returned)}")
        has_library = any(step == "library" for step, _, _ in self.steps)
        return ['with torch.autocast("cuda", enabled=False):', *_indented(lines)] if has_library else lines

    def _made(self) -> set[str]:
        """Return the tensors that a library step allocates, before any other step has them."""
        made: set[str] = set()
        seen: set[str] = set()
        for step, condition, body in self.steps:
            if step == "library" and not condition:
                made |= set(_entries(body.rpartition(" -> ")[2][1:-1])) - seen
            seen |= set(re.findall(r"\w+", body))
        return made


def captured_with(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator for code that holds for the captured sizes alone: those that are numbers in the plan's `op:`
    line. Other sizes raise ValueError."""
    plan = Plan(text)
    places = [(plan.order.index(name), f"{name}: {type_}") for name, type_ in plan.inputs.items()]
    types = "; ".join(label for _, label in places)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def checked(*arguments: Any) -> Any:
            require(plan.name, types, *[arguments[place] for place, _ in places])
            return function(*arguments)

        return checked

    return decorate


def _entries(text: str) -> list[str]:
    """Split a list at the commas that are outside of brackets."""
    found, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            found.append(text[start:at].strip())
            start = at + 1
    return [each for each in (*found, text[start:].strip()) if each]


def _typed(entry: str, known: Mapping[str, str]) -> tuple[str, str]:
    name, _, type_ = entry.partition(": ")
    return name, type_ or known[name]


def _typed_alike(entries: Sequence[str]) -> dict[str, str]:
    """Return the types of ``a, b: f32[B]``: a name without a type has that of the next."""
    found, type_ = {}, ""
    for name, _, own in (entry.partition(": ") for entry in reversed(entries)):
        found[name] = type_ = own or type_
    return dict(reversed(found.items()))


def _dims_of(type_: str) -> list[str]:
    return _entries(type_.partition("[")[2][:-1])


def _shape(type_: str) -> str:
    return "(" + "".join(f"{dim}, " for dim in _dims_of(type_)) + ")"


def _shapes(types: Mapping[str, str]) -> list[str]:
    return [f"{_label(item)}: {_shape(item[1])}" for item in types.items()]


def _label(item: tuple[str, str]) -> str:
    return repr(": ".join(item))


def _fill(body: str, tensors: Mapping[str, str]) -> list[str]:
    tensor, value = body.split(" = ")
    return [f"{tensor}.fill_({value})"]


def _launch(body: str, tensors: Mapping[str, str]) -> list[str]:
    kernel, _, rest = body.partition("<<<")
    size, _, rest = rest.partition(">>>(")
    listed, _, attributes = rest.rpartition(")")
    grid, block, *shared = _entries(size.replace("dim3(", "("))
    given, types = [], []
    for argument in _entries(listed):
        typed = None if argument in tensors else TYPED_NUMBER.fullmatch(argument)
        given.append(typed[2] if typed else argument)
        types += [typed[1]] if typed else []
    name = "f" * ("{" in kernel) + repr(re.sub(r"{(.*?)}", r"{str(\1).lower()}", kernel))  # C++ writes `true`
    extra = [f"shared={each}" for each in shared] + attributes.split()
    parts = [name, grid, block, "(" + "".join(f"{each}, " for each in given) + ")", repr(", ".join(types)), *extra]
    return [f"run.launch({', '.join(parts)})"]


def _library(body: str, tensors: Mapping[str, str]) -> list[str]:
    match = LIBRARY_STEP.fullmatch(body)
    assert match, body
    function = f"torch.ops.aten.{match[2]}" if match[1] == "aten" else f"{match[1]}_{match[2]}"
    results = _entries(match[4])
    if len(results) == 1 and not match[2].endswith("_backward"):
        return [f"{results[0]} = {function}({match[3]}).contiguous()"]
    values = "(value.contiguous() for value in returned if value is not None)"
    return [f"returned = {function}({match[3]})", f"{', '.join(results)}, = {values}"]


_STEPS: dict[str, Callable[[str, Mapping[str, str]], list[str]]] = {
    "fill": _fill,
    "launch": _launch,
    "library": _library,
}


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


# --- Registration, launches, autograd ---------------------------------------------------------------------

NAMESPACE = "kernel_lsp"
VECTOR_BYTES = 32  # of the widest load on sm_100, and of wmma's: torch's own allocations are aligned to 512
MAX_BOUND = 1024  # kinds of inputs whose launches a thread keeps


class CannotLaunch(Exception):
    """A launch cannot be made on this GPU, or not with these numbers."""


class _PerThread(threading.local):
    """The launches that a thread has bound, by the kind of their inputs, or why there are none. A launch holds the
    addresses of its tensors, so threads cannot share it."""

    def __init__(self) -> None:
        self.by_inputs: dict[Any, Run | str] = {}


class Operation:
    """One operation of a launch plan: `contract` says what its kernels take, and `steps` allocates, launches by its
    first argument, a `Run`, and returns the results."""

    def __init__(self, plan: Plan, file: str) -> None:
        self.plan, self.name = plan, plan.name
        self.contract, self.steps = plan.functions(file)
        self.bound = _PerThread()


class Run:
    """The launches of an operation for one kind of inputs, bound when they are first made."""

    def __init__(self, library: Callable[[], KernelLibrary], device_index: int) -> None:
        self._library, self.device_index = library, device_index
        self._launches: list[KernelLaunch] = []
        self._next = self._stream = 0

    @property
    def n_launches(self) -> int:
        """Count the launches that are bound."""
        return len(self._launches)

    def start(self) -> None:
        """Begin a call, on PyTorch's current stream."""
        self._next, self._stream = 0, current_stream(self.device_index)

    def launch(
        self,
        kernel: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        arguments: Sequence[Any],
        numbers: str = "",
        *,
        shared: int = 0,
        **attributes: int,
    ) -> None:
        """Launch a kernel as ``<<<grid, block, shared>>>``. Arguments are tensors and numbers; `numbers` has the
        numbers' C++ types in order, ``"int, float"``. Attributes are ``cooperative``, ``cluster``, ``max_shared``."""
        if self._next == len(self._launches):
            types = iter(numbers.split(", "))
            typed = [value if isinstance(value, (Tensor, tuple)) else (next(types), value) for value in arguments]
            self._launches.append(self._bind(kernel, grid, block, typed, shared, attributes))
        launch = self._launches[self._next]
        self._next += 1
        launch(self._stream, *[value.data_ptr() for value in arguments if isinstance(value, Tensor)])

    def _bind(
        self,
        kernel: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        arguments: Sequence[Any],
        shared: int,
        attributes: Mapping[str, int],
    ) -> KernelLaunch:
        given = [POINTER if isinstance(value, Tensor) else value for value in arguments]
        try:
            function = self._library().function(kernel, self.device_index)
            return KernelLaunch(function, _three(grid), _three(block), shared, given, attributes)
        except (CudaError, OverflowError, OSError) as error:
            raise CannotLaunch(str(error)) from error


class CudaOperator(Operator):
    """A PyTorch operator whose kernels are in the `.cu` file beside `file`, and whose launch plans are texts, as `Plan`
    reads them. The results of `backward` are gradients of the arguments in their names; other gradients, and second
    derivatives, are the reference's under autograd. What it takes before the forward's arguments are the gradients of
    the results, and then what it is given of all that the forward returns.
    `headers` are those that the kernels include and NVRTC does not have."""

    def __init__(
        self,
        module_name: str,
        file: str,
        *,
        reference: Callable[..., Any],
        forward: str,
        backward: str = "",
        is_differentiable: bool = True,
        captured: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        module: ModuleUse | None = None,
    ) -> None:
        of_forward = Plan(forward)
        of_backward = Plan(backward, of_forward) if backward else None
        self.forward, self.backward = Operation(of_forward, file), None
        gradients, given = [], []
        self.same_gradients: dict[str, str | int] = {}
        plans = [of_forward]
        if of_backward is not None:
            plans.append(of_backward)
            self.backward = Operation(of_backward, file)
            gradients = [of_backward.argument_of(name) for name in of_backward.results]
            given, self.same_gradients = of_backward.given(), of_backward.same_gradients()
        self._integers = [place for place, name in enumerate(of_forward.order) if of_forward.numbers.get(name) == "int"]
        self._kernels = tuple(dict.fromkeys(kernel for plan in plans for kernel in plan.kernels))
        self._not_kept: set[Any] = set()  # kinds of inputs that a forward was asked for and could not launch with
        self._path, self._headers = Path(file).with_suffix(".cu"), headers
        self._library: KernelLibrary | None = None
        self._registry = torch.library.Library(NAMESPACE, "FRAGMENT")
        self.registered = _free_name(of_forward.name)
        call = self._register(self.forward, self.registered, self.forward_by_pytorch, self.fake_forward)
        super().__init__(
            *(of_forward.name, module_name, call, self.forward.contract, reference),
            backward_contract=self.backward.contract if self.backward is not None else None,
            gradients=gradients,
            captured=captured,
            module=module,
            given=given,
            n_kept=len(of_forward.kept),
        )
        if self.backward is not None:
            name = f"{self.registered}_backward"
            self._backward_call = self._register(self.backward, name, self.backward_by_pytorch, self.fake_backward)
        if is_differentiable:
            torch.library.register_autograd(
                f"{NAMESPACE}::{self.registered}", self._backpropagate, setup_context=self._save, lib=self._registry
            )

    def calls(self) -> dict[str, dict[str, int]]:
        """Count the calls so far: ``kernels`` by operation, ``fallback`` by reason. Compiled code counts a fallback
        once per compilation, and a replay of a CUDA graph counts nothing."""
        return {"kernels": dict(_CALLS[self.key].kernels), **super().calls()}

    def library(self) -> KernelLibrary:
        """Return the kernels, read when a GPU first needs them."""
        if self._library is None:
            text = self._path.read_text(encoding="utf-8")
            self._library = KernelLibrary(text, str(self._path), self._kernels, self._headers)
        return self._library

    def outside(self, arguments: Sequence[Any]) -> str:
        """Explain why the kernels cannot take the arguments; empty when they can. Answers of earlier calls are kept."""
        known = None
        is_cast = any(type(arguments[place]) is float for place in self._integers)  # 2.0 has the hash of 2
        if not torch.compiler.is_compiling() and not is_cast:
            with contextlib.suppress(TypeError):  # an argument that cannot be hashed is outside the contract
                known = self.forward.bound.by_inputs.get(_kind_of(arguments))
        if known is None:
            return super().outside(arguments)
        return known if isinstance(known, str) else ""

    def on_gpu(self, operation: Operation, *arguments: Any) -> Any:
        """Compute on a GPU: by the kernels, or by PyTorch where no launch can be made."""
        kind = _kind_of(arguments)
        run = operation.bound.by_inputs.get(kind)
        if run is None:
            run = self._prepare(operation, kind, arguments)
        if self._not_kept and operation is self.backward and self._kind_of_forward(arguments) in self._not_kept:
            run = "the forward was computed by PyTorch"
        if not isinstance(run, str):
            try:
                return self._launch(operation, run, arguments)
            except CannotLaunch as error:
                run = operation.bound.by_inputs[kind] = str(error)
                if operation is self.forward and self.given:
                    self._not_kept.add(kind)
        fell_back(self.key, run)
        by_pytorch = self.forward_by_pytorch if operation is self.forward else self.backward_by_pytorch
        return by_pytorch(*arguments)

    # registration

    def _register(self, operation: Operation, name: str, by_pytorch: Any, fake: Any) -> Any:
        def cuda(*arguments: Any) -> Any:
            return self.on_gpu(operation, *arguments)

        def without_gpu(*arguments: Any) -> Any:
            fell_back(self.key, outside(operation.contract(*arguments)) or "this device has no kernels")
            return by_pytorch(*arguments)

        self._registry.define(name + operation.plan.schema(), tags=(torch.Tag.pt2_compliant_tag,))
        self._registry.impl(name, cuda, "CUDA")
        self._registry.impl(name, without_gpu, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=self._registry)
        return getattr(getattr(torch.ops, NAMESPACE), name).default

    # launches

    def _prepare(self, operation: Operation, kind: Any, arguments: Sequence[Any]) -> Run | str:
        """Return the launches for these inputs, or why there are none; kept for the next inputs of the same kind."""
        reason = outside(operation.contract(*arguments))
        if operation is self.backward and self.given:
            reason = reason or outside(self.forward.contract(*arguments[-len(self.argument_names) :]))
        tensor = next(value for value in arguments if isinstance(value, Tensor))
        found = reason or Run(self.library, tensor.device.index)
        if len(operation.bound.by_inputs) >= MAX_BOUND:
            operation.bound.by_inputs.clear()
        operation.bound.by_inputs[kind] = found
        return found

    def _kind_of_forward(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Return the kind of the forward's arguments among those of the backward."""
        return _kind_of(arguments[-len(self.argument_names) :])

    def _launch(self, operation: Operation, run: Run, arguments: Sequence[Any]) -> Any:
        with on_device(run.device_index):
            run.start()
            ready = [_ready(value) if isinstance(value, Tensor) else value for value in arguments]
            results = operation.steps(run, *ready)
        count_kernels(self.key, operation.name)
        return results

    # autograd

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save what the gradients need of a forward: every argument, and what the backward is given of its results and
        of what it keeps; tensors leave None among the numbers."""
        outputs = (output,) if isinstance(output, Tensor) else output
        tensors = [value for value in inputs if isinstance(value, Tensor)]
        ctx.save_for_backward(*tensors, *[outputs[place] for place in self.given])
        ctx.numbers = tuple([None if isinstance(value, Tensor) else value for value in inputs])
        results = outputs[: len(outputs) - self.n_kept]
        ctx.floating = tuple([value.is_floating_point() for value in results])
        if self.n_kept:
            ctx.mark_non_differentiable(*outputs[len(results) :])
            ctx.set_materialize_grads(False)  # else every backward fills zeros for what is kept
            ctx.results = [(value.shape, value.dtype, value.device) for value in results]

    def _backpropagate(self, ctx: Any, *result_gradients: Any) -> tuple[Any, ...]:
        """Return the gradient for each argument, None for those that need none: by the backward's kernels, or by the
        reference where a second derivative is asked for, or a gradient that no kernel makes."""
        tensors = iter(ctx.saved_tensors)
        arguments = tuple([next(tensors) if value is None else value for value in ctx.numbers])
        if self.n_kept:
            result_gradients = tuple(map(_gradient_or_zeros, result_gradients, ctx.results))
        gradients = [g for g, is_floating in zip(result_gradients, ctx.floating) if is_floating]
        needs = zip(self.argument_names, ctx.needs_input_grad)
        made = {*self.gradients, *self.same_gradients}
        is_missing = any(is_needed and name not in made for name, is_needed in needs)
        if self.backward is None or is_missing or torch.is_grad_enabled():
            return _gradients(self.reference, arguments, ctx.needs_input_grad, gradients)
        found = self._backward_call(*gradients, *tensors, *arguments)
        found = (found,) if isinstance(found, Tensor) else found
        by_name = dict(zip(self.gradients, found))
        for name, held in self.same_gradients.items():
            by_name[name] = gradients[held] if isinstance(held, int) else by_name[held]
        return tuple([by_name.get(name) for name in self.argument_names])


def _gradient_or_zeros(gradient: Tensor | None, result: tuple[Any, ...]) -> Tensor:
    shape, dtype, device = result
    return torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient


def _kind_of(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return all that decides the launches for these arguments."""
    return tuple([(v.device, v.dtype, v.shape) if isinstance(v, Tensor) else v for v in arguments])


def _free_name(name: str) -> str:
    """Return a name that no operator of this process has: two files may hold operators of one name, and one file may
    be imported under two names."""
    number, taken = 1, getattr(torch.ops, NAMESPACE)
    found = name
    while hasattr(taken, found) or hasattr(taken, f"{found}_backward"):
        number += 1
        found = f"{name}_{number}"
    return found


def _three(size: int | Sequence[int]) -> tuple[int, ...]:
    given = (size,) if isinstance(size, int) else tuple(size)
    return given + (1,) * (3 - len(given))


def _ready(tensor: Tensor) -> Tensor:
    """Return the tensor as kernels read it: contiguous, and aligned for their widest load."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % VECTOR_BYTES else tensor


# --- Fused attention --------------------------------------------------------------------------------------

_FLASH, _EFFICIENT, _CUDNN = 1, 2, 3  # of SDPBackend
_EFFICIENT_ROWS = 32  # of which that backend's logarithms are a multiple


def sdpa_forward(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float) -> Tensor:
    """Return the attention of (B, H, M, D) queries over (B, H / groups, N, D) keys and values."""
    fused = torch.nn.functional.scaled_dot_product_attention
    return fused(query, key, value, is_causal=is_causal, scale=scale, enable_gqa=_is_grouped(query, key))


def sdpa_forward_kept(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the attention, and the logarithm of each query's sum of exponentials (B, H, M), which gradients need,
    by PyTorch's choice of backend. Where it chooses none of the fused ones, as on a CPU, by products."""
    aten, operands, chosen = torch.ops.aten, (query, key, value), _backend(query, key, value, is_causal, scale)
    if chosen == _CUDNN:
        forward = aten._scaled_dot_product_cudnn_attention.default
        out, log_sums, *_ = forward(*operands, None, True, 0.0, is_causal, scale=scale)
    elif chosen == _FLASH:
        forward = aten._scaled_dot_product_flash_attention.default
        out, log_sums, *_ = forward(*operands, 0.0, is_causal, scale=scale)
    elif chosen == _EFFICIENT:
        forward = aten._scaled_dot_product_efficient_attention.default
        out, log_sums, *_ = forward(*operands, None, True, 0.0, is_causal, scale=scale)
        log_sums = log_sums[..., : query.shape[-2]]
    else:
        out = sdpa_forward(query, key, value, is_causal, scale)
        log_sums = _scores(query, key, is_causal, scale).logsumexp(-1)
    return out, log_sums.reshape(query.shape[:-1])


def sdpa_backward_kept(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    grad: Tensor,
    out: Tensor,
    log_sums: Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values from what `sdpa_forward_kept` returned."""
    aten, operands, chosen = torch.ops.aten, (query, key, value), _backend(query, key, value, is_causal, scale)
    sizes = (None, None, query.shape[-2], key.shape[-2])
    seed = torch.zeros(2, dtype=torch.int64, device=query.device)  # of a dropout that there is not
    if chosen == _CUDNN:
        backward, kept = aten._scaled_dot_product_cudnn_attention_backward.default, log_sums.unsqueeze(-1)
        return backward(grad, *operands, out, kept, seed, seed, None, *sizes, 0.0, is_causal, scale=scale)
    if chosen == _FLASH:
        backward = aten._scaled_dot_product_flash_attention_backward.default
        return backward(grad, *operands, out, log_sums, *sizes, 0.0, is_causal, seed, seed, scale=scale)
    if chosen == _EFFICIENT:
        backward = aten._scaled_dot_product_efficient_attention_backward.default
        rest = -log_sums.shape[-1] % _EFFICIENT_ROWS
        kept = torch.nn.functional.pad(log_sums, (0, rest), value=float("inf"))
        wanted = [True, True, True, False]  # and no mask's
        return backward(grad, *operands, None, out, kept, seed[0], seed[1], 0.0, wanted, is_causal, scale=scale)[:3]
    return _by_products(query, key, value, grad, is_causal, scale)


def sdpa_backward(
    query: Tensor, key: Tensor, value: Tensor, grad: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, after another forward pass."""
    kept = sdpa_forward_kept(query, key, value, is_causal, scale)
    return sdpa_backward_kept(query, key, value, grad, *kept, is_causal, scale)


def _backend(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float) -> int:
    """Return PyTorch's choice; -1 on a CPU."""
    if not query.is_cuda:
        return -1
    is_grouped = _is_grouped(query, key)
    return torch._fused_sdp_choice(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=is_grouped)


def _is_grouped(query: Tensor, key: Tensor) -> bool:
    return query.shape[-3] != key.shape[-3]


def _scores(query: Tensor, key: Tensor, is_causal: bool, scale: float) -> Tensor:
    keys = key.float().repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query.float() @ keys.mT * scale
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    return scores


def _by_products(
    query: Tensor, key: Tensor, value: Tensor, grad: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    n_groups = query.shape[-3] // key.shape[-3]
    q, k, v, g = (tensor.float() for tensor in (query, key, value, grad))
    k, v = (tensor.repeat_interleave(n_groups, -3) for tensor in (k, v))
    weights = _scores(query, key, is_causal, scale).softmax(-1)
    grad_weights = g @ v.mT
    grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, keepdim=True)) * scale
    of_heads = (grad_scores.mT @ q, weights.mT @ g)
    grad_key, grad_value = (found.unflatten(-3, (-1, n_groups)).sum(-3) for found in of_heads)
    return (grad_scores @ k).to(query.dtype), grad_key.to(key.dtype), grad_value.to(value.dtype)


# --- Headers of C and C++ that NVRTC does not have ------------------------------------------------------

HEADERS = {
    "stdint.h": (
        "#pragma once\n"
        "#if __has_include(<cuda/std/cstdint>)\n"
        "#include <cuda/std/cstdint>\n"
        "#else\n"
        "typedef signed char int8_t;\n"
        "typedef signed short int16_t;\n"
        "typedef signed int int32_t;\n"
        "typedef signed long long int64_t;\n"
        "typedef unsigned char uint8_t;\n"
        "typedef unsigned short uint16_t;\n"
        "typedef unsigned int uint32_t;\n"
        "typedef unsigned long long uint64_t;\n"
        "typedef signed long long intptr_t;\n"
        "typedef unsigned long long uintptr_t;\n"
        "#define INT8_MAX 127\n"
        "#define INT16_MAX 32767\n"
        "#define INT32_MAX 2147483647\n"
        "#define INT32_MIN (-INT32_MAX - 1)\n"
        "#define INT64_MAX 9223372036854775807LL\n"
        "#define INT64_MIN (-INT64_MAX - 1)\n"
        "#define UINT8_MAX 255\n"
        "#define UINT16_MAX 65535\n"
        "#define UINT32_MAX 4294967295U\n"
        "#define UINT64_MAX 18446744073709551615ULL\n"
        "#endif\n"
    ),
    "cstdint": (
        "#pragma once\n"
        "#if __has_include(<cuda/std/cstdint>)\n"
        "#include <cuda/std/cstdint>\n"
        "#else\n"
        "typedef signed char int8_t;\n"
        "typedef signed short int16_t;\n"
        "typedef signed int int32_t;\n"
        "typedef signed long long int64_t;\n"
        "typedef unsigned char uint8_t;\n"
        "typedef unsigned short uint16_t;\n"
        "typedef unsigned int uint32_t;\n"
        "typedef unsigned long long uint64_t;\n"
        "typedef signed long long intptr_t;\n"
        "typedef unsigned long long uintptr_t;\n"
        "#define INT8_MAX 127\n"
        "#define INT16_MAX 32767\n"
        "#define INT32_MAX 2147483647\n"
        "#define INT32_MIN (-INT32_MAX - 1)\n"
        "#define INT64_MAX 9223372036854775807LL\n"
        "#define INT64_MIN (-INT64_MAX - 1)\n"
        "#define UINT8_MAX 255\n"
        "#define UINT16_MAX 65535\n"
        "#define UINT32_MAX 4294967295U\n"
        "#define UINT64_MAX 18446744073709551615ULL\n"
        "#endif\n"
        "typedef unsigned long size_t;\n"
        "namespace std {\n"
        "using ::size_t;\n"
        "}\n"
        "namespace std {\n"
        "using ::int8_t;\n"
        "using ::int16_t;\n"
        "using ::int32_t;\n"
        "using ::int64_t;\n"
        "using ::uint8_t;\n"
        "using ::uint16_t;\n"
        "using ::uint32_t;\n"
        "using ::uint64_t;\n"
        "using ::intptr_t;\n"
        "using ::uintptr_t;\n"
        "}\n"
    ),
    "float.h": (
        "#pragma once\n"
        "#define FLT_MAX 3.402823466e+38F\n"
        "#define FLT_MIN 1.175494351e-38F\n"
        "#define FLT_EPSILON 1.192092896e-07F\n"
        "#define FLT_DIG 6\n"
        "#define FLT_MANT_DIG 24\n"
        "#define DBL_MAX 1.7976931348623157e+308\n"
        "#define DBL_MIN 2.2250738585072014e-308\n"
        "#define DBL_EPSILON 2.2204460492503131e-016\n"
        "#define DBL_DIG 15\n"
        "#define DBL_MANT_DIG 53\n"
    ),
    "cfloat": (
        "#pragma once\n"
        "#define FLT_MAX 3.402823466e+38F\n"
        "#define FLT_MIN 1.175494351e-38F\n"
        "#define FLT_EPSILON 1.192092896e-07F\n"
        "#define FLT_DIG 6\n"
        "#define FLT_MANT_DIG 24\n"
        "#define DBL_MAX 1.7976931348623157e+308\n"
        "#define DBL_MIN 2.2250738585072014e-308\n"
        "#define DBL_EPSILON 2.2204460492503131e-016\n"
        "#define DBL_DIG 15\n"
        "#define DBL_MANT_DIG 53\n"
    ),
    "limits.h": (
        "#pragma once\n"
        "#if __has_include(<cuda/std/climits>)\n"
        "#include <cuda/std/climits>\n"
        "#else\n"
        "#define CHAR_BIT 8\n"
        "#define SCHAR_MAX 127\n"
        "#define SCHAR_MIN (-128)\n"
        "#define UCHAR_MAX 255\n"
        "#define SHRT_MAX 32767\n"
        "#define SHRT_MIN (-32768)\n"
        "#define USHRT_MAX 65535\n"
        "#define INT_MAX 0x7fffffff\n"
        "#define INT_MIN (-INT_MAX - 1)\n"
        "#define UINT_MAX 4294967295U\n"
        "#define LONG_MAX 9223372036854775807L\n"
        "#define LONG_MIN (-LONG_MAX - 1L)\n"
        "#define LLONG_MAX 9223372036854775807LL\n"
        "#define LLONG_MIN (-LLONG_MAX - 1LL)\n"
        "#define ULLONG_MAX 18446744073709551615ULL\n"
        "#endif\n"
    ),
    "climits": (
        "#pragma once\n"
        "#if __has_include(<cuda/std/climits>)\n"
        "#include <cuda/std/climits>\n"
        "#else\n"
        "#define CHAR_BIT 8\n"
        "#define SCHAR_MAX 127\n"
        "#define SCHAR_MIN (-128)\n"
        "#define UCHAR_MAX 255\n"
        "#define SHRT_MAX 32767\n"
        "#define SHRT_MIN (-32768)\n"
        "#define USHRT_MAX 65535\n"
        "#define INT_MAX 0x7fffffff\n"
        "#define INT_MIN (-INT_MAX - 1)\n"
        "#define UINT_MAX 4294967295U\n"
        "#define LONG_MAX 9223372036854775807L\n"
        "#define LONG_MIN (-LONG_MAX - 1L)\n"
        "#define LLONG_MAX 9223372036854775807LL\n"
        "#define LLONG_MIN (-LLONG_MAX - 1LL)\n"
        "#define ULLONG_MAX 18446744073709551615ULL\n"
        "#endif\n"
    ),
    "math.h": (
        "#pragma once\n"
        "#ifndef INFINITY\n"
        "#define INFINITY __int_as_float(0x7f800000)\n"
        "#define NAN __int_as_float(0x7fffffff)\n"
        "#define HUGE_VALF INFINITY\n"
        "#endif\n"
        "#define M_E 2.7182818284590452354\n"
        "#define M_LOG2E 1.4426950408889634074\n"
        "#define M_LN2 0.69314718055994530942\n"
        "#define M_PI 3.14159265358979323846\n"
        "#define M_PI_2 1.57079632679489661923\n"
        "#define M_2_SQRTPI 1.12837916709551257390\n"
        "#define M_SQRT2 1.41421356237309504880\n"
        "#define M_SQRT1_2 0.70710678118654752440\n"
    ),
    "cmath": (
        "#pragma once\n"
        "#ifndef INFINITY\n"
        "#define INFINITY __int_as_float(0x7f800000)\n"
        "#define NAN __int_as_float(0x7fffffff)\n"
        "#define HUGE_VALF INFINITY\n"
        "#endif\n"
        "#define M_E 2.7182818284590452354\n"
        "#define M_LOG2E 1.4426950408889634074\n"
        "#define M_LN2 0.69314718055994530942\n"
        "#define M_PI 3.14159265358979323846\n"
        "#define M_PI_2 1.57079632679489661923\n"
        "#define M_2_SQRTPI 1.12837916709551257390\n"
        "#define M_SQRT2 1.41421356237309504880\n"
        "#define M_SQRT1_2 0.70710678118654752440\n"
        "typedef unsigned long size_t;\n"
        "namespace std {\n"
        "using ::size_t;\n"
        "}\n"
        "namespace std {\n"
        "using ::abs;\n"
        "using ::acos;\n"
        "using ::acosh;\n"
        "using ::asin;\n"
        "using ::asinh;\n"
        "using ::atan;\n"
        "using ::atan2;\n"
        "using ::atanh;\n"
        "using ::cbrt;\n"
        "using ::ceil;\n"
        "using ::copysign;\n"
        "using ::cos;\n"
        "using ::cosh;\n"
        "using ::erf;\n"
        "using ::erfc;\n"
        "using ::exp;\n"
        "using ::exp2;\n"
        "using ::expm1;\n"
        "using ::fabs;\n"
        "using ::fdim;\n"
        "using ::floor;\n"
        "using ::fma;\n"
        "using ::fmax;\n"
        "using ::fmin;\n"
        "using ::fmod;\n"
        "using ::hypot;\n"
        "using ::isfinite;\n"
        "using ::isinf;\n"
        "using ::isnan;\n"
        "using ::lgamma;\n"
        "using ::log;\n"
        "using ::log10;\n"
        "using ::log1p;\n"
        "using ::log2;\n"
        "using ::nearbyint;\n"
        "using ::pow;\n"
        "using ::rint;\n"
        "using ::round;\n"
        "using ::sin;\n"
        "using ::sinh;\n"
        "using ::sqrt;\n"
        "using ::tan;\n"
        "using ::tanh;\n"
        "using ::tgamma;\n"
        "using ::trunc;\n"
        "}\n"
    ),
    "stddef.h": (
        "#pragma once\n"
        "typedef unsigned long size_t;\n"
        "typedef long ptrdiff_t;\n"
        "namespace std {\n"
        "using ::size_t;\n"
        "using ::ptrdiff_t;\n"
        "}\n"
    ),
    "cstddef": (
        "#pragma once\n"
        "typedef unsigned long size_t;\n"
        "typedef long ptrdiff_t;\n"
        "namespace std {\n"
        "using ::size_t;\n"
        "using ::ptrdiff_t;\n"
        "}\n"
    ),
    "assert.h": "#pragma once\n",
    "cassert": "#pragma once\n",
    "stdio.h": "#pragma once\n",
    "cstdio": "#pragma once\n",
    "string.h": "#pragma once\n",
    "cstring": "#pragma once\n",
    "stdlib.h": "#pragma once\n",
    "cstdlib": "#pragma once\n",
    "limits": "#pragma once\n#include <cuda/std/limits>\nnamespace std {\nusing ::cuda::std::numeric_limits;\n}\n",
    "type_traits": (
        "#pragma once\n"
        "#include <cuda/std/type_traits>\n"
        "namespace std {\n"
        "using ::cuda::std::is_same;\n"
        "using ::cuda::std::is_same_v;\n"
        "using ::cuda::std::enable_if;\n"
        "using ::cuda::std::enable_if_t;\n"
        "using ::cuda::std::conditional;\n"
        "using ::cuda::std::conditional_t;\n"
        "using ::cuda::std::integral_constant;\n"
        "using ::cuda::std::true_type;\n"
        "using ::cuda::std::false_type;\n"
        "using ::cuda::std::is_integral;\n"
        "using ::cuda::std::is_integral_v;\n"
        "using ::cuda::std::is_floating_point;\n"
        "using ::cuda::std::is_floating_point_v;\n"
        "using ::cuda::std::remove_cv_t;\n"
        "using ::cuda::std::remove_reference_t;\n"
        "using ::cuda::std::decay_t;\n"
        "using ::cuda::std::is_signed;\n"
        "using ::cuda::std::is_signed_v;\n"
        "using ::cuda::std::is_unsigned;\n"
        "using ::cuda::std::is_unsigned_v;\n"
        "using ::cuda::std::is_arithmetic;\n"
        "using ::cuda::std::is_arithmetic_v;\n"
        "using ::cuda::std::is_pointer;\n"
        "using ::cuda::std::is_pointer_v;\n"
        "using ::cuda::std::make_signed_t;\n"
        "using ::cuda::std::make_unsigned_t;\n"
        "using ::cuda::std::remove_const_t;\n"
        "using ::cuda::std::remove_cv;\n"
        "using ::cuda::std::remove_pointer_t;\n"
        "using ::cuda::std::remove_reference;\n"
        "using ::cuda::std::bool_constant;\n"
        "using ::cuda::std::common_type_t;\n"
        "using ::cuda::std::void_t;\n"
        "}\n"
    ),
    "utility": (
        "#pragma once\n"
        "#include <cuda/std/utility>\n"
        "namespace std {\n"
        "using ::cuda::std::move;\n"
        "using ::cuda::std::forward;\n"
        "using ::cuda::std::swap;\n"
        "using ::cuda::std::pair;\n"
        "using ::cuda::std::integer_sequence;\n"
        "using ::cuda::std::index_sequence;\n"
        "}\n"
    ),
    "array": "#pragma once\n#include <cuda/std/array>\nnamespace std {\nusing ::cuda::std::array;\n}\n",
    "algorithm": (
        "#pragma once\n"
        "namespace std {\n"
        "template <class T> constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }\n"
        "template <class T> constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }\n"
        "template <class T> constexpr const T& clamp(const T& v, const T& low, const T& high) {\n"
        "    return v < low ? low : high < v ? high : v;\n"
        "}\n"
        "}\n"
        "typedef unsigned long size_t;\n"
        "namespace std {\n"
        "using ::size_t;\n"
        "}\n"
    ),
    "cub/cub.cuh": (
        "#pragma once\n"
        "#if __has_include(<cub/block/block_adjacent_difference.cuh>)\n"
        "#include <cub/block/block_adjacent_difference.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/block/block_discontinuity.cuh>)\n"
        "#include <cub/block/block_discontinuity.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/block/block_exchange.cuh>)\n"
        "#include <cub/block/block_exchange.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/block/block_histogram.cuh>)\n"
        "#include <cub/block/block_histogram.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/block/block_load.cuh>)\n"
        "#include <cub/block/block_load.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/block/block_merge_sort.cuh>)\n"
        "#include <cub/block/block_merge_sort.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/block/block_radix_rank.cuh>)\n"
        "#include <cub/block/block_radix_rank.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/block/block_radix_sort.cuh>)\n"
        "#include <cub/block/block_radix_sort.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/block/block_reduce.cuh>)\n"
        "#include <cub/block/block_reduce.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/block/block_run_length_decode.cuh>)\n"
        "#include <cub/block/block_run_length_decode.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/block/block_scan.cuh>)\n"
        "#include <cub/block/block_scan.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/block/block_shuffle.cuh>)\n"
        "#include <cub/block/block_shuffle.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/block/block_store.cuh>)\n"
        "#include <cub/block/block_store.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/warp/warp_exchange.cuh>)\n"
        "#include <cub/warp/warp_exchange.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/warp/warp_load.cuh>)\n"
        "#include <cub/warp/warp_load.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/warp/warp_merge_sort.cuh>)\n"
        "#include <cub/warp/warp_merge_sort.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/warp/warp_reduce.cuh>)\n"
        "#include <cub/warp/warp_reduce.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/warp/warp_scan.cuh>)\n"
        "#include <cub/warp/warp_scan.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/warp/warp_store.cuh>)\n"
        "#include <cub/warp/warp_store.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/thread/thread_load.cuh>)\n"
        "#include <cub/thread/thread_load.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/thread/thread_operators.cuh>)\n"
        "#include <cub/thread/thread_operators.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/thread/thread_reduce.cuh>)\n"
        "#include <cub/thread/thread_reduce.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/thread/thread_scan.cuh>)\n"
        "#include <cub/thread/thread_scan.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/thread/thread_search.cuh>)\n"
        "#include <cub/thread/thread_search.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/thread/thread_sort.cuh>)\n"
        "#include <cub/thread/thread_sort.cuh>\n"
        "#endif\n"
        "#if __has_include(<cub/thread/thread_store.cuh>)\n"
        "#include <cub/thread/thread_store.cuh>\n"
        "#endif\n"
    ),
    "tuple": (
        "#pragma once\n"
        "#include <cuda/std/tuple>\n"
        "namespace std {\n"
        "using ::cuda::std::tuple;\n"
        "using ::cuda::std::get;\n"
        "using ::cuda::std::make_tuple;\n"
        "}\n"
    ),
}
