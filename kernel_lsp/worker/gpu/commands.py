"""The worker's commands for a CUDA device: open it, load a candidate, check it, unload it.

Verdicts are reached elsewhere: here outputs are poisoned, computed and copied out. An operation is the JSON of
`kernel_lsp.core.plan.BoundOperation`; tensors in files are the entries of `files`. Commands for times are in
`timing`.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from ..files import LARGE_BYTES, place_of, read_tensor, write_tensor
from ..gpu import device as gpu_device
from ..gpu import run as gpu_run
from .check import forget, handle_check, handle_recheck
from .device import open_device
from .load import LOADED, handle_load, unload

ELEMENTS = LARGE_BYTES // 4
"""Elements of float32, enough to be copied as large tensors are."""
OPERATION = {
    "name": "warm_up",
    "tensors": [
        {"name": "x", "role": "input", "dtype": "f32", "shape": [ELEMENTS]},
        {"name": "out", "role": "output", "dtype": "f32", "shape": [ELEMENTS]},
    ],
    "steps": [],
}


def warm_up(request: dict[str, Any]) -> dict[str, Any]:
    """Copy a tensor to the file at `path` and back, make buffers with guards and poison, and read them: ``{"device",
    "path"}``. Leaves no file. Answers ``{"status": "warm"}``."""
    device, path = gpu_device.device_index(request), request["path"]
    with gpu_device.on_device(device), torch.no_grad():
        where = gpu_run.on(device)
        try:
            entry = write_tensor(path, "x", torch.zeros(ELEMENTS, device=where))
            inputs = {"x": read_tensor(entry, where)}
        finally:
            if os.path.exists(place_of(path)):
                os.remove(place_of(path))
        _look_at(gpu_run.BoundRun(gpu_run.Candidate({}, device), OPERATION, inputs))
        gpu_device.synchronize(device)
    return {"status": "warm"}


def _look_at(run: gpu_run.BoundRun) -> None:
    run()
    other = run.fresh()
    other.poison(gpu_run.OTHER_POISON_BYTE)
    for each in (run, other):
        each.output_fingerprints()
        each.changed_inputs({"x": 0})
        each.overrun()


__all__ = ["COMMANDS", "LOADED"]


def handle_unload(request: dict[str, Any]) -> dict[str, Any]:
    """Unload a candidate and its buffers: ``{"candidate"}``. Answers ``{"unloaded"}``: whether it was loaded."""
    forget(request["candidate"])
    return {"unloaded": unload(request["candidate"])}


COMMANDS = {
    "open_device": open_device,
    "warm_up": warm_up,
    "load": handle_load,
    "unload": handle_unload,
    "check": handle_check,
    "recheck": handle_recheck,
}
