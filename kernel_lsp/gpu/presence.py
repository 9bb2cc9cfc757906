"""Whether this machine has an NVIDIA GPU, by its device files: no driver is loaded and no program is run for it."""

from __future__ import annotations

from pathlib import Path

DEVICE_FOLDER = Path("/dev")
DEVICE_PATTERNS = ("nvidia[0-9]*", "dxg")
"""The driver's own, and that of Windows' GPUs under WSL."""


def has_gpu(folder: Path = DEVICE_FOLDER) -> bool:
    """Whether there is one to try. That it works is known when something has run on it."""
    return any(next(folder.glob(pattern), None) is not None for pattern in DEVICE_PATTERNS)
