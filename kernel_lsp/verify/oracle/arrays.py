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
"""The numpy type that stores each element type in a file. numpy has no bfloat16: its bits are kept."""
POISON_BYTE = 0xFF
"""Byte of the poison. Repeated, it is a NaN in every floating type, -1 in the signed ones and no bool."""
EXACT_POISON_BYTES = (POISON_BYTE, 0xA5, 0x5A)
"""Bytes for types without a value reserved for poison, in turn: one of them may be the answer, but not all."""
BF16_SHIFT = 16
"""A bfloat16 is the upper half of a float32."""


def map_array(path: Path, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Map the file's values as stored, read on access. Raises ValueError when the size does not fit."""
    n_bytes = math.prod(shape) * dtype.itemsize
    if path.stat().st_size != n_bytes:
        raise ValueError(f"{path} does not hold {n_bytes} bytes")
    if n_bytes == 0:
        return np.empty(shape, _STORAGE[dtype])
    return np.memmap(path, dtype=_STORAGE[dtype], mode="r").reshape(shape)


def map_mask(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Map the file's booleans, read on access. Raises ValueError when the size does not fit."""
    return map_array(path, DType.BOOL, shape).view(np.bool_)


def decode(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """Convert stored values to numbers: widens bfloat16 bits to float32, returns everything else unchanged."""
    if dtype is DType.BF16 and raw.dtype == np.uint16:
        return (raw.astype(np.uint32) << BF16_SHIFT).view(np.float32)
    return raw


def write_poison(path: Path, n_bytes: int, byte: int = POISON_BYTE) -> None:
    """Fill the file with `n_bytes` poisoned bytes, so that an element that is never written cannot pass by chance."""
    with path.open("wb") as file:
        file.write(bytes([byte]) * n_bytes)


def poisoned_elements(stored: np.ndarray, dtype: DType) -> np.ndarray:
    """Return the mask of stored elements that hold only poison: in a floating type, a NaN that no arithmetic makes."""
    bits = np.ascontiguousarray(stored).view(f"u{dtype.itemsize}")
    return bits == np.iinfo(bits.dtype).max
