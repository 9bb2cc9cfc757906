"""Keep case inputs on a device between candidates, and verify their fingerprint before each use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..files import read_tensor
from . import device as gpu_device
from .fingerprints import fingerprints
from .run import on

SHARE_OF_DEVICE = 8
"""Divisor of the device's memory: that share may hold inputs."""
SHARE_OF_RUN, LEAST_RUN_BYTES = 16, 4 << 30
"""Divisor of the device's memory, and bytes where that is less, up to which one run's buffers leave room for kept
inputs beside a second run and PyTorch's own. Reading 4 GiB again took 0.9 s of each case."""


@dataclass(frozen=True)
class _Kept:
    tensor: torch.Tensor
    fingerprint: int
    n_bytes: int


class DeviceInputs:
    """Tensors of files by path; the least recently used are freed first. Candidates get copies."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._max_bytes = gpu_device.total_bytes(device) // SHARE_OF_DEVICE
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def get(self, entries: Sequence[dict[str, Any]]) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
        """Return the tensors of the entries by name, and their fingerprints."""
        self._forget_changed([entry["path"] for entry in entries])
        self._read([entry for entry in entries if entry["path"] not in self._kept])
        found = {entry["name"]: self._used(entry["path"]) for entry in entries}
        self._let_go()
        return {n: one.tensor for n, one in found.items()}, {n: one.fingerprint for n, one in found.items()}

    def may_stay_beside(self, n_bytes: int) -> bool:
        """Check whether inputs stay on the device beside runs with buffers of so many bytes."""
        return n_bytes <= max(LEAST_RUN_BYTES, gpu_device.total_bytes(self._device) // SHARE_OF_RUN)

    def clear(self) -> None:
        """Free all."""
        self._kept.clear()

    def _forget_changed(self, paths: Sequence[str]) -> None:
        """Drop changed tensors: a kernel may have written anywhere."""
        kept = {path: self._kept[path] for path in paths if path in self._kept}
        now = fingerprints({path: one.tensor for path, one in kept.items()})
        for path, one in kept.items():
            if now[path] != one.fingerprint:
                del self._kept[path]

    def _read(self, entries: Sequence[dict[str, Any]]) -> None:
        tensors = {entry["path"]: read_tensor(entry, on(self._device)) for entry in entries}
        for path, number in fingerprints(tensors).items():
            n_bytes = tensors[path].numel() * tensors[path].element_size()
            self._kept[path] = _Kept(tensors[path], number, n_bytes)

    def _used(self, path: str) -> _Kept:
        self._kept.move_to_end(path)
        return self._kept[path]

    def _let_go(self) -> None:
        """Free the least recently used tensors beyond the limit."""
        while sum(one.n_bytes for one in self._kept.values()) > self._max_bytes and len(self._kept) > 1:
            self._kept.popitem(last=False)


def inputs_on(device: int) -> DeviceInputs:
    """Return the inputs of this process."""
    if device not in _INPUTS:
        _INPUTS[device] = DeviceInputs(device)
    return _INPUTS[device]


_INPUTS: dict[int, DeviceInputs] = {}
