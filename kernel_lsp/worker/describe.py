"""Describe the user's interpreter: what its torch can do, and how to compile against it."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from typing import Any

import torch


def describe(request: dict[str, Any]) -> dict[str, Any]:
    """Return versions and devices."""
    has_cuda = torch.cuda.is_available()
    return {
        "python": sys.executable,
        "python_version": platform.python_version(),
        "torch_version": torch.__version__,
        "cuda_version": torch.version.cuda,
        "has_cuda": has_cuda,
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if has_cuda else [],
    }


def extension_facts(request: dict[str, Any]) -> dict[str, Any]:
    """Return ``{"torch_version", "cuda_version", "includes", "libraries", "library_directories", "cxx11_abi",
    "cuda_runtime"}``. The last is the CUDA runtime that torch itself has loaded, empty without one."""
    root = os.path.dirname(os.path.abspath(torch.__file__))
    include = os.path.join(root, "include")
    has_cuda = torch.version.cuda is not None
    return {
        "torch_version": torch.__version__,
        "cuda_version": torch.version.cuda or "",
        "includes": [
            include,
            os.path.join(include, "torch", "csrc", "api", "include"),
            sysconfig.get_paths()["include"],
        ],
        "libraries": ["c10", "torch_cpu", "torch", "torch_python", *(["c10_cuda", "torch_cuda"] if has_cuda else [])],
        "library_directories": [os.path.join(root, "lib")],
        "cxx11_abi": int(torch._C._GLIBCXX_USE_CXX11_ABI),
        "cuda_runtime": _loaded("libcudart.so"),
    }


def _loaded(name: str) -> str:
    """Return the path of a library that this process has loaded; empty when it has not."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        found = {line.split()[-1] for line in file if f"/{name}" in line}
    return min(found, default="")
