# Written by kernel-lsp (operator 1): kernel 409ee72d632bf3c1, operator 74430f1316341df5.
"""`rms_norm` as a CUDA operator.

Made by kernel-lsp from tests/export/rms_norm.cu. The kernels and their launch plan are in rms_norm.cu beside
this file. They are compiled at first use, by the NVRTC that comes with PyTorch, and cached.

Verified: by benchmarks/gpu_operator.py against an fp64 reference, on the GPUs that its results name.

The kernels take these inputs, on one CUDA device; PyTorch computes everything else:

    x: f32[B, D]
    weight: f32[D]
    D % 4 == 0

Use it so:

    from rms_norm import rms_norm
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["rms_norm", "use_rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-06) -> Tensor:
    """rms_norm.cu: by CUDA kernels where they can, by PyTorch where not.

    Args:
        x: f32[B, D]
        weight: f32[D]
        eps: float, verified at 1e-06

    Returns:
        out: f32[B, D]
    """
    reason = _rms_norm_outside(x, weight, eps)
    if reason:
        _say_once("rms_norm", reason)
        return rms_norm_reference(x, weight, eps)
    return torch.ops.kernel_lsp.rms_norm(x, weight, eps)


def use_rms_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, with the kernels of this file where they can be used.

    Everywhere else, and for arguments that were not captured, `original` itself runs.
    """

    def computed(*inputs: Any, **keywords: Any) -> Any:
        try:
            arguments = _rms_norm_given(*inputs, **keywords)
        except TypeError:
            return original(*inputs, **keywords)
        reason = _rms_norm_outside(*arguments)
        if not reason:
            return torch.ops.kernel_lsp.rms_norm(*arguments)
        _say_once("rms_norm", reason)
        return original(*inputs, **keywords)

    return computed


def _rms_norm_given(x: Any, weight: Any, eps: Any = 1e-06) -> tuple[Any, ...]:
    """The arguments of a call, in the operator's order. Raises TypeError for other ones."""
    return (x, weight, eps)


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The PyTorch code that the kernels replace, as it was captured."""
    if eps != 1e-06:
        raise ValueError("rms_norm was captured with eps=1e-06; capture it again")
    mean_square = x.pow(2).mean(-1, keepdim=True)
    return x * torch.rsqrt(mean_square + 1e-06) * weight


def _rms_norm_mismatch(x: Tensor, weight: Tensor, eps: float) -> str:
    """Why dtypes or shapes are not those of the plan; empty when they are."""
    if not isinstance(eps, _NUMBERS):
        return "eps is not a number"
    if not _is_tensor(x, torch.float32, 2):
        return "x is not a non-empty f32[B, D]"
    if not _is_tensor(weight, torch.float32, 1):
        return "weight is not a non-empty f32[D]"
    D = x.shape[1]
    if weight.shape != (D,):
        return "weight is not f32[D]"
    return ""


def _rms_norm_outside(x: Tensor, weight: Tensor, eps: float) -> str:
    """Why the kernels cannot take these inputs; empty when they can."""
    reason = _rms_norm_mismatch(x, weight, eps)
    reason = reason or _not_on_one_gpu(x, weight)
    if reason:
        return reason
    B, D = x.shape
    if D % 4 != 0:
        return "D % 4 == 0 does not hold"
    if B * D > 2130706432:
        return "B * D <= 2130706432 does not hold"
    return ""


def _rms_norm_fake(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Results without data, for tracing and `torch.compile`."""
    if _rms_norm_mismatch(x, weight, eps):
        results = rms_norm_reference(x, weight, eps)
        return _empty_like(results)
    B, D = x.shape
    return torch.empty((B, D), dtype=torch.float32, device=x.device)


def _rms_norm_bind(x: Tensor, weight: Tensor, eps: float) -> tuple[Any, ...]:
    """The launches for these shapes and numbers."""
    device_index = x.device.index
    B, D = x.shape
    # launch: rms_norm_rows<256><<<B, 256>>>(x, weight, out, D, eps)
    launch_1 = KernelLaunch(
        _kernels().function("rms_norm_rows<256>", device_index),
        grid=(B, 1, 1),
        block=(256, 1, 1),
        shared_bytes=0,
        arguments=(POINTER, POINTER, POINTER, ("int", D), ("float", eps)),
        attributes={},
    )
    return (launch_1,)


