"""The command `open_context`: a GPU's context and its first kernels, in a thread, while this process imports the rest.

References of large cases are made there. The driver needs about half a second, most of it without Python's lock.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch


def open_context(request: dict[str, Any]) -> dict[str, Any]:
    """``{"device": number}``. Answers at once; whoever needs the GPU first finds out what is wrong with it."""
    threading.Thread(target=_open, args=(int(request["device"]),), daemon=True).start()
    return {}


def _open(number: int) -> None:
    with contextlib.suppress(RuntimeError, AssertionError):  # no driver, no such GPU, no memory: told when it is needed
        ones = torch.ones(8, device=torch.device("cuda", number), dtype=torch.float64)
        (ones * ones).sum().item()
