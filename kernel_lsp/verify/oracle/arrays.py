"""Tensors as raw little-endian files, and as numpy arrays."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from kernel_lsp.core.dtype import DType

_STORAGE: dict[DType, type[np.generic]] = {
    DType.F64: np.float64,
    DType.F32: np.float32,
    DType.F16: np.float16,
    DType.BF16: np.uint16,
    DType.I64: np.int64,
    DType.I32: np.int32,
    DType.I16: np.int16,
    DType.I8: np.int8,
    DType.U8: np.uint8,
    DType.BOOL: np.uint8,
}
"""How each element type lies in a file. numpy has no bfloat16: its bits are kept."""
POISON_BYTE = 0xFF
"""Repeated, it is a NaN in every floating type, -1 in the signed ones and no bool."""
EXACT_POISON_BYTES = (POISON_BYTE, 0xA5, 0x5A)
"""For types that have no value of their own for it, in turn: one of them may be the answer, but not all."""
BF16_SHIFT = 16
"""A bfloat16 is the upper half of a float32."""


def read_array(path: Path, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """The file's values. bfloat16 comes as float32. Raises ValueError when the size does not fit the shape."""
    raw = np.fromfile(path, dtype=_STORAGE[dtype])
    return decode(raw, dtype).reshape(shape)


def map_array(path: Path, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """The file's values as stored, read as they are looked at. Raises ValueError when the size does not fit."""
    n_bytes = math.prod(shape) * dtype.itemsize
    if path.stat().st_size != n_bytes:
        raise ValueError(f"{path} does not hold {n_bytes} bytes")
    if n_bytes == 0:
        return np.empty(shape, _STORAGE[dtype])
    return np.memmap(path, dtype=_STORAGE[dtype], mode="r").reshape(shape)


def map_mask(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Return the file's truth values, read as they are looked at. Raises ValueError when the size does not fit."""
    return map_array(path, DType.BOOL, shape).view(np.bool_)


def decode(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """Stored values as numbers: bfloat16 bits widened to float32, everything else as it is."""
    if dtype is DType.BF16 and raw.dtype == np.uint16:
        return (raw.astype(np.uint32) << BF16_SHIFT).view(np.float32)
    return raw


def write_poison(path: Path, n_bytes: int, byte: int = POISON_BYTE) -> None:
    """Make the file hold `n_bytes` poisoned bytes, so that an element nobody wrote is never right by luck."""
    with path.open("wb") as file:
        file.write(bytes([byte]) * n_bytes)


def poisoned_elements(stored: np.ndarray, dtype: DType) -> np.ndarray:
    """Which stored elements still hold nothing but poison: in a floating type, a NaN that no arithmetic makes."""
    bits = np.ascontiguousarray(stored).view(f"u{dtype.itemsize}")
    return bits == np.iinfo(bits.dtype).max
