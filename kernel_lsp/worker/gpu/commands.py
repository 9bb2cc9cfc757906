"""The worker's commands for a CUDA device: create its context ahead, open it, load a candidate, check it, unload it.

Verdicts are reached elsewhere: here outputs are poisoned, computed and copied out. An operation is the JSON of
`kernel_lsp.core.plan.BoundOperation`; tensors in files are the entries of `files`. Commands for times are in
`timing`.

References of large cases are made on that GPU. The driver needs about 0.5 s for the context. It loads each kernel at
its first call, which takes 0.35 s more for the first reference (H200, torch 2.11), most of it without Python's lock.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

import torch

from ..files import LARGE_BYTES, place_of, read_tensor, write_tensor
from ..gpu import device as gpu_device
from ..gpu import run as gpu_run
from ..oracle.roundings import is_plain, rounding
from ..transfer import reserve
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


def open_context(request: dict[str, Any]) -> dict[str, Any]:
    """Open the context of ``{"device": number}``. Answers at once; errors are reported to the first user of the GPU."""
    threading.Thread(target=_open, args=(int(request["device"]),), daemon=True).start()
    return {}


def _open(number: int) -> None:
    with contextlib.suppress(RuntimeError, AssertionError):  # no driver, GPU or memory: reported when it is needed
        call_first(torch.device("cuda", number))


def call_first(device: torch.device) -> None:
    """Call on a few elements the operations that every reference and much code use."""
    reserve(device)
    wide = torch.ones(4, 4, device=device, dtype=torch.float64)
    narrow = wide.float()
    for ones in (narrow, wide):
        leaf = ones.clone().requires_grad_()
        scaled = leaf * torch.rsqrt((leaf * leaf).mean(-1, keepdim=True) + 1e-6)
        torch.autograd.grad([scaled - leaf.exp() / leaf.sum(-1, keepdim=True)], [leaf], [ones])
        torch.isnan(ones).any().item()
    rounding(wide, narrow, wide)
    is_plain(wide, narrow)
    generator = torch.Generator(device).manual_seed(0)
    signs = torch.randint(0, 2, (4, 4), generator=generator, device=device)
    bool(((signs * 2 - 1).double() == wide).all())
