"""A `.clangd` with which clangd reads kernels with the headers that this project compiles them with."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.toolchain.discovery import Toolchain

FILE_NAME = ".clangd"
ARCHITECTURE = "sm_80"
"""Known to every clangd since 11. It is for reading alone: what is compiled is for the target GPU."""
STANDARD = "c++17"


def clangd_text(toolchain: Toolchain) -> str:
    """The file's text. Checked with clangd 14 and the headers of CUDA 13: its `--check` finds no error in kernels with
    half precision and CUB.

    `--cuda-path` would not do: clang takes only a whole toolkit for one (with `bin`), and the wheels from PyPI hold
    headers alone. So clang's own CUDA prelude is included by name, and the headers are given.
    """
    arguments = [
        "-xcuda",
        f"--cuda-gpu-arch={ARCHITECTURE}",
        "-nocudalib",
        "-nocudainc",
        "-include",
        "__clang_cuda_runtime_wrapper.h",
        *(f"-I{folder}" for folder in toolchain.include_directories),
        f"-std={STANDARD}",
    ]
    listed = ", ".join(f'"{argument}"' for argument in arguments)
    return f"If:\n  PathMatch: .*\\.cuh?\nCompileFlags:\n  Add: [{listed}]\n"


def find_clangd_file(directory: Path) -> Path | None:
    """The one that clangd takes for files in `directory`; None when there is none."""
    return next((path for folder in (directory, *directory.parents) if (path := folder / FILE_NAME).is_file()), None)
