"""Describe the user's interpreter."""

from __future__ import annotations

import platform
import sys
from typing import Any


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
