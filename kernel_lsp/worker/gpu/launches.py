"""The program that profilers and sanitizers run: load one candidate, run the steps of one bound operation, end.

    PYTHON kernel_lsp/worker/__main__.py profile_launches REQUEST.json

The request is ``{"device", "codes", "symbols", "operation", "inputs"}``: `codes` are files of PTX or machine code,
`operation` the JSON of `kernel_lsp.core.plan.BoundOperation`, `inputs` the entries of `files`. Every tensor is an
allocation of its own, of exactly its size, and only inputs are written before the kernels run. So tools detect accesses
past the end and uninitialised reads. Only our own launches and fills run; the results of a library step are random
(their values are not examined). Profilers that wait for ``cuProfilerStart`` see only the steps.
"""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..files import place_of, read_tensor, torch_dtype
from ..shipped.cuda_runtime import POINTER, KernelLaunch, _check, driver
from .run import function_of

JIT_GENERATE_LINE_INFO = 13
"""The CUjit_option of cuda.h that keeps PTX's `.loc` for the tools that name lines."""
LIBRARY_SEED = 20


def main(arguments: Sequence[str]) -> int:
    """Run the request of the file that `arguments` names; returns the exit status."""
    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    _open_device(int(request["device"]))
    modules = [load_with_lines(Path(place_of(code)).read_bytes()) for code in request["codes"]]
    run = _Launches(modules, request["symbols"], request["operation"], request["inputs"])
    _check(driver().cuProfilerStart(), "cuProfilerStart")
    run()
    _check(driver().cuCtxSynchronize(), "cuCtxSynchronize")
    _check(driver().cuProfilerStop(), "cuProfilerStop")
    run.free()
    return 0


def load_with_lines(code: bytes) -> ctypes.c_void_p:
    """Load PTX or machine code into the current context; PTX is assembled with its line information."""
    module = ctypes.c_void_p()
    options = (ctypes.c_int * 1)(JIT_GENERATE_LINE_INFO)
    values = (ctypes.c_void_p * 1)(1)
    status = driver().cuModuleLoadDataEx(ctypes.byref(module), code + b"\0", 1, options, values)
    _check(status, "cuModuleLoadDataEx")
    return module


class _Launches:
    """The operation's tensors on the device, and its steps."""

    def __init__(
        self,
        modules: Sequence[ctypes.c_void_p],
        symbols: dict[str, str],
        operation: dict[str, Any],
        inputs: list[dict[str, Any]],
    ) -> None:
        entries = {entry["name"]: entry for entry in inputs}
        self._tensors = {tensor["name"]: tensor for tensor in operation["tensors"]}
        self._addresses = {name: _allocate(tensor) for name, tensor in self._tensors.items()}
        for name, entry in entries.items():
            if name in self._addresses:
                self._copy(name, read_tensor(entry))
        self._steps = [self._step(step, modules, symbols) for step in operation["steps"]]

    def __call__(self) -> None:
        for step in self._steps:
            step()

    def free(self) -> None:
        """Free the memory: a leak would be a finding."""
        for address in self._addresses.values():
            if address:
                _check(driver().cuMemFree_v2(ctypes.c_uint64(address)), "cuMemFree")

    def _step(self, step: dict[str, Any], modules: Sequence[ctypes.c_void_p], symbols: dict[str, str]) -> Any:
        if step["kind"] == "fill":
            shape = self._tensors[step["tensor"]]["shape"]
            value = torch.full(shape, step["value"], dtype=self._dtype(step["tensor"]))
            return lambda: self._copy(step["tensor"], value)
        if step["kind"] == "library":
            return lambda: self._stand_in(step["results"])
        return self._launch(step, modules, symbols)

    def _launch(self, step: dict[str, Any], modules: Sequence[ctypes.c_void_p], symbols: dict[str, str]) -> Any:
        arguments = step["arguments"]
        packed = [POINTER if a["kind"] == "tensor" else (a["cuda_type"], a["value"]) for a in arguments]
        addresses = [self._addresses[a["tensor"]] for a in arguments if a["kind"] == "tensor"]
        function = function_of(modules, symbols.get(step["kernel"], step["kernel"]))
        launch = KernelLaunch(function, step["grid"], step["block"], step["shared_bytes"], packed, step["attributes"])
        return lambda: launch(0, *addresses)

    def _stand_in(self, results: list[str]) -> None:
        generator = torch.Generator().manual_seed(LIBRARY_SEED)
        for name in results:
            values = torch.randn(self._tensors[name]["shape"], generator=generator)
            self._copy(name, values.to(self._dtype(name)))

    def _copy(self, name: str, values: torch.Tensor) -> None:
        n_bytes = values.nbytes
        if n_bytes:
            source = ctypes.c_void_p(values.contiguous().data_ptr())
            status = driver().cuMemcpyHtoD_v2(ctypes.c_uint64(self._addresses[name]), source, ctypes.c_size_t(n_bytes))
            _check(status, "cuMemcpyHtoD")

    def _dtype(self, name: str) -> torch.dtype:
        return torch_dtype(self._tensors[name]["dtype"])


def _open_device(index: int) -> None:
    """Make the device's primary context current. PyTorch's own start-up on the device is skipped: it would be slow
    under a tool, and recorded by it."""
    _check(driver().cuInit(0), "cuInit")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _check(driver().cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
    _check(driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    _check(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent")


def _allocate(tensor: dict[str, Any]) -> int:
    """Return the address of exactly the tensor's bytes; 0 for an empty one."""
    n_bytes = torch_dtype(tensor["dtype"]).itemsize * math.prod(tensor["shape"])
    if not n_bytes:
        return 0
    address = ctypes.c_uint64()
    _check(driver().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(n_bytes)), f"cuMemAlloc({n_bytes})")
    return int(address.value)
