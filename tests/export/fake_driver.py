"""A CUDA driver that runs Python in place of kernels, on tensors in host memory: it reads launches as the real one
does, from the structures and the addresses that it is given."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest

STREAM = 77
"""PyTorch's current stream, as the fake states it."""


@dataclass
class Launch:
    """One launch as the driver saw it."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    stream: int
    arguments: list[Any]
    attributes: dict[int, tuple[int, int, int]]


Kernel = Callable[[Launch], None]


@dataclass
class FakeDriver:
    """`types` gives the ctypes of each kernel's parameters, `kernels` what they do."""

    types: dict[str, Sequence[Any]]
    kernels: dict[str, Kernel] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    settings: list[tuple[str, int, int]] = field(default_factory=list)
    status: int = 0
    default_shared_bytes: int = 48 << 10
    names: list[str] = field(default_factory=list)

    def handle(self, name: str) -> ctypes.c_void_p:
        """A function handle for a name expression."""
        if name not in self.names:
            self.names.append(name)
        return ctypes.c_void_p(1 + self.names.index(name))

    def cuLaunchKernelEx(self, reference: Any, function: ctypes.c_void_p, values: Any, extra: object) -> int:
        config, name = reference._obj, self.names[function.value - 1]
        attributes = [config.attributes[i] for i in range(config.n_attributes)]
        launch = Launch(
            name,
            (config.grid_x, config.grid_y, config.grid_z),
            (config.block_x, config.block_y, config.block_z),
            config.shared_bytes,
            config.stream,
            [type_.from_address(values[i]).value for i, type_ in enumerate(self.types[name])],
            {attribute.id: tuple(attribute.value[:3]) for attribute in attributes},
        )
        self.launches.append(launch)
        if name in self.kernels:
            self.kernels[name](launch)
        return self.status

    def cuFuncGetAttribute(self, value: Any, attribute: int, function: ctypes.c_void_p) -> int:
        asked = (self.names[function.value - 1], attribute)
        set_before = [number for *key, number in self.settings if tuple(key) == asked]
        value._obj.value = [self.default_shared_bytes, *set_before][-1]
        return 0

    def cuFuncSetAttribute(self, function: ctypes.c_void_p, attribute: int, value: int) -> int:
        self.settings.append((self.names[function.value - 1], attribute, value))
        return 0

    def cuGetErrorName(self, status: int, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_INVALID_VALUE"
        return 0

    def cuGetErrorString(self, status: int, text: Any) -> int:
        text._obj.value = b"invalid argument"
        return 0


class FakeKernels:
    """Stands for the operator's `library()`."""

    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver

    def function(self, name: str, device_index: int | None) -> ctypes.c_void_p:
        return self._driver.handle(name)


def install(monkeypatch: pytest.MonkeyPatch, operator: ModuleType, driver: FakeDriver) -> None:
    """Make an operator's module take tensors in host memory for a GPU's."""
    runtime = operator._runtime
    monkeypatch.setattr(runtime, "_not_on_one_gpu", lambda *tensors: "")
    monkeypatch.setattr(runtime, "on_device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(runtime, "current_stream", lambda index: STREAM)
    monkeypatch.setattr(runtime, "driver", lambda: driver)
    monkeypatch.setattr(operator.OPERATOR, "library", lambda: FakeKernels(driver))


def floats(address: int, *shape: int) -> np.ndarray:
    """The floats at an address; writing to them writes there."""
    count = int(np.prod(shape))
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address)).reshape(shape)
