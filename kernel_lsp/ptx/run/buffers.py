"""Map tensors as files into memory, and generic addresses to tensors."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernel_lsp.ptx.compile.native import store64
from kernel_lsp.ptx.run.layout import (
    ENTRY_BYTES,
    FIRST_BUFFER_WINDOW,
    FIRST_CLUSTER_WINDOW,
    GRID_WORKSPACE_WINDOW,
    INITIALISED,
    N_ACCESS_SIZES,
    N_WINDOWS,
    TABLE_BYTES,
    WRITTEN_SUFFIX,
    Entry,
    EntryFlag,
    first_buffer_window,
    window_base,
)

FILL_CHUNK_BYTES = 1 << 20

Role = Literal["input", "output", "scratch"]


@dataclass(frozen=True)
class BufferRequest:
    """Request a tensor of a run. `description` starts with its dtype: ``f32[8, 64]``. `offset_bytes` moves the address
    of its first element away from the middle of its window, which is perfectly aligned; it stays in the window.
    `is_initialised`: the content of an output or scratch tensor may be read. Inputs always may be."""

    name: str
    path: str
    n_bytes: int
    role: Role
    description: str
    offset_bytes: int = 0
    is_initialised: bool = False

    @property
    def dtype(self) -> str:
        return self.description.partition("[")[0].strip()


class Region:
    """Own host memory: anonymous, or a mapped file."""

    def __init__(self, n_bytes: int, mapped: mmap.mmap | None = None) -> None:
        self.n_bytes = n_bytes
        self.memory = mapped if mapped is not None else mmap.mmap(-1, max(n_bytes, 1))
        self._view = ctypes.c_char.from_buffer(self.memory)
        self.address = ctypes.addressof(self._view)

    def close(self) -> None:
        del self._view
        self.memory.close()


class Buffer:
    """Hold a tensor in memory, with one shadow byte per byte: bit 0 initialised, bit 1 written by a kernel."""

    def __init__(self, request: BufferRequest, window: int, *, keep_written: bool) -> None:
        self.request, self.window = request, window
        self.base = window_base(window) + request.offset_bytes
        self.data = _map_data(request)
        self.is_initialised = request.is_initialised or request.role == "input"
        self.shadow = _map_shadow(request, keep_written=keep_written)
        self.records = Region(0)

    @property
    def n_bytes(self) -> int:
        return self.request.n_bytes

    @property
    def is_read_only(self) -> bool:
        return self.request.role == "input"

    def fill(self, value: float) -> None:
        """Set every element."""
        pattern = encode(self.request.dtype, value)
        chunk = pattern * (FILL_CHUNK_BYTES // len(pattern))
        for start in range(0, self.n_bytes, FILL_CHUNK_BYTES):
            stop = min(start + FILL_CHUNK_BYTES, self.n_bytes)
            self.data.memory[start:stop] = chunk[: stop - start]
        if self.n_bytes:
            ctypes.memset(self.shadow.address, INITIALISED, self.n_bytes)
        self.is_initialised = True

    def look_whether_initialised(self) -> bool:
        """Update and return the flag that every byte is initialised."""
        if not self.is_initialised:
            self.is_initialised = self.n_bytes == 0 or self.shadow.memory.find(b"\0", 0, self.n_bytes) < 0
        return self.is_initialised

    def clean_records(self, n_bytes: int) -> int:
        """Clear the access records of the race check, and return their address."""
        self.records.close()
        self.records = Region(n_bytes)
        return self.records.address

    def close(self) -> None:
        self.data.close()
        self.shadow.close()
        self.records.close()


@contextlib.contextmanager
def open_buffers(
    requests: Sequence[BufferRequest], n_variables: int, *, keep_written: bool
) -> Iterator[dict[str, Buffer]]:
    """Open the buffers by name, behind the windows of `n_variables`, and unmap them at the end. With `keep_written`,
    the shadow of each output is the file ``path.written``. Raises OSError when a file cannot be mapped."""
    buffers: dict[str, Buffer] = {}
    first_window = first_buffer_window(len(requests), n_variables)
    if first_window + len(requests) > GRID_WORKSPACE_WINDOW:
        raise OSError(f"more than {GRID_WORKSPACE_WINDOW - FIRST_BUFFER_WINDOW} buffers")
    try:
        for index, request in enumerate(requests):
            buffers[request.name] = Buffer(request, first_window + index, keep_written=keep_written)
        yield buffers
    finally:
        for buffer in buffers.values():
            buffer.close()


class AddressTable:
    """Hold the address table of compiled kernels in two versions: a fast one, and one that traces every access."""

    def __init__(self) -> None:
        self._fast, self._traced = Region(TABLE_BYTES), Region(TABLE_BYTES)

    @property
    def fast_address(self) -> int:
        return self._fast.address

    @property
    def traced_address(self) -> int:
        return self._traced.address

    def set_buffer(self, buffer: Buffer, *, is_initialised: bool, records: int) -> None:
        """Describe a buffer. `records` is the address of its race records, or 0."""
        flags = int(EntryFlag.READ_ONLY) if buffer.is_read_only else 0
        flags |= 0 if is_initialised else EntryFlag.CHECK_INITIALISED
        data, shadow = buffer.data.address, buffer.shadow.address
        self.set(buffer.window, buffer.base, data, shadow, buffer.n_bytes, flags, records)

    def set(self, window: int, base: int, host: int, shadow: int, n_bytes: int, flags: int, records: int = 0) -> None:
        """Describe a window. Buffers are traced in the traced table.
        With `records`, every access takes the slow path."""
        flags |= EntryFlag.WATCHED if records else 0
        for table in (self._fast, self._traced):
            store64(table.address + window * ENTRY_BYTES + Entry.RECORDS, records)
        is_traced = window >= FIRST_BUFFER_WINDOW
        _write_entry(self._fast.address, window, (base, host, shadow, flags, n_bytes), is_fast=True)
        traced_flags = flags | (EntryFlag.TRACED if is_traced else 0)
        described = (base, host, shadow, int(traced_flags), n_bytes)
        _write_entry(self._traced.address, window, described, is_fast=not is_traced)

    def hide_cluster(self) -> None:
        """Unmap the shared memory of all blocks of a cluster."""
        n_bytes = (N_WINDOWS - FIRST_CLUSTER_WINDOW) * ENTRY_BYTES
        for table in (self._fast, self._traced):
            ctypes.memset(table.address + FIRST_CLUSTER_WINDOW * ENTRY_BYTES, 0, n_bytes)

    def close(self) -> None:
        self._fast.close()
        self._traced.close()


def encode(dtype: str, value: float) -> bytes:
    """Return the bytes of one element. Raises KeyError for an unknown dtype."""
    if dtype == "bf16":
        return _bfloat_bytes(value)
    code = _STRUCT_CODES[dtype]
    if code in "dfe":
        return struct.pack("<" + code, float(value))
    return struct.pack("<" + code, bool(value) if code == "?" else int(value))


_STRUCT_CODES = {
    "f64": "d",
    "f32": "f",
    "f16": "e",
    "i64": "q",
    "i32": "i",
    "i16": "h",
    "i8": "b",
    "u8": "B",
    "bool": "?",
}
"""Format characters of the standard library's `struct`, by dtype; bf16 has none."""


