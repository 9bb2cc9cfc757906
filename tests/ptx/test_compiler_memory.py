"""LLVM's symbols are those of the process: the machine code that they name must outlive who compiled it."""

from __future__ import annotations

import gc
import signal
import weakref
from typing import Any

import pytest

from kernel_lsp.ptx.compile import jit
from kernel_lsp.ptx.compile.jit import Compiler, LoadedModule


def test_code_that_symbols_name_stays_when_its_compiler_goes() -> None:
    compiler = Compiler()
    engines = [weakref.ref(engine) for engine in (compiler._rare, compiler._scheduler)]
    del compiler
    gc.collect()
    assert all(engine() is not None for engine in engines)


TWO_KERNELS = """\
extern "C" __global__ void first(float* out) { out[threadIdx.x] = 1; }
extern "C" __global__ void second(float* out) { out[threadIdx.x] = %s; }
"""


def engines_of(module: LoadedModule) -> list[Any]:
    return [kernel.engine for kernel in module.kernels.values()]


@pytest.mark.parametrize("is_quick", [False, True])
def test_long_kernels_are_compiled_one_by_one_and_an_equal_one_once(compile_cuda, monkeypatch, is_quick) -> None:
    monkeypatch.setattr(jit, "LONG_TEXT", 0)
    compiler = Compiler()
    twos, threes = (compiler.load(compile_cuda(TWO_KERNELS % value).ptx, is_quick=is_quick) for value in "23")
    assert len({*engines_of(twos), *engines_of(threes)}) == 3
    assert engines_of(twos)[0] is engines_of(threes)[0]
    addresses = {kernel.address for module in (twos, threes) for kernel in module.kernels.values()}
    assert len(addresses) == 3


def test_short_kernels_are_compiled_together(compile_cuda) -> None:
    assert len({*engines_of(Compiler().load(compile_cuda(TWO_KERNELS % "2").ptx))}) == 1


def test_long_kernels_of_small_runs_are_compiled_when_they_are_launched(compile_cuda, monkeypatch) -> None:
    monkeypatch.setattr(jit, "LONG_TEXT", 0)
    compiler, compiled = Compiler(), list[str]()
    real = compiler._compile
    monkeypatch.setattr(compiler, "_compile", lambda text, *rest: compiled.append(text) or real(text, *rest))
    kernels = compiler.load(compile_cuda(TWO_KERNELS % "2").ptx, is_quick=True).kernels
    assert not compiled
    assert kernels["second"].address == kernels["second"].address
    assert len(compiled) == 1


def test_a_later_compile_has_the_limit_of_its_load_and_not_of_the_run(compile_cuda, monkeypatch) -> None:
    monkeypatch.setattr(jit, "LONG_TEXT", 0)
    compiler, limits = Compiler(), list[float]()
    real = compiler._compile

    def spending(text: str, *rest: Any) -> Any:
        limits.append(signal.getitimer(signal.ITIMER_PROF)[0])
        return real(text, *rest)

    monkeypatch.setattr(compiler, "_compile", spending)
    try:
        signal.setitimer(signal.ITIMER_PROF, 500.0)
        kernels = compiler.load(compile_cuda(TWO_KERNELS % "2").ptx, is_quick=True).kernels
        signal.setitimer(signal.ITIMER_PROF, 100.0)
        assert all(kernel.address for kernel in kernels.values())
        left = signal.getitimer(signal.ITIMER_PROF)[0]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    assert len(limits) == 2
    assert all(300.0 < limit < 501.0 for limit in limits)
    assert 0.0 < left < 101.0
