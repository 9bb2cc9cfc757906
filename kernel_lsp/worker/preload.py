"""The command `prepare_capture`: import everything that a first capture and its first case need. The client sends it
while it still imports its own modules."""

from __future__ import annotations

import contextlib
from typing import Any

import torch._dynamo  # by `torch.export`, at its first use

from .capture import capture, task  # noqa: F401 (to have them imported)
from .cases import cases  # noqa: F401 (to have them imported)

with contextlib.suppress(ImportError):  # a private name of torch's: without it torch imports the module on demand
    import torch.export._trace  # noqa: F401 (to have it imported)


def prepare_capture(_: dict[str, Any]) -> dict[str, Any]:
    """Return ``{}``; importing is the work."""
    return {}
