"""Case inputs on a device, kept between candidates, and never believed: their fingerprint is taken before each use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import gpu_device
from .files import read_tensor
from .gpu_run import fingerprint, on

SHARE_OF_DEVICE = 8
"""One part in so many of the device's memory may hold inputs."""


@dataclass(frozen=True)
class _Kept:
    tensor: torch.Tensor
    fingerprint: int
    n_bytes: int


class DeviceInputs:
    """Tensors of files by path, the longest unused let go first. Candidates get copies."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._max_bytes = gpu_device.total_bytes(device) // SHARE_OF_DEVICE
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def get(self, entries: Sequence[dict[str, Any]]) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
        """The tensors of the entries by name, and their fingerprints."""
        kept = {entry["name"]: self._one(entry) for entry in entries}
        return {n: one.tensor for n, one in kept.items()}, {n: one.fingerprint for n, one in kept.items()}

    def clear(self) -> None:
        """Let all go."""
        self._kept.clear()

    def _one(self, entry: dict[str, Any]) -> _Kept:
        path = entry["path"]
        kept = self._kept.pop(path, None)
        if kept is None or fingerprint(kept.tensor) != kept.fingerprint:  # a kernel may have written anywhere
            tensor = read_tensor(entry, on(self._device))
            kept = _Kept(tensor, fingerprint(tensor), tensor.numel() * tensor.element_size())
        self._kept[path] = kept
        while sum(one.n_bytes for one in self._kept.values()) > self._max_bytes and len(self._kept) > 1:
            self._kept.popitem(last=False)
        return kept


def inputs_on(device: int) -> DeviceInputs:
    """Those of this process."""
    if device not in _INPUTS:
        _INPUTS[device] = DeviceInputs(device)
    return _INPUTS[device]


_INPUTS: dict[int, DeviceInputs] = {}
