"""Bytes between large tensors and files, in pieces and by several threads: the kernel copies a page at a time, and new
pages cost as much as copying does (64 million floats took 0.22 s to write and 0.18 s to read on one core).

A GPU's bytes go through pinned memory, from where its copy engine takes them at the full rate of the bus.
"""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor

import torch

PIECE_BYTES = 16 << 20
N_THREADS = max(1, min(8, os.cpu_count() or 1))
"""Of one transfer: a few fill the memory's bus."""


def write_bytes(descriptor: int, raw: torch.Tensor) -> None:
    """Write a contiguous tensor of uint8, on the CPU or a GPU, from the file's start. Raises OSError."""
    buffers = _buffers(raw)
    with ThreadPoolExecutor(N_THREADS) as pool:  # its threads end with it: a process that is watched keeps none
        for batch in _batches(raw):
            held = [_on_host(piece, buffer) for (_, piece), buffer in zip(batch, buffers)]
            places = [(start, piece) for (start, _), piece in zip(batch, held)]
            list(pool.map(lambda place: _write(descriptor, *place), places))  # raises what a thread raised


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


# --- below: pieces


def _batches(raw: torch.Tensor) -> list[list[tuple[int, torch.Tensor]]]:
    """Pieces with their places, as many at a time as there are threads."""
    pieces = [(start, raw[start : start + PIECE_BYTES]) for start in range(0, raw.numel(), PIECE_BYTES)]
    return [pieces[first : first + N_THREADS] for first in range(0, len(pieces), N_THREADS)]


def _buffers(raw: torch.Tensor) -> list[torch.Tensor]:
    """Memory to go through; pinned for a GPU, where that can be had. PyTorch keeps pinned memory for the next time."""
    if not raw.is_cuda:
        return [raw[:0]] * N_THREADS
    try:
        return [torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(N_THREADS)]
    except RuntimeError:  # e.g. a limit on locked memory
        return [torch.empty(PIECE_BYTES, dtype=torch.uint8) for _ in range(N_THREADS)]


def _on_host(piece: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    return buffer[: piece.numel()].copy_(piece) if piece.is_cuda else piece


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
    """The tensor's own bytes; it must live as long as they are used."""
    return memoryview((ctypes.c_char * piece.numel()).from_address(piece.data_ptr())).cast("B")
