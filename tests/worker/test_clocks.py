"""Clocks through a fake NVML, and without one."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CLOCKS = Path(__file__).parents[2] / "kernel_lsp" / "worker" / "timing" / "stopwatch.py"


def load() -> ModuleType:
    """The file by itself: nobody imports the worker."""
    spec = importlib.util.spec_from_file_location("clocks_alone", CLOCKS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class FakeNvml:
    """Answers as NVML does. `missing` functions are not there, `refused` ones return "not supported" (3)."""

    def __init__(self, *, bits: int = 0, missing: tuple[str, ...] = (), refused: tuple[str, ...] = ()) -> None:
        self.bits, self.missing, self.refused = bits, missing, refused
        self.asked: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        if name in self.missing:
            raise AttributeError(name)
        return lambda *arguments: 3 if name in self.refused else self.answer(name, arguments)

    def answer(self, name: str, arguments: tuple[Any, ...]) -> int:
        if name == "nvmlDeviceGetHandleByUUID":
            self.asked.append(arguments[0])
        if name == "nvmlDeviceGetClockInfo":
            _set(arguments[-1], {1: 1980, 2: 3201}[arguments[1]])
        if name == "nvmlDeviceGetTemperature":
            _set(arguments[-1], 41)
        if name == "nvmlDeviceGetPowerUsage":
            _set(arguments[-1], 312_500)
        if name == "nvmlDeviceGetCurrentClocksThrottleReasons":
            _set(arguments[-1], self.bits)
        return 0


def _set(reference: Any, value: int) -> None:
    reference._obj.value = value


def read(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml, uuid: str = "GPU-1") -> dict[str, Any]:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    found: dict[str, Any] = load().Clocks(uuid).read()
    return found


def test_readings_have_their_units(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(monkeypatch, FakeNvml())
    assert found == {"sm_mhz": 1980, "memory_mhz": 3201, "temperature_c": 41, "power_w": 312.5, "throttled": []}


def test_bits_that_slow_a_gpu_down_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, FakeNvml(bits=0x44))["throttled"] == ["software power cap", "hardware thermal slowdown"]


def test_idle_and_chosen_clocks_are_no_throttling(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, FakeNvml(bits=0x1 | 0x2 | 0x10))["throttled"] == []


def test_a_uuid_is_spelled_as_nvml_does(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    read(monkeypatch, nvml, "74d9a3f0-0000")
    read(monkeypatch, nvml, "MIG-1")
    assert nvml.asked == [b"GPU-74d9a3f0-0000", b"MIG-1"]


def test_a_reading_that_the_gpu_does_not_have_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(refused=("nvmlDeviceGetPowerUsage",), missing=("nvmlDeviceGetTemperature",))
    assert set(read(monkeypatch, nvml)) == {"sm_mhz", "memory_mhz", "throttled"}


def test_without_the_library_there_is_a_reason() -> None:
    clocks = load().Clocks("GPU-1", library="libnvidia-ml-that-is-not-there.so.1")
    assert "libnvidia-ml-that-is-not-there" in clocks.read()["reason"]


def test_an_nvml_that_does_not_know_the_gpu_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no GPU GPU-1 (3)" in read(monkeypatch, FakeNvml(refused=("nvmlDeviceGetHandleByUUID",)))["reason"]


def test_an_nvml_that_is_too_old_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "reason" in read(monkeypatch, FakeNvml(missing=("nvmlInit_v2",)))
