"""Locate optional programs and their versions, for `kernel-lsp doctor`."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

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
    place: str = ""
    """Words for messages, such as ``on me@gpuhost``; empty for this machine."""


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
    return Tool(name=name, purpose=purpose, path=path, version=version_in(text), problem=problem_text)


def _path_of(name: str) -> Path | None:
    search = os.pathsep.join([os.environ.get("PATH", ""), *(str(directory) for directory in TOOLKIT_BIN_DIRECTORIES)])
    found = shutil.which(name, path=search)
    return Path(found) if found else None


def version_in(text: str) -> str:
    """Return the most precise version number in a tool's output: nvcc has ``release 13.0, V13.0.88``."""
    versions = re.findall(r"\d+\.\d+(?:\.\d+)*", text)
    return max(versions, key=lambda version: version.count("."), default="")
