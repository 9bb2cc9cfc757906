"""Locate optional programs and their versions, for `kernel-lsp doctor`, and run clang-tidy on device code."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.model import Noun
from kernel_lsp.process.supervisor import run

VERSION_DEADLINE_S = 10.0
MAX_VERSION_OUTPUT_BYTES = 64 << 10
TOOLKIT_BIN_DIRECTORIES = (Path("/usr/local/cuda/bin"), Path("/opt/nvidia/nsight-compute"))
TOOLS = {
    "nvcc": "compiling whole programs; not needed, NVRTC compiles kernels",
    "ptxas": "assembling PTX; not needed, NVRTC has its own",
    "nvidia-smi": "listing the GPUs",
    "ncu": "profiling kernels on a GPU",
    "compute-sanitizer": "checking memory accesses on a GPU",
    "clang-tidy": "linting host and device code",
}
"""Purpose by name, as it reads after "for"."""


class Tool(Noun):
    """An optional program. `path` is None when it is missing; `version` is empty when unknown."""

    name: str
    purpose: str
    path: Path | None = None
    version: str = ""
    problem: str = ""


async def find_tools(names: Sequence[str] = tuple(TOOLS)) -> tuple[Tool, ...]:
    """Look up every program, in order. Each has `VERSION_DEADLINE_S` to report its version."""
    return tuple(await asyncio.gather(*(_find(name) for name in names)))


async def _find(name: str) -> Tool:
    purpose = TOOLS.get(name, "")
    path = _path_of(name)
    if path is None:
        return Tool(name=name, purpose=purpose)
    try:
        result = await run(
            [path, "--version"], deadline_s=VERSION_DEADLINE_S, max_output_bytes=MAX_VERSION_OUTPUT_BYTES
        )
    except OSError as problem:
        return Tool(name=name, purpose=purpose, path=path, problem=f"it does not start: {problem}")
    if result.timed_out:
        return Tool(name=name, purpose=purpose, path=path, problem=f"no answer in {VERSION_DEADLINE_S:g} s")
    text = (result.stdout + result.stderr).decode(errors="replace")
    problem_text = "" if result.returncode == 0 else f"`--version` ended with {result.returncode}"
    return Tool(name=name, purpose=purpose, path=path, version=_version_in(text), problem=problem_text)


def _path_of(name: str) -> Path | None:
    search = os.pathsep.join([os.environ.get("PATH", ""), *(str(directory) for directory in TOOLKIT_BIN_DIRECTORIES)])
    found = shutil.which(name, path=search)
    return Path(found) if found else None


def _version_in(text: str) -> str:
    """Return the most precise version number in a tool's output: nvcc has ``release 13.0, V13.0.88``."""
    versions = re.findall(r"\d+\.\d+(?:\.\d+)*", text)
    return max(versions, key=lambda version: version.count("."), default="")


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
