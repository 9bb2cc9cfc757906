"""Tensors in files: raw, little-endian, row-major, no header. Works without numpy, as torch does."""

from __future__ import annotations

import ctypes
import errno
import math
import os
from collections.abc import Sequence
from typing import Any

import torch

from .dtypes import PLAN_NAMES, torch_dtype
from .failure import EnvironmentFailure, Failure, ScratchFailure
from .transfer import read_bytes, write_bytes

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


FILES_FOLDER = os.environ.get("KERNEL_LSP_FILES", "")
"""Folder of the files that requests name; empty where they are on the engine's own machine."""
LARGE_BYTES = 4 << 20
"""Bytes from which several threads copy."""
CPU = torch.device("cpu")


def write_tensor(path: str, name: str, tensor: torch.Tensor) -> dict[str, Any]:
    """Write the tensor's bytes and return its entry of the answer. Raises EnvironmentFailure when the disk refuses."""
    tensor, place = tensor.detach().contiguous(), place_of(path)
    n_bytes = tensor.numel() * tensor.element_size()
    try:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        # Not truncated: the pages of an existing file are reused.
        with os.fdopen(os.open(place, os.O_RDWR | os.O_CREAT, 0o666), "wb") as file:
            if n_bytes >= LARGE_BYTES:
                write_bytes(file.fileno(), _raw(tensor))
            elif n_bytes:
                tensor = tensor.cpu()
                file.write(memoryview((ctypes.c_char * n_bytes).from_address(tensor.data_ptr())))
                file.flush()
            os.ftruncate(file.fileno(), n_bytes)
    except OSError as error:
        kind = ScratchFailure if error.errno in DISK_FULL else EnvironmentFailure
        raise kind(f"cannot write test data ({error.strerror})", file=path, next_step="free some space there") from None
    return {"name": name, "path": path, "dtype": PLAN_NAMES[tensor.dtype], "shape": list(tensor.shape)}


def read_tensor(entry: dict[str, Any], device: torch.device = CPU) -> torch.Tensor:
    """Read the tensor of an entry with ``path``, ``dtype`` and ``shape`` onto a device. Raises Failure for a wrong
    size."""
    n_bytes, place = math.prod(entry["shape"]) * torch_dtype(entry["dtype"]).itemsize, place_of(entry["path"])
    if os.path.getsize(place) != n_bytes:
        raise Failure(f"{entry['path']} does not hold {n_bytes} bytes for '{entry['name']}'")
    is_large = n_bytes >= LARGE_BYTES
    tensor = torch.empty(tuple(entry["shape"]), dtype=torch_dtype(entry["dtype"]), device=device if is_large else CPU)
    if n_bytes:
        with open(place, "rb") as file:
            if is_large:
                read_bytes(file.fileno(), _raw(tensor))
            else:
                file.readinto(memoryview((ctypes.c_char * n_bytes).from_address(tensor.data_ptr())).cast("B"))
    return tensor.to(device)


def taken(tensor: torch.Tensor, dim: int, ranges: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the ranges of a tensor along a dim, each as start and end, one after the other."""
    return torch.cat([tensor.narrow(dim, start, end - start) for start, end in ranges], dim)


def place_of(path: str) -> str:
    """Return the place of a file that the engine calls `path`."""
    return f"{FILES_FOLDER}{path}"


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
