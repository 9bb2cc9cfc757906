"""Fixtures that compile CUDA and PTX and load it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernel_lsp.core.verdict import Built
from kernel_lsp.ptx.executor_process import Session
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.toolchain.nvrtc.discovery import find_toolchain
from tests.ptx.harness import CUDA_FILE, CompileCuda, Executor


@pytest.fixture(scope="session")
def session() -> Session:
    return Session()


@pytest.fixture(scope="session")
def compile_cuda() -> Iterator[CompileCuda]:
    """Compiles a text with NVRTC, in one process for all tests. Its event loop has a thread: a test may have one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    compiler = Compiler(find_toolchain())

    def compile_text(text: str, *names: str) -> Built:
        request = BuildRequest(text=text, file_name=CUDA_FILE, name_expressions=names)
        built = asyncio.run_coroutine_threadsafe(compiler.compile(request), loop).result()
        assert isinstance(built, Built), built
        return built

    yield compile_text
    asyncio.run_coroutine_threadsafe(compiler.__aexit__(None, None, None), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def cuda(session: Session, compile_cuda: CompileCuda, tmp_path: Path) -> Callable[..., Executor]:
    """``cuda(text, "kernel<256>")``: compile CUDA and load it."""

    def load(text: str, *names: str) -> Executor:
        built = compile_cuda(text, *names)
        return Executor(session, built.ptx, tmp_path, built.symbols)

    return load


@pytest.fixture
def ptx(session: Session, tmp_path: Path) -> Callable[[str], Executor]:
    """``ptx(text)``: load a PTX text."""
    return lambda text: Executor(session, text, tmp_path, {})
