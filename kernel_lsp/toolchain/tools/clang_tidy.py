"""clang-tidy on device code, where installed: its command line, and its diagnostics as findings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kernel_lsp.core.finding import Finding, Severity

CHECKS = "-*,bugprone-*,clang-analyzer-core.*,performance-*,-bugprone-easily-swappable-parameters"
SOURCE = "clang-tidy"
_DIAGNOSTIC = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?P<column>\d+): (?P<kind>warning|error): (?P<text>.*)$")
_CODE = re.compile(r"\s*\[(?P<code>[\w.,-]+)\]$")


def tidy_command(clang_tidy: Path, kernel: Path, include_directories: Sequence[Path]) -> list[str | Path]:
    """Return the command to lint one file as CUDA device code, with these header folders."""
    flags = ("--cuda-device-only", *clang_cuda_flags(include_directories))
    return [clang_tidy, f"--checks={CHECKS}", "--quiet", kernel, "--", *flags]


def parse_tidy(text: str, kernel: Path) -> tuple[Finding, ...]:
    """Parse the diagnostics in the kernel's own file. Errors are omitted: clang's own come from CUDA headers that it
    cannot parse, and NVRTC reports the others."""
    lines = (_DIAGNOSTIC.match(line) for line in text.splitlines())
    return tuple(_finding(match) for match in lines if match is not None and _is_ours(match, kernel))


def _is_ours(match: re.Match[str], kernel: Path) -> bool:
    return Path(match["file"]).name == kernel.name and match["kind"] == "warning"


def _finding(match: re.Match[str]) -> Finding:
    code = _CODE.search(match["text"])
    return Finding(
        code=code["code"] if code else SOURCE,
        severity=Severity.INFORMATION,
        message=_CODE.sub("", match["text"]),
        source=SOURCE,
        file=Path(match["file"]).name,
        line=int(match["line"]),
        column=int(match["column"]),
    )


ARCHITECTURE = "sm_80"
"""Supported by every clang since 11. For parsing only: kernels are compiled for the target GPU."""
STANDARD = "c++17"


def clang_cuda_flags(include_directories: Sequence[Path]) -> tuple[str, ...]:
    """Return clang's CUDA flags, checked with clang 14 and the headers of CUDA 13: no errors in kernels with half
    precision and CUB.

    `--cuda-path` is insufficient: clang requires a complete toolkit (with `bin`), while the wheels from PyPI hold
    headers alone. So clang's own CUDA prelude is included by name, with the headers' folders.
    """
    return (
        "-xcuda",
        f"--cuda-gpu-arch={ARCHITECTURE}",
        "-nocudalib",
        "-nocudainc",
        "-include",
        "__clang_cuda_runtime_wrapper.h",
        *(f"-I{folder}" for folder in include_directories),
        f"-std={STANDARD}",
    )
