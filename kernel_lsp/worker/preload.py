"""The command `prepare_capture`: everything that a first capture and its first case import. It is asked while the
command that wants a capture still imports its own modules."""

from __future__ import annotations

import contextlib
from typing import Any

import torch._dynamo  # by `torch.export`, at its first use

from .capture import capture, task  # noqa: F401 (to have them imported)
from .cases import cases  # noqa: F401 (to have them imported)

with contextlib.suppress(ImportError):  # a private name of torch's, which then imports it when it is needed
    import torch.export._trace  # noqa: F401 (to have it imported)


def prepare_capture(_: dict[str, Any]) -> dict[str, Any]:
    """Answers ``{}``: importing this module was all."""
    return {}
