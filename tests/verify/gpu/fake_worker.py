"""A worker whose GPU is made of Python: the real program, the real protocol and process, a driver that only tests have.

Kernels are Python functions found by the names that candidates launch. Tensors live in host memory. Faults are real
where a process can have them (a loop without end, a death by a signal), and as the driver tells them otherwise: after
an illegal address every later call fails, until the process is replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

WORKER = Path(sys.argv[1]).parent if sys.argv[1:] else Path(__file__).resolve().parents[3] / "kernel_lsp" / "worker"
"""The checkout's, or that of the program named on the command line."""
PACKAGE = "_kernel_lsp_worker"
CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_ASSERT = 700, 710
POINTER, INT = ctypes.c_void_p, ctypes.c_int
NAME = "KERNEL_LSP_TEST_GPU"
"""Variable with the name of the GPU."""
EVENTS = "KERNEL_LSP_TEST_EVENTS"
"""Variable with a file of recorded events of the torch profiler, which it then gives."""
PARAMETERS = {"canary_blocks": (POINTER, POINTER)}
"""Signatures of kernels that take something else than (x, out, n)."""


class Device:
    """State of the context, and what kernels do."""

    def __init__(self, *, sick: bool = False) -> None:
        self.sticky = 0
        self.is_sick = sick
        self.is_running = False
        self.n_launches = 0
        self.bytes_of_others = 1 << 30

    def launch(self, name: str, arguments: list[int]) -> int:
        """The driver's status."""
        if self.sticky:
            return self.sticky
        self.n_launches += 1
        if name.startswith("canary_blocks"):
            x, out = (_ints(address, 64 * 256) for address in arguments)
            out.copy_((3 * x.view(-1, 256).flip(1) + (2 if self.is_sick else 1)).view(-1))
            return 0
        x, out = (_floats(address, arguments[2]) for address in arguments[:2])
        n_written = len(out) // 2 if "half" in name else len(out)
        out[:n_written] = 2 * x[:n_written] + 1
        return self._misbehave(name, arguments)

    def _misbehave(self, name: str, arguments: list[int]) -> int:
        """By the kernel's name: what it does beside its work, for inputs as large as the captured ones."""
        if arguments[2] < FAULT_ELEMENTS:
            return 0
        if "illegal" in name:
            self.sticky = CUDA_ERROR_ILLEGAL_ADDRESS
        elif "assert" in name:
            self.sticky = CUDA_ERROR_ASSERT
        elif "loop" in name:
            time.sleep(3600)
        elif "never_ends" in name:
            self.is_running = True
        elif "killed" in name:
            os.kill(os.getpid(), signal.SIGKILL)
        elif "memory" in name:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 200 TiB.")
        elif "crowded" in name:
            self.bytes_of_others = 138 << 30
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 128 MiB.")
        elif "wrong_last" in name:
            _floats(arguments[1] + 4 * (arguments[2] - 1), 1).add_(1)
        elif "wrong" in name:
            _floats(arguments[1], 1).add_(1)
        elif "overrun" in name:
            _floats(arguments[1] + 4 * arguments[2], 1).zero_()
        elif "input" in name:
            _floats(arguments[0], 1).add_(1)
        elif "varying" in name:
            _floats(arguments[1], 1).mul_(1 + 2.5e-7 * (self.n_launches % 2))
        return self.sticky


FAULT_ELEMENTS = 1 << 16


