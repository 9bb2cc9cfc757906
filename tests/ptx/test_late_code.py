"""Long kernels of small runs are compiled when they are launched: their faults are found as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_lsp.ptx.compile import jit
from kernel_lsp.ptx.executor_process import Session

from .harness import CompileCuda, Executor

CORRECT = 'extern "C" __global__ void first(float* out) { out[threadIdx.x] = 1; }\n'
BEYOND = 'extern "C" __global__ void second(float* out) { out[threadIdx.x + 1] = 2; }\n'
ENDLESS = """\
extern "C" __global__ void second(float* out, int n) {
  while (n > 3) asm volatile("");
  out[threadIdx.x] = 2;
}
"""
CORRECT_TOO = 'extern "C" __global__ void second(float* out) { out[threadIdx.x] = 2; }\n'


@pytest.fixture
def load(session: Session, compile_cuda: CompileCuda, tmp_path: Path, monkeypatch: Any) -> Callable[[str], Executor]:
    """Load a text as a long one beside a GPU."""
    monkeypatch.setattr(jit, "LONG_TEXT", 0)

    class Quick(Session):
        def handle(self, request: dict[str, Any]) -> dict[str, Any]:
            return super().handle({**request, "is_quick": True})

    return lambda ptx: Executor(Quick(session.compiler), ptx, tmp_path, {})


def test_a_fault_of_a_later_kernel_is_found(load, compile_cuda) -> None:
    executor = load(compile_cuda(CORRECT + BEYOND).ptx)
    out = {"out": np.zeros(32, np.float32)}
    assert executor.run("first", outputs=out).findings == []
    assert executor.run("second", outputs=out).finding()["code"] == "out-of-bounds-write"


def test_an_endless_kernel_that_is_not_launched_is_refused(load, compile_cuda) -> None:
    loaded = load(compile_cuda(CORRECT + ENDLESS).ptx).loaded
    assert [finding["code"] for finding in loaded["endless"]] == ["endless-loop"]


def test_an_unknown_instruction_of_a_kernel_that_is_not_launched_is_unsupported(load, compile_cuda) -> None:
    first, store, rest = compile_cuda(CORRECT + CORRECT_TOO).ptx.rpartition("st.global.")
    assert store
    assert "frobnicate" in load(f"{first}frobnicate.{rest}").loaded["unsupported"]["instruction"]


def test_code_that_llvm_refuses_is_unsupported_when_it_is_launched(load, compile_cuda, monkeypatch) -> None:
    executor = load(compile_cuda(CORRECT).ptx)

    def refused(*_: Any) -> None:
        raise RuntimeError("LLVM IR parsing error")

    monkeypatch.setattr(executor.session.compiler, "_compile", refused)
    executor.session.compiler._long.clear()
    answer = executor.run("first", outputs={"out": np.zeros(32, np.float32)}).answer
    assert "LLVM refuses" in json.dumps(answer["unsupported"])
