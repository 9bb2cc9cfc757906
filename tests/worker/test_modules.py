"""A candidate of several modules: each kernel is found in its own, and all of them are unloaded."""

from __future__ import annotations

import base64
from contextlib import nullcontext
from typing import Any

import pytest

from kernel_lsp.worker.gpu import device, run
from kernel_lsp.worker.shipped.cuda_runtime import CudaError

KERNELS = {b"first": ("a", "b"), b"second": ("c",)}
REQUEST = {
    "candidate": "x",
    "device": 0,
    "kernels": ["k<1>", "k<2>"],
    "symbols": {"k<1>": "a", "k<2>": "c", "k<3>": "missing"},
    "cubins": [base64.b64encode(code).decode() for code in KERNELS],
}


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    def find_function(module: bytes, symbol: str) -> tuple[bytes, str]:
        if symbol not in KERNELS[module]:
            raise CudaError(f"cuModuleGetFunction({symbol}): CUDA_ERROR_NOT_FOUND (500)")
        return module, symbol

    gone: list[Any] = []
    monkeypatch.setattr(run, "load_module", lambda code: code)
    monkeypatch.setattr(run, "find_function", find_function)
    monkeypatch.setattr(run, "on_device", lambda index: nullcontext())
    monkeypatch.setattr(run, "make_context_current", lambda index: None)
    monkeypatch.setattr(device, "device_index", lambda request: 0)
    monkeypatch.setattr(device, "device_facts", lambda index: {})
    monkeypatch.setattr(device, "unload_module", gone.append)
    return gone


def test_kernels_are_found_in_their_modules_and_all_modules_are_unloaded(unloaded: list[Any]) -> None:
    assert run.handle_load(dict(REQUEST))["loaded"]
    candidate = run.loaded_candidate(REQUEST)
    assert candidate.functions == {"k<1>": (b"first", "a"), "k<2>": (b"second", "c")}
    assert run.load_candidate(candidate.codes, candidate.symbols, 0).functions == candidate.functions
    assert run.unload("x")
    assert unloaded == [b"first", b"second"]


def test_a_kernel_in_no_module_is_the_candidates_fault(unloaded: list[Any]) -> None:
    answer = run.handle_load({**REQUEST, "kernels": ["k<3>"]})
    assert (answer["loaded"], "missing" in answer["log"]) == (False, True)
