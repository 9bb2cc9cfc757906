"""LLVM's symbols are those of the process: the machine code that they name must outlive who compiled it."""

from __future__ import annotations

import gc
import weakref

from kernel_lsp.ptx.compile.jit import Compiler


def test_code_that_symbols_name_stays_when_its_compiler_goes() -> None:
    compiler = Compiler()
    engines = [weakref.ref(engine) for engine in (compiler._rare, compiler._scheduler)]
    del compiler
    gc.collect()
    assert all(engine() is not None for engine in engines)
