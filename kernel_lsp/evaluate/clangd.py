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
    half precision and CUB."""
    root = toolchain.include_directories[0].parent
    arguments = [
        "-xcuda",
        f"--cuda-gpu-arch={ARCHITECTURE}",
        "-nocudalib",
        f"--cuda-path={root}",
        *(f"-I{folder}" for folder in toolchain.include_directories),
        f"-std={STANDARD}",
    ]
    listed = ", ".join(f'"{argument}"' for argument in arguments)
    return f"If:\n  PathMatch: .*\\.cuh?\nCompileFlags:\n  Add: [{listed}]\n"


def find_clangd_file(directory: Path) -> Path | None:
    """The one that clangd takes for files in `directory`; None when there is none."""
    return next((path for folder in (directory, *directory.parents) if (path := folder / FILE_NAME).is_file()), None)
