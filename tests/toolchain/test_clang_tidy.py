"""clang-tidy reads kernels with headers alone, no toolkit, and what it says of them becomes findings."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from kernel_lsp.cli.machine import clangd_text
from kernel_lsp.process.confinement import support
from kernel_lsp.toolchain.nvrtc.discovery import find_toolchain
from kernel_lsp.toolchain.tools.binaries import Tool
from kernel_lsp.toolchain.tools.clang_tidy import clang_cuda_flags, parse_tidy, tidy_command
from kernel_lsp.verify.profile.tools import run_tidy

KERNEL = """#include <cuda_fp16.h>

__global__ void scale(const __half* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n); { out[i] = 2.0f * __half2float(x[i]); }
}
"""
SAID = """/tmp/k.cu:5:15: warning: potentially unintended semicolon [bugprone-suspicious-semicolon]
/usr/include/x.h:1:1: warning: of a header [bugprone-x]
/tmp/k.cu:9:1: error: clang's own failure [clang-diagnostic-error]
"""


def test_clangd_and_clang_tidy_read_with_the_same_flags() -> None:
    toolchain = find_toolchain(None)
    flags = clang_cuda_flags(toolchain.include_directories)
    command = tidy_command(Path("clang-tidy"), Path("k.cu"), toolchain.include_directories)
    assert tuple(command[-len(flags) :]) == flags
    assert all(f'"{flag}"' in clangd_text(toolchain) for flag in flags)


def test_warnings_of_the_kernel_itself_are_findings() -> None:
    found = parse_tidy(SAID, Path("k.cu"))
    assert [(f.code, f.line, f.column) for f in found] == [("bugprone-suspicious-semicolon", 5, 15)]


@pytest.mark.skipif(shutil.which("clang-tidy") is None, reason="clang-tidy is not installed")
def test_clang_tidy_itself_reads_a_kernel_while_it_is_confined(tmp_path: Path) -> None:
    kernel, program = tmp_path / "k.cu", shutil.which("clang-tidy")
    kernel.write_text(KERNEL)
    tool = Tool(name="clang-tidy", purpose="", path=Path(str(program)))
    ran, found = asyncio.run(run_tidy(tool, kernel, find_toolchain(None).include_directories, support().level))
    assert (ran.status, ran.sandbox) == ("ran", support().level)
    assert ("bugprone-narrowing-conversions", 4) in {(finding.code, finding.line) for finding in found}


@pytest.mark.parametrize(("text", "status"), [("cat $(dirname $0)/../lib/said", "ran"), ("exit 1", "failed")])
def test_a_tool_outside_the_system_reads_its_installation_and_what_says_nothing_failed(
    tmp_path: Path, text: str, status: str
) -> None:
    kernel, program = tmp_path / "kernel" / "k.cu", tmp_path / "tool" / "bin" / "clang-tidy"
    for path, content in ((kernel, KERNEL), (program, f"#!/bin/sh\n{text}\n"), (program.parents[1] / "lib/said", SAID)):
        path.parent.mkdir(parents=True)
        path.write_text(content)
    program.chmod(0o755)
    tool = Tool(name="clang-tidy", purpose="", path=program)
    ran, found = asyncio.run(run_tidy(tool, kernel, (), support().level))
    assert (ran.status, len(found)) == (status, 1 if status == "ran" else 0)
