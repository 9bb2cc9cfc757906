"""The proposed `.clangd`: its text, and what a real clangd says with it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kernel_lsp.cli.machine import clangd_text, find_clangd_file
from kernel_lsp.toolchain.nvrtc.discovery import Toolchain, find_toolchain

CLANGD = shutil.which("clangd")
KERNEL = """\
#include <cuda_fp16.h>
__global__ void widen(const __half* __restrict__ x, float* __restrict__ out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __shfl_xor_sync(0xffffffffu, __half2float(x[i]), 1);
}
"""


def test_it_names_all_folders_of_headers() -> None:
    folders = (Path("/cuda/include"), Path("/cuda/include/cccl"))
    toolchain = Toolchain(
        nvrtc=Path("/n"), builtins=Path("/b"), include_directories=folders, version="13.0", origin="a test"
    )
    text = clangd_text(toolchain)
    assert '"-I/cuda/include", "-I/cuda/include/cccl"' in text
    assert text.startswith("If:\n  PathMatch: .*\\.cuh?\n")


def test_the_nearest_file_is_found(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / ".clangd").touch()
    assert find_clangd_file(inner) == tmp_path / ".clangd"


@pytest.mark.skipif(CLANGD is None, reason="no clangd here: apt-get install clangd")
def test_clangd_understands_a_kernel_with_it_where_there_are_headers_alone(tmp_path: Path) -> None:
    assert CLANGD is not None
    headers_alone = tmp_path / "wheels"
    headers_alone.mkdir()
    toolchain = find_toolchain()
    (headers_alone / "include").symlink_to(toolchain.include_directories[0])
    folders = (headers_alone / "include", *toolchain.include_directories[1:])
    (tmp_path / ".clangd").write_text(clangd_text(toolchain.model_copy(update={"include_directories": folders})))
    (tmp_path / "widen.cu").write_text(KERNEL)
    command = [CLANGD, "--check=widen.cu"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert "All checks completed, 0 errors" in ran.stderr, ran.stderr[-2000:]
