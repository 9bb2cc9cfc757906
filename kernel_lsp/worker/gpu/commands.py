"""The worker's commands for a CUDA device: open it, load a candidate, check it, let it go.

Verdicts are reached elsewhere: here outputs are poisoned, computed and copied out. An operation is the JSON of
`kernel_lsp.core.plan.BoundOperation`; tensors in files are the entries of `files`. Times are `timing`'s.
"""

from __future__ import annotations

from typing import Any

from .check import forget, handle_check, handle_recheck
from .device import open_device
from .load import LOADED, handle_load, unload
from .warm import warm_up

__all__ = ["COMMANDS", "LOADED"]


def handle_unload(request: dict[str, Any]) -> dict[str, Any]:
    """``{"candidate"}``: forget it and what it ran on. Answers ``{"unloaded"}``: whether it was there."""
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
