"""The program that profilers run, with a driver in Python: what it allocates, launches, and shows the profiler."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_lsp.worker.gpu import launches as profile_launches
from kernel_lsp.worker.shipped import cuda_runtime
from tests.export.fake_driver import FakeDriver, Launch, floats


class HostDriver(FakeDriver):
    """Device memory is host memory, and every call is remembered by name."""

    def __init__(self, kernels: dict[str, Any], types: dict[str, Any]) -> None:
        super().__init__(types=types, kernels=kernels)
        self.calls: list[str] = []
        self.allocated: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*_: Any) -> int:
            self.calls.append(name)
            return 0

        return call

    def cuMemAlloc_v2(self, address: Any, n_bytes: Any) -> int:
        self.calls.append("cuMemAlloc_v2")
        memory = ctypes.create_string_buffer(b"\xff" * n_bytes.value, n_bytes.value)
        address._obj.value = ctypes.addressof(memory)
        self.allocated[address._obj.value] = memory
        return 0

    def cuMemcpyHtoD_v2(self, target: Any, source: Any, n_bytes: Any) -> int:
        self.calls.append("cuMemcpyHtoD_v2")
        ctypes.memmove(target.value, source.value, n_bytes.value)
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, symbol: bytes) -> int:
        function._obj.value = self.handle(symbol.decode()).value
        return 0

    def cuLaunchKernelEx(self, *arguments: Any) -> int:
        self.calls.append("launch")
        return super().cuLaunchKernelEx(*arguments)


def operation(*steps: dict[str, Any]) -> dict[str, Any]:
    tensors = [
        {"name": "x", "dtype": "f32", "shape": [4], "role": "input"},
        {"name": "sums", "dtype": "f32", "shape": [4], "role": "scratch"},
        {"name": "out", "dtype": "f32", "shape": [4], "role": "output"},
    ]
    return {"name": "op", "dims": {}, "tensors": tensors, "steps": list(steps)}


def launch(*tensors: str) -> dict[str, Any]:
    arguments = [{"kind": "tensor", "tensor": name} for name in tensors]
    return {
        "kind": "launch",
        "kernel": "k",
        "grid": [1, 1, 1],
        "block": [4, 1, 1],
        "shared_bytes": 0,
        "arguments": [*arguments, {"kind": "scalar", "cuda_type": "int", "value": 4}],
        "attributes": {},
    }


def run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, driver: HostDriver, *steps: dict[str, Any]
) -> tuple[int, HostDriver]:
    np.arange(4, dtype=np.float32).tofile(folder / "x.bin")
    (folder / "code").write_bytes(b"machine code")
    request = {
        "device": 0,
        "codes": [str(folder / "code")],
        "symbols": {"k": "_Zk"},
        "operation": operation(*steps),
        "inputs": [{"name": "x", "path": str(folder / "x.bin"), "dtype": "f32", "shape": [4]}],
    }
    (folder / "request.json").write_text(json.dumps(request))
    monkeypatch.setattr(cuda_runtime, "driver", lambda: driver)
    monkeypatch.setattr(profile_launches, "driver", lambda: driver)
    return profile_launches.main([str(folder / "request.json")]), driver


def add_one(seen: Launch) -> None:
    x, out, n = seen.arguments
    floats(out, n)[:] = floats(x, n) + 1


def host_driver(kernel: Any = add_one) -> HostDriver:
    return HostDriver({"_Zk": kernel}, {"_Zk": [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]})


def test_a_profiler_sees_the_steps_and_nothing_before_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, driver = run(tmp_path, monkeypatch, host_driver(), launch("x", "out"))
    assert status == 0
    shown = driver.calls[driver.calls.index("cuProfilerStart") : driver.calls.index("cuProfilerStop")]
    assert shown == ["cuProfilerStart", "launch", "cuCtxSynchronize"]
    assert driver.calls.count("cuMemFree_v2") == 3


def test_kernels_get_the_inputs_and_exact_allocations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, driver = run(tmp_path, monkeypatch, host_driver(), launch("x", "out"))
    out = floats(driver.launches[0].arguments[1], 4)
    assert list(out) == [1.0, 2.0, 3.0, 4.0]
    assert sorted(len(memory.raw) for memory in driver.allocated.values()) == [16, 16, 16]


def test_what_nobody_writes_stays_unwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that initcheck can see a read of it: only the input is copied."""
    _, driver = run(tmp_path, monkeypatch, host_driver(), launch("x", "out"))
    assert driver.calls.count("cuMemcpyHtoD_v2") == 1


def test_fills_are_taken_and_library_results_stood_in_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = {"kind": "fill", "tensor": "sums", "value": 2.0}
    library = {"kind": "library", "function": "aten::mm", "arguments": [], "results": ["out"]}
    seen: list[list[float]] = []

    def look(launched: Launch) -> None:
        seen.append([*floats(launched.arguments[0], 4), *floats(launched.arguments[1], 4)])

    run(tmp_path, monkeypatch, host_driver(look), fill, library, launch("sums", "out"))
    assert seen[0][:4] == [2.0] * 4
    assert np.isfinite(seen[0][4:]).all()
