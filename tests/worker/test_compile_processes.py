"""The processes that compile PyTorch's kernels leave processors to ours."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp.worker.timing.baseline import COMPILE_NICENESS, start_compile_processes

FORKS = """
import os, sys
print(flush=True)
sys.stdin.readline()
child = os.fork() or os.getpid()
if child == os.getpid():
    print(os.getpriority(os.PRIO_PROCESS, 0), flush=True)
"""


def test_what_the_first_process_forks_at_the_first_request_is_of_low_priority() -> None:
    process = subprocess.Popen([sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    done: list[str] = []

    def request() -> None:
        assert process.stdin is not None
        done.append("requested")
        process.stdin.write("\n")
        process.stdin.flush()

    compiler: Any = SimpleNamespace(
        warm_pool=lambda: done.append("started"),
        process_pool=lambda: SimpleNamespace(process=process),
        use_process_pool=request,
    )
    with process:
        start_compile_processes(compiler)
        assert int(process.stdout.readline()) == max(COMPILE_NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
    assert done == ["started", "requested"]


def test_a_pool_without_such_a_process_is_used_as_it_is() -> None:
    done: list[str] = []
    pool: Any = SimpleNamespace(
        warm_pool=lambda: None, process_pool=lambda: None, use_process_pool=lambda: done.append("requested")
    )
    start_compile_processes(pool)
    assert done == ["requested"]


def test_the_pool_of_this_torch_has_that_process() -> None:
    pools = pytest.importorskip("torch._inductor.compile_worker.subproc_pool")
    assert "process" in pools.SubprocPool.__init__.__code__.co_names