def serve(*, sick: bool = False, n_devices: int = 1) -> None:
    """The worker's program, with its device replaced."""
    spec = importlib.util.spec_from_file_location(
        PACKAGE, WORKER / "__init__.py", submodule_search_locations=[str(WORKER)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[PACKAGE])
    _install(Device(sick=sick), n_devices)
    part("fork_server").main([]) if "fork_server" in sys.argv else part("protocol").serve()


def part(name: str) -> Any:
    return importlib.import_module(f"{PACKAGE}.{name}")


# --- below: the driver


class Driver:
    """The calls of the CUDA driver that the worker makes."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._names: list[str] = []

    def handle(self, name: str) -> ctypes.c_void_p:
        self._names.append(name)
        return ctypes.c_void_p(len(self._names))

    def cuLaunchKernelEx(self, reference: Any, function: ctypes.c_void_p, values: Any, extra: object) -> int:
        name = self._names[function.value - 1]  # type: ignore[operator]
        types = next((t for key, t in PARAMETERS.items() if name.startswith(key)), (POINTER, POINTER, INT))
        arguments = [type_.from_address(values[i]).value for i, type_ in enumerate(types)]
        return self._device.launch(name, arguments)

    def cuFuncGetAttribute(self, value: Any, *_: object) -> int:
        value._obj.value = 48 << 10
        return 0

    def cuFuncSetAttribute(self, *_: object) -> int:
        return 0

    def cuGetErrorName(self, status: int, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_ASSERT" if status == CUDA_ERROR_ASSERT else b"CUDA_ERROR_ILLEGAL_ADDRESS"
        return 0

    def cuGetErrorString(self, status: int, text: Any) -> int:
        text._obj.value = b"the context is lost"
        return 0


def _install(device: Device, n_devices: int) -> None:
    driver, cpu = Driver(device), torch.device("cpu")
    part("shipped.cuda_runtime")._driver = driver
    for name in ("gpu.run", "gpu.check_commands", "gpu.launch_times"):
        part(name).on = lambda index: cpu
    part("gpu.run").current_stream = lambda index: 0
    for name in ("gpu.check_commands", "gpu.run", "gpu.device"):
        part(name).on_device = lambda index: contextlib.nullcontext()
    for name in ("gpu.run", "gpu.device"):
        part(name).make_context_current = lambda index: None
        part(name).architecture_of = lambda index: "sm_90"
    part("gpu.run").load_module = lambda code: code
    part("gpu.run").find_function = lambda module, symbol: driver.handle(_plain(symbol))
    name_of_gpu = os.environ.get(NAME, "Fake GPU")
    fakes = {
        "n_devices": lambda: n_devices,
        "device_facts": lambda index: {
            "gpu": name_of_gpu,
            "driver": "0",
            "torch_version": torch.__version__,
        },
        "device_uuid": lambda index: f"fake-{os.getppid()}-{index}",
        "total_bytes": lambda index: 140 << 30,
        "synchronize": lambda index: _raise_if_lost(device),
        "wait": lambda index, at_most_s: _wait(device),
        "release_memory": lambda: None,
        "is_crowded": lambda index: False,
        "bytes_of_others": lambda index: device.bytes_of_others,
        "unload_module": lambda module: None,
    }
    for name, fake in fakes.items():
        setattr(part("gpu.device"), name, fake)
    if recorded := os.environ.get(EVENTS):
        part("timing.baseline").profile_trace = lambda request: {"kernels": _traced(Path(recorded)), "gpu": "Fake GPU"}


def _traced(recorded: Path) -> list[dict[str, Any]]:
    """The kernels in recorded events of the torch profiler."""
    events = [
        SimpleNamespace(name=name, device_type=kind, time_range=SimpleNamespace(start=start, end=end))
        for name, kind, start, end in json.loads(recorded.read_text())
    ]
    found: list[dict[str, Any]] = part("timing.baseline").kernels_of(events)
    return found


def _raise_if_lost(device: Device) -> None:
    if device.sticky:
        raise RuntimeError(f"CUDA error: {device.sticky}")


def _wait(device: Device) -> None:
    _raise_if_lost(device)
    if device.is_running:
        raise part("gpu.device").StillRunning("a kernel still ran after 6 s")


def _plain(symbol: str) -> str:
    """The name in a mangled symbol: ``_Z6affinePKfPfi`` is ``affine``."""
    digits = symbol.removeprefix("_Z")
    n_digits = len(digits) - len(digits.lstrip("0123456789"))
    return digits[n_digits : n_digits + int(digits[:n_digits])] if n_digits else symbol


def _floats(address: int, n: int) -> torch.Tensor:
    return _tensor(address, n, ctypes.c_float, torch.float32)


def _ints(address: int, n: int) -> torch.Tensor:
    return _tensor(address, n, ctypes.c_int32, torch.int32)


def _tensor(address: int, n: int, type_: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer((type_ * n).from_address(address), dtype=dtype)


if __name__ == "__main__":
    serve()
