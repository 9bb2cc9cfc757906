"""Tensors in files: raw, little-endian, row-major, no header, with their element types in torch's names and the plan's.
Works without numpy, as torch does.

Large ones are copied in pieces and by several threads. The kernel copies a page at a time, and new pages cost as much
as copying does (64 million floats took 0.22 s to write and 0.18 s to read on one core). A GPU's bytes go through pinned
memory, from where its copy engine takes them at the full rate of the bus.

Linux lets one thread at a time write to a file, while all threads may fill a mapping of it, where each page costs more.
In memory 64 million floats took 0.09 s, and 0.06 s over old pages, for any number of writing threads. Through a mapping
they took 0.19 and 0.13 s by one thread, 0.05 and 0.03 s by eight (16 cores of a virtual machine, Linux 6.18).
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from .failure import EnvironmentFailure, Failure, ScratchFailure, TargetFailure
from .large_random import describe, described_seed, uniform

PLAN_NAMES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}
_BY_PLAN_NAME = {name: dtype for dtype, name in PLAN_NAMES.items()}


def torch_dtype(plan_name: str) -> torch.dtype:
    """Return the torch dtype of a plan's name."""
    return _BY_PLAN_NAME[plan_name]


def plan_dtype(dtype: torch.dtype, what: str, file: str | None, line: int | None) -> str:
    """Return the plan's name of a dtype. Raises TargetFailure for a dtype without one, with `what` as its subject."""
    if dtype in PLAN_NAMES:
        return PLAN_NAMES[dtype]
    known = ", ".join(str(known).replace("torch.", "") for known in PLAN_NAMES)
    kind = "complex" if dtype.is_complex else str(dtype).replace("torch.", "")
    raise TargetFailure(
        f"{what} is {kind}, which kernels here cannot hold", file=file, line=line, next_step=f"use one of: {known}"
    )


PIECE_BYTES = 16 << 20
N_THREADS = max(1, min(8, os.cpu_count() or 1))
"""Threads of one transfer: a few saturate the memory bus."""
MAPPING_THREADS = 4
"""Threads from which a mapping is faster than writing."""


def write_bytes(descriptor: int, raw: torch.Tensor) -> None:
    """Write a contiguous tensor of uint8, on the CPU or a GPU, from the start of a file that is also readable. Raises
    OSError."""
    buffers = _buffers(raw)
    write = _mapped(descriptor, raw.numel()) if N_THREADS >= MAPPING_THREADS else partial(_write, descriptor)
    with ThreadPoolExecutor(N_THREADS) as pool:  # its threads end with it: the number of threads is checked elsewhere
        for batch in _batches(raw):
            held = [_on_host(piece, buffer) for (_, piece), buffer in zip(batch, buffers)]
            places = [(start, piece) for (start, _), piece in zip(batch, held)]
            list(pool.map(lambda place: write(*place), places))  # raises what a thread raised


def read_bytes(descriptor: int, raw: torch.Tensor) -> None:
    """Fill a contiguous tensor of uint8 from the file's start. Raises OSError; EOFError where the file is too short."""
    buffers = _buffers(raw)
    with ThreadPoolExecutor(N_THREADS) as pool:
        for batch in _batches(raw):
            held = [buffer[: len(piece)] if raw.is_cuda else piece for (_, piece), buffer in zip(batch, buffers)]
            places = [(start, piece) for (start, _), piece in zip(batch, held)]
            list(pool.map(lambda place: _read(descriptor, *place), places))
            for (_, piece), read in zip(batch, held):
                if raw.is_cuda:
                    piece.copy_(read)


def reserve(device: torch.device) -> None:
    """Allocate the staging memory of this device's transfers ahead: pinning takes a moment."""
    _buffers(torch.empty(1, dtype=torch.uint8, device=device))


def _batches(raw: torch.Tensor) -> list[list[tuple[int, torch.Tensor]]]:
    """Return the pieces with their positions, in batches of one per thread."""
    pieces = [(start, raw[start : start + PIECE_BYTES]) for start in range(0, raw.numel(), PIECE_BYTES)]
    return [pieces[first : first + N_THREADS] for first in range(0, len(pieces), N_THREADS)]