def _map_data(request: BufferRequest) -> Region:
    if request.n_bytes == 0:
        return Region(0)
    with Path(request.path).open("rb" if request.role == "input" else "r+b") as file:
        access = mmap.ACCESS_COPY if request.role == "input" else mmap.ACCESS_WRITE
        return Region(request.n_bytes, mmap.mmap(file.fileno(), request.n_bytes, access=access))


def _map_shadow(request: BufferRequest, *, keep_written: bool) -> Region:
    """Map the shadow of a tensor. Inputs need none: they are initialised, and stores to them are rejected."""
    if request.role == "input":
        return Region(0)
    if not (keep_written and request.role == "output"):
        return Region(request.n_bytes)
    # Keep the marks of an earlier run of the same plan if its results are kept.
    with Path(request.path + WRITTEN_SUFFIX).open("a+b") as file:
        if not request.is_initialised:
            file.truncate(0)
        file.truncate(request.n_bytes)
        if request.n_bytes == 0:
            return Region(0)
        return Region(request.n_bytes, mmap.mmap(file.fileno(), request.n_bytes))


def _write_entry(table: int, window: int, described: tuple[int, int, int, int, int], *, is_fast: bool) -> None:
    entry = table + window * ENTRY_BYTES
    base, host, shadow, flags, n_bytes = described
    store64(entry + Entry.BASE, base)
    store64(entry + Entry.HOST, host)
    store64(entry + Entry.SHADOW, shadow)
    store64(entry + Entry.FLAGS, flags)
    store64(entry + Entry.N_BYTES, n_bytes)
    can_read = is_fast and not flags & (EntryFlag.CHECK_INITIALISED | EntryFlag.WATCHED)
    can_write = is_fast and not flags & (EntryFlag.READ_ONLY | EntryFlag.WATCHED)
    for log2 in range(N_ACCESS_SIZES):
        limit = max(0, n_bytes - (1 << log2) + 1)
        store64(entry + Entry.READ_LIMITS + 8 * log2, limit if can_read else 0)
        store64(entry + Entry.WRITE_LIMITS + 8 * log2, limit if can_write else 0)


def _bfloat_bytes(value: float) -> bytes:
    try:
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
    except OverflowError:
        bits = 0x7F800000 if value > 0 else 0xFF800000
    if value != value:
        return b"\xff\x7f"
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF)
