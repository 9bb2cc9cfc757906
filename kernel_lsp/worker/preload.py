"""The command `prepare_capture`: import everything that a first capture and its first case need. The client sends it
while it still imports its own modules.

Describe the user's interpreter.
"""

from __future__ import annotations

import contextlib
import platform
import sys
from typing import Any

import torch._dynamo  # by `torch.export`, at its first use

from .cases import cases  # noqa: F401 (to have them imported)

with contextlib.suppress(ImportError):  # a private name of torch's: without it torch imports the module on demand
    import torch.export._trace  # noqa: F401 (to have it imported)


def prepare_capture(_: dict[str, Any]) -> dict[str, Any]:
    """Return ``{}``; importing is the work."""
    return {}


def describe(request: dict[str, Any]) -> dict[str, Any]:
    """Return versions and devices."""
    import torch

    has_cuda = torch.cuda.is_available()
    return {
        "python": sys.executable,
        "python_version": platform.python_version(),
        "torch_version": torch.__version__,
        "cuda_version": torch.version.cuda,
        "has_cuda": has_cuda,
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if has_cuda else [],
    }
