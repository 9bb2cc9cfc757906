"""Count the threads of a foreign kernel's process: the command `start_pools`, and later counts.

PyTorch's own pools are started before the kernel is loaded, so that later threads are the candidate's.
"""

from __future__ import annotations

import os
from typing import Any

import torch

PARALLEL_ELEMENTS = 1 << 20
"""Elements far above the grain at which ATen uses its pool (32768 elements, at::internal::GRAIN_SIZE)."""
DRIVER_NAMES = ("cuda", "pt_autograd")
"""Name prefixes of threads of the CUDA driver, and of autograd's for one device: on a GPU they start at first use."""


def start_pools(request: dict[str, Any]) -> dict[str, Any]:
    """Start the threads that PyTorch starts once: ``{"device"}``. Answers ``{"status": "started", "n_threads"}``."""
    device = torch.device("cpu") if request["device"] == "cpu" else torch.device("cuda", int(request["device"]))
    large = torch.ones(PARALLEL_ELEMENTS)
    (large + large).sum()
    square = torch.ones(64, 64, device=device, requires_grad=True)
    (square @ square).sum().backward()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return {"status": "started", "n_threads": n_threads()}


def n_threads() -> int:
    """Return the number of threads of this process, without the driver's on a machine with a GPU; 0 where the system
    does not tell."""
    try:
        tasks = os.listdir("/proc/self/task")
    except OSError:
        return 0
    return sum(not (torch.cuda.is_available() and _name(task).startswith(DRIVER_NAMES)) for task in tasks)


def _name(task: str) -> str:
    """Return the name of a thread; empty for one that ended meanwhile."""
    try:
        with open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