def _rms_norm_cuda(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    inputs_key = (_rms_norm_bind, x.device, x.dtype, x.shape, weight.device, weight.dtype, weight.shape, eps)
    launches = _BOUND.by_inputs.get(inputs_key)
    if launches is None:
        launches = _bound("rms_norm", inputs_key, _rms_norm_outside, _rms_norm_bind, x, weight, eps)
    if isinstance(launches, str):
        return _rms_norm_by_pytorch(x, weight, eps)
    with on_device(x.device.index):
        x = _ready(x)
        weight = _ready(weight)
        B, D = x.shape
        out = torch.empty((B, D), dtype=torch.float32, device=x.device)
        stream = current_stream(x.device.index)
        (launch_1,) = launches
        launch_1(stream, x.data_ptr(), weight.data_ptr(), out.data_ptr())
        return out


def _rms_norm_by_pytorch(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The results by PyTorch, in tensors of their own as the operator must return them."""
    inputs = (x, weight)
    with torch.autocast(x.device.type, enabled=False):
        results = rms_norm_reference(x, weight, eps)
    return _own((results,), inputs)[0]


def _rms_norm_backward_mismatch(grad_out: Tensor, x: Tensor, weight: Tensor, eps: float) -> str:
    """Why dtypes or shapes are not those of the plan; empty when they are."""
    if not isinstance(eps, _NUMBERS):
        return "eps is not a number"
    if not _is_tensor(grad_out, torch.float32, 2):
        return "grad_out is not a non-empty f32[B, D]"
    if not _is_tensor(x, torch.float32, 2):
        return "x is not a non-empty f32[B, D]"
    if not _is_tensor(weight, torch.float32, 1):
        return "weight is not a non-empty f32[D]"
    B, D = grad_out.shape
    if x.shape != (B, D):
        return "x is not f32[B, D]"
    if weight.shape != (D,):
        return "weight is not f32[D]"
    return ""


def _rms_norm_backward_outside(grad_out: Tensor, x: Tensor, weight: Tensor, eps: float) -> str:
    """Why the kernels cannot take these inputs; empty when they can."""
    reason = _rms_norm_backward_mismatch(grad_out, x, weight, eps)
    reason = reason or _not_on_one_gpu(grad_out, x, weight)
    if reason:
        return reason
    B, D = grad_out.shape
    if D % 4 != 0:
        return "D % 4 == 0 does not hold"
    if B * D > 2130706432:
        return "B * D <= 2130706432 does not hold"
    if min(B, 264) * D > 2130706432:
        return "min(B, 264) * D <= 2130706432 does not hold"
    return ""


def _rms_norm_backward_fake(grad_out: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Results without data, for tracing and `torch.compile`."""
    if _rms_norm_backward_mismatch(grad_out, x, weight, eps):
        return _empty_like(x), _empty_like(weight)
    B, D = grad_out.shape
    return (
        torch.empty((B, D), dtype=torch.float32, device=grad_out.device),
        torch.empty((D,), dtype=torch.float32, device=grad_out.device),
    )


def _rms_norm_backward_bind(grad_out: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Any, ...]:
    """The launches for these shapes and numbers."""
    device_index = grad_out.device.index
    B, D = grad_out.shape
    # launch: rms_norm_backward_rows<256><<<min(B, 264), 256>>>(grad_out, x, weight, grad_x, partial, B, D,
    #     eps)
    launch_1 = KernelLaunch(
        _kernels().function("rms_norm_backward_rows<256>", device_index),
        grid=(min(B, 264), 1, 1),
        block=(256, 1, 1),
        shared_bytes=0,
        arguments=(POINTER, POINTER, POINTER, POINTER, POINTER, ("int", B), ("int", D), ("float", eps)),
        attributes={},
    )
    # launch: sum_columns<<<ceil_div(D, 128), 128>>>(partial, grad_weight, min(B, 264), D)
    launch_2 = KernelLaunch(
        _kernels().function("sum_columns", device_index),
        grid=(-(-D // 128), 1, 1),
        block=(128, 1, 1),
        shared_bytes=0,
        arguments=(POINTER, POINTER, ("int", min(B, 264)), ("int", D)),
        attributes={},
    )
    return (launch_1, launch_2)


def _rms_norm_backward_cuda(grad_out: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    inputs_key = (
        _rms_norm_backward_bind,
        grad_out.device,
        grad_out.dtype,
        grad_out.shape,
        x.device,
        x.dtype,
        x.shape,
        weight.device,
        weight.dtype,
        weight.shape,
        eps,
    )
    launches = _BOUND.by_inputs.get(inputs_key)
    if launches is None:
        launches = _bound(
            "rms_norm_backward",
            inputs_key,
            _rms_norm_backward_outside,
            _rms_norm_backward_bind,
            grad_out,
            x,
            weight,
            eps,
        )
    if isinstance(launches, str):
        return _rms_norm_backward_by_pytorch(grad_out, x, weight, eps)
    with on_device(grad_out.device.index):
        grad_out = _ready(grad_out)
        x = _ready(x)
        weight = _ready(weight)
        B, D = grad_out.shape
        grad_x = torch.empty((B, D), dtype=torch.float32, device=grad_out.device)
        grad_weight = torch.empty((D,), dtype=torch.float32, device=grad_out.device)
        partial = torch.empty((min(B, 264), D), dtype=torch.float32, device=grad_out.device)
        stream = current_stream(grad_out.device.index)
        launch_1, launch_2 = launches
        launch_1(
            stream,
            grad_out.data_ptr(),
            x.data_ptr(),
            weight.data_ptr(),
            grad_x.data_ptr(),
            partial.data_ptr(),
        )
        launch_2(stream, partial.data_ptr(), grad_weight.data_ptr())
        return grad_x, grad_weight


def _rms_norm_backward_by_pytorch(
    grad_out: Tensor, x: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The gradients by PyTorch: the reference again, under autograd."""
    arguments = (x, weight, eps)
    needed = (True, True, False)
    with _autograd_in_operator():
        found = _gradients(rms_norm_reference, arguments, needed, (grad_out,))
    results = (found[0], found[1])
    inputs = (grad_out, x, weight)
    owned = _own(results, inputs)
    return owned


def _rms_norm_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """What the gradients need of a forward."""
    x, weight, eps = inputs
    ctx.save_for_backward(x, weight)
    ctx.numbers = (eps,)


def _rms_norm_gradients(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient for each argument; None for those that need none."""
    x, weight = ctx.saved_tensors
    (eps,) = ctx.numbers
    if torch.is_grad_enabled():
        # A second derivative is asked for.
        arguments = (x, weight, eps)
        return _gradients(rms_norm_reference, arguments, ctx.needs_input_grad, (grad_out,))
    found = torch.ops.kernel_lsp.rms_norm_backward(grad_out, x, weight, eps)
    return found[0], found[1], None


@functools.lru_cache(maxsize=1)
def _kernels() -> KernelLibrary:
    """The kernels of rms_norm.cu, read when a GPU first needs them."""
    names = ("rms_norm_rows<256>", "rms_norm_backward_rows<256>", "sum_columns")
    path = Path(__file__).with_name("rms_norm.cu")
    return KernelLibrary(path.read_text(encoding="utf-8"), str(path), names)


_LIBRARY = torch.library.Library("kernel_lsp", "FRAGMENT")
_LIBRARY.define("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_LIBRARY.impl("rms_norm", _rms_norm_cuda, "CUDA")
_LIBRARY.impl("rms_norm", _rms_norm_by_pytorch, "CompositeExplicitAutograd")
torch.library.register_fake("kernel_lsp::rms_norm", _rms_norm_fake, lib=_LIBRARY)
_LIBRARY.define(
    "rms_norm_backward(Tensor grad_out, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.impl("rms_norm_backward", _rms_norm_backward_cuda, "CUDA")
_LIBRARY.impl("rms_norm_backward", _rms_norm_backward_by_pytorch, "CompositeExplicitAutograd")
torch.library.register_fake("kernel_lsp::rms_norm_backward", _rms_norm_backward_fake, lib=_LIBRARY)
torch.library.register_autograd(
    "kernel_lsp::rms_norm", _rms_norm_gradients, setup_context=_rms_norm_setup, lib=_LIBRARY
)


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
    """Of dynamic shared memory: what a function's own variables leave of 48 KiB, or what it was allowed
    before, which other launches of it may need."""
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
        options = [f"--gpu-architecture={architecture}", f"-I{include}", f"-I{include}/cccl", *NVRTC_OPTIONS]
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


def _cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernel_lsp" / "cubin"


def _read_cache(entry: Path) -> Compiled | None:
    """What an earlier process compiled; None when there is nothing, or a torn or foreign file."""
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
