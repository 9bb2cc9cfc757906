"""The command `open_context`: create a GPU's context and load its first kernels, in a thread, while this process
imports the rest.

References of large cases are made on that GPU. The driver needs about 0.5 s for the context. It loads each kernel at
its first call, which takes 0.35 s more for the first reference (H200, torch 2.11), most of it without Python's lock.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch

from ..files import reserve
from ..oracle.roundings import is_plain, rounding


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
