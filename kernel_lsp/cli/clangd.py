"""Write a `.clangd` that makes clangd parse kernels with this project's headers."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.toolchain.nvrtc.discovery import Toolchain
from kernel_lsp.toolchain.tools.clang_flags import clang_cuda_flags

FILE_NAME = ".clangd"


def clangd_text(toolchain: Toolchain) -> str:
    """The file's text."""
    arguments = clang_cuda_flags(toolchain.include_directories)
    listed = ", ".join(f'"{argument}"' for argument in arguments)
    return f"If:\n  PathMatch: .*\\.cuh?\nCompileFlags:\n  Add: [{listed}]\n"


def find_clangd_file(directory: Path) -> Path | None:
    """Return the file that clangd uses for `directory`; None when there is none."""
    return next((path for folder in (directory, *directory.parents) if (path := folder / FILE_NAME).is_file()), None)
