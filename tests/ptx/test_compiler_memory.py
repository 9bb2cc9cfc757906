"""LLVM's symbols are those of the process: the machine code that they name must outlive who compiled it."""

from __future__ import annotations

import gc
import weakref

from kernel_lsp.ptx.compile import jit
from kernel_lsp.ptx.compile.jit import Compiler


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


def test_long_kernels_are_compiled_one_by_one_and_an_equal_one_once(compile_cuda, monkeypatch) -> None:
    monkeypatch.setattr(jit, "LONG_TEXT", 0)
    compiler = Compiler()
    twos, threes = (compiler.load(compile_cuda(TWO_KERNELS % value).ptx, is_quick=True) for value in "23")
    assert len({*twos.engines, *threes.engines}) == 3
    assert twos.engines[0] is threes.engines[0]
    addresses = {kernel.address for module in (twos, threes) for kernel in module.kernels.values()}
    assert len(addresses) == 3


def test_short_kernels_are_compiled_together(compile_cuda) -> None:
    assert len({*Compiler().load(compile_cuda(TWO_KERNELS % "2").ptx).engines}) == 1
