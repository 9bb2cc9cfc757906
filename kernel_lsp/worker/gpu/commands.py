"""The worker's commands for a CUDA device: open it, load a candidate, check it, unload it.

Verdicts are reached elsewhere: here outputs are poisoned, computed and copied out. An operation is the JSON of
`kernel_lsp.core.plan.BoundOperation`; tensors in files are the entries of `files`. Commands for times are in
`timing`.
"""

from __future__ import annotations

from typing import Any

from .check import forget, handle_check, handle_recheck
from .device import open_device
from .load import LOADED, handle_load, unload
from .warm import warm_up

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
