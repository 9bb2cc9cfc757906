"""The command `warm_up`: run once, before there is a candidate, what every candidate's first case does.

PyTorch loads each of its kernels at first use and pins memory at the first such copy, and the driver creates its pools.
Inputs and first runs of a first verdict's 22 cases took 0.17 s on one H200, 2026-11-21, those of a later one 0.02 s;
reading the inputs is part of the difference.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from ..files import LARGE_BYTES, place_of, read_tensor, write_tensor
from . import device as gpu_device
from . import run as gpu_run

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