def _buffers(raw: torch.Tensor) -> list[torch.Tensor]:
    """Return the staging memory, pinned for a GPU where possible. PyTorch caches pinned memory."""
    if not raw.is_cuda:
        return [raw[:0]] * N_THREADS
    try:
        return [torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(N_THREADS)]
    except RuntimeError:  # e.g. a limit on locked memory
        return [torch.empty(PIECE_BYTES, dtype=torch.uint8) for _ in range(N_THREADS)]


def _on_host(piece: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    return buffer[: piece.numel()].copy_(piece) if piece.is_cuda else piece


def _mapped(descriptor: int, n_bytes: int) -> Callable[[int, torch.Tensor], object]:
    """Return a function that copies pieces into a mapping. All pages are allocated ahead: a missing one would kill this
    process instead of raising OSError."""
    os.posix_fallocate(descriptor, 0, n_bytes)
    first = ctypes.c_char.from_buffer(mmap.mmap(descriptor, n_bytes))
    return lambda start, piece: ctypes.memmove(ctypes.addressof(first) + start, piece.data_ptr(), piece.numel())


def _write(descriptor: int, start: int, piece: torch.Tensor) -> None:
    view, done = _memory(piece), 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], start + done)


def _read(descriptor: int, start: int, piece: torch.Tensor) -> None:
    view, done = _memory(piece), 0
    while done < len(view):
        n_read = os.preadv(descriptor, [view[done:]], start + done)
        if n_read == 0:
            raise EOFError("the file is shorter than its tensor")
        done += n_read


def _memory(piece: torch.Tensor) -> memoryview:
    """Return a view of the tensor's bytes. The tensor must outlive it."""
    return memoryview((ctypes.c_char * piece.numel()).from_address(piece.data_ptr())).cast("B")


DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


FILES_FOLDER = os.environ.get("KERNEL_LSP_FILES", "")
"""Folder of the files that requests name; empty where they are on the engine's own machine."""
LARGE_BYTES = 4 << 20
"""Bytes from which several threads copy."""
CPU = torch.device("cpu")


def device_of(number: int | str | None) -> torch.device:
    """Return the GPU of this number; the CPU for ``cpu`` and for None. Only a GPU has an index."""
    return CPU if number in (None, "cpu") else torch.device("cuda", int(number))


def write_tensor(path: str, name: str, tensor: torch.Tensor) -> dict[str, Any]:
    """Write the tensor's bytes and return its entry of the answer. Raises EnvironmentFailure when the disk refuses."""
    tensor, place = tensor.detach().contiguous(), place_of(path)
    try:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        # Not truncated: the pages of an existing file are reused.
        with os.fdopen(os.open(place, os.O_RDWR | os.O_CREAT, 0o666), "wb") as file:
            if tensor.nbytes >= LARGE_BYTES:
                write_bytes(file.fileno(), _raw(tensor))
            elif tensor.nbytes:
                tensor = tensor.cpu()
                file.write(memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())))
                file.flush()
            os.ftruncate(file.fileno(), tensor.nbytes)
    except OSError as error:
        raise _cannot_write(error, path) from None
    return {"name": name, "path": path, "dtype": PLAN_NAMES[tensor.dtype], "shape": list(tensor.shape)}


def write_description(path: str, name: str, tensor: torch.Tensor, seed: int) -> dict[str, Any]:
    """Describe a tensor of `large_random.uniform` in a file that `read_tensor` makes it from, and return its entry.
    Raises EnvironmentFailure as `write_tensor`."""
    try:
        describe(place_of(path), seed)
    except OSError as error:
        raise _cannot_write(error, path) from None
    return {"name": name, "path": path, "dtype": PLAN_NAMES[tensor.dtype], "shape": list(tensor.shape)}


def _cannot_write(error: OSError, path: str) -> EnvironmentFailure:
    kind = ScratchFailure if error.errno in DISK_FULL else EnvironmentFailure
    return kind(f"cannot write test data ({error.strerror})", file=path, next_step="free some space there")


def read_tensor(entry: dict[str, Any], device: torch.device = CPU) -> torch.Tensor:
    """Read the tensor of an entry with ``path``, ``dtype`` and ``shape`` onto a device. Raises Failure for a wrong
    size."""
    n_bytes, place = math.prod(entry["shape"]) * torch_dtype(entry["dtype"]).itemsize, place_of(entry["path"])
    if os.path.getsize(place) != n_bytes:
        if (seed := described_seed(place)) is not None:
            return uniform(entry["shape"], seed, device)
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
