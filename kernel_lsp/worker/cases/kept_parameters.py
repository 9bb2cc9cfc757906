"""Keep what is slow to make of large parameters: their values with noise, their file, and a copy on a GPU.

A linear layer of 32768 x 32768 has 4 GiB of weights in each of 40 cases: drawing, writing and transferring them took
some 8 s a case. Smaller parameters have noise of their own in each case.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import torch

from ..files import place_of, write_tensor
from .families import near_own_values, own_generator

LARGE_BYTES = 256 << 20
"""Bytes of a parameter from which all cases of a capture have the same noise."""
SHARE_OF_DEVICE = 16
"""Divisor of a GPU's memory: that share may hold copies."""


@dataclass
class _Kept:
    """A parameter's values, and their version: code of the user's may write into a tensor."""

    value: torch.Tensor
    version: int
    entry: dict[str, Any] | None = None
    copy: torch.Tensor | None = None
    copy_version: int = 0


@dataclass
class KeptParameters:
    """The large parameters of one capture, by name."""

    by_name: dict[str, _Kept] = field(default_factory=dict)

    def near(self, name: str, own: torch.Tensor, seed: int) -> torch.Tensor:
        """Return a parameter near its own values: the same in all cases where it is large."""
        if own.numel() * own.element_size() < LARGE_BYTES:
            return near_own_values(own, own_generator(seed, "state", name))
        kept = self.by_name.get(name)
        if kept is None or kept.value._version != kept.version or kept.value.shape != own.shape:
            value = near_own_values(own, own_generator(0, "state", name))
            kept = self.by_name[name] = _Kept(value, value._version)
        return kept.value

    def on(self, value: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a tensor on a device; the copy of a large parameter is kept there."""
        kept = self._of(value)
        if kept is None or device.type != "cuda" or not self._may_stay(device):
            return value.to(device)
        if kept.copy is None or kept.copy.device != device or kept.copy._version != kept.copy_version:
            kept.copy = None
            kept.copy = value.to(device)
            kept.copy_version = kept.copy._version
        return kept.copy

    def write(self, path: str, name: str, value: torch.Tensor) -> dict[str, Any]:
        """Write a tensor and return its entry of the answer; a large parameter has one file."""
        kept = self._of(value)
        if kept is None:
            return write_tensor(path, name, value)
        if kept.entry is None or not os.path.exists(place_of(kept.entry["path"])):
            kept.entry = write_tensor(path, name, value)
        return {**kept.entry, "name": name}

    def _of(self, value: torch.Tensor) -> _Kept | None:
        found = (kept for kept in self.by_name.values() if kept.value is value and value._version == kept.version)
        return next(found, None)

    def _may_stay(self, device: torch.device) -> bool:
        n_bytes = sum(kept.value.numel() * kept.value.element_size() for kept in self.by_name.values())
        return n_bytes * SHARE_OF_DEVICE <= torch.cuda.get_device_properties(device).total_memory
