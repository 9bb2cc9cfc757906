"""Flags with which clangd and clang-tidy parse kernels with this project's headers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

CLANG_ARCHITECTURE = "sm_80"
"""Supported by every clang since 11. For parsing only: kernels are compiled for the target GPU."""
STANDARD = "c++17"


def clang_cuda_flags(include_directories: Sequence[Path], architecture: str = CLANG_ARCHITECTURE) -> tuple[str, ...]:
    """Return clang's CUDA flags, checked with clang 14 and the headers of CUDA 13: no errors in kernels with half
    precision and CUB.

    `--cuda-path` is insufficient: clang requires a complete toolkit (with `bin`), while the wheels from PyPI hold
    headers alone. So clang's own CUDA prelude is included by name, with the headers' folders.
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
