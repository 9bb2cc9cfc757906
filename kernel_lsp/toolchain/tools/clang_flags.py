"""How clang reads kernels with the headers that this project compiles them with, for clangd and clang-tidy alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

CLANG_ARCHITECTURE = "sm_80"
"""Known to every clang since 11. It is for reading alone: what is compiled is for the target GPU."""
STANDARD = "c++17"


def clang_cuda_flags(include_directories: Sequence[Path], architecture: str = CLANG_ARCHITECTURE) -> tuple[str, ...]:
    """Checked with clang 14 and the headers of CUDA 13: no errors in kernels with half precision and CUB.

    `--cuda-path` would not do: clang takes only a whole toolkit for one (with `bin`), and the wheels from PyPI hold
    headers alone. So clang's own CUDA prelude is included by name, and the headers are given.
    """
    return (
        "-xcuda",
        f"--cuda-gpu-arch={architecture}",
        "-nocudalib",
        "-nocudainc",
        "-include",
        "__clang_cuda_runtime_wrapper.h",
        *(f"-I{folder}" for folder in include_directories),
        f"-std={STANDARD}",
    )
