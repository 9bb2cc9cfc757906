"""Detect an NVIDIA GPU by its device files, without loading a driver or running a program."""

from __future__ import annotations

from pathlib import Path

DEVICE_FOLDER = Path("/dev")
DEVICE_PATTERNS = ("nvidia[0-9]*", "dxg")
"""Device files of the driver, and of Windows GPUs under WSL."""


def has_gpu(folder: Path = DEVICE_FOLDER) -> bool:
    """Return True when a GPU device file exists. Only running something shows that the GPU works."""
    return any(next(folder.glob(pattern), None) is not None for pattern in DEVICE_PATTERNS)
