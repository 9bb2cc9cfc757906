"""Tensors in files: raw, little-endian, row-major, no header. Needs no numpy, which torch can do without."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

import torch

from .dtypes import PLAN_NAMES, torch_dtype
from .failure import EnvironmentFailure, Failure, ScratchFailure

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


MAPPED_BYTES = 1 << 20
"""From so many on, a GPU's tensor is copied straight into the file's pages."""


def write_tensor(path: str, name: str, tensor: torch.Tensor) -> dict[str, Any]:
    """Write the tensor's bytes; the answer's entry for it. Raises EnvironmentFailure when the disk refuses."""
    tensor = tensor.detach().contiguous()
    n_bytes = tensor.numel() * tensor.element_size()
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            if tensor.is_cuda and n_bytes >= MAPPED_BYTES:
                os.posix_fallocate(file.fileno(), 0, n_bytes)  # a full disk is an error here, and a signal later
                mapped = torch.from_file(path, shared=True, size=n_bytes, dtype=torch.uint8)
                mapped.copy_(tensor.view(-1).view(torch.uint8))
            elif n_bytes:
                tensor = tensor.cpu()
                file.write(memoryview((ctypes.c_char * n_bytes).from_address(tensor.data_ptr())))
    except OSError as error:
        kind = ScratchFailure if error.errno in DISK_FULL else EnvironmentFailure
        raise kind(f"cannot write test data ({error.strerror})", file=path, next_step="free some space there") from None
    return {"name": name, "path": path, "dtype": PLAN_NAMES[tensor.dtype], "shape": list(tensor.shape)}


def read_tensor(entry: dict[str, Any]) -> torch.Tensor:
    """The tensor of an entry with ``path``, ``dtype`` and ``shape``. Raises Failure when the size is not right."""
    tensor = torch.empty(tuple(entry["shape"]), dtype=torch_dtype(entry["dtype"]))
    n_bytes = tensor.numel() * tensor.element_size()
    if os.path.getsize(entry["path"]) != n_bytes:
        raise Failure(f"{entry['path']} does not hold {n_bytes} bytes for '{entry['name']}'")
    if n_bytes:
        with open(entry["path"], "rb") as file:
            file.readinto(memoryview((ctypes.c_char * n_bytes).from_address(tensor.data_ptr())).cast("B"))
    return tensor
