"""How many threads a foreign kernel's process has: the command `start_pools`, and the count later.

PyTorch's own pools are started before the kernel is loaded, so that threads that come later are the candidate's.
"""

from __future__ import annotations

import os
from typing import Any

import torch

PARALLEL_ELEMENTS = 1 << 20
"""Far above the grain at which ATen gives work to its pool (32768 elements, at::internal::GRAIN_SIZE)."""
DRIVER_NAMES = ("cuda", "pt_autograd")
"""Of the CUDA driver's threads, and of autograd's for one device: on a GPU they come when they are first needed."""


def start_pools(request: dict[str, Any]) -> dict[str, Any]:
    """``{"device"}``: have PyTorch start what it starts once. Answers ``{"status": "started", "n_threads"}``."""
    device = torch.device("cpu") if request["device"] == "cpu" else torch.device("cuda", int(request["device"]))
    large = torch.ones(PARALLEL_ELEMENTS)
    (large + large).sum()
    square = torch.ones(64, 64, device=device, requires_grad=True)
    (square @ square).sum().backward()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return {"status": "started", "n_threads": n_threads()}


def n_threads() -> int:
    """Of this process, without the driver's on a machine with a GPU; 0 where the system does not say."""
    try:
        tasks = os.listdir("/proc/self/task")
    except OSError:
        return 0
    return sum(not (torch.cuda.is_available() and _name(task).startswith(DRIVER_NAMES)) for task in tasks)


def _name(task: str) -> str:
    """Empty for a thread that ended meanwhile."""
    try:
        with open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
