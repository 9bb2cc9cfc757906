"""Instructions that one architecture alone has (`wgmma`, `setmaxnreg`, `tcgen05`).

Code for `sm_90a`, which runs on that GPU and on no later one, may use them, and code for `sm_90` may not. There is such
code from compute capability 9.0 on (CUDA C++ Programming Guide, architecture-specific features).

The operator that users keep decides as this does (`worker/shipped/cuda_runtime.py`)."""

from __future__ import annotations

import re

FIRST_WITH_OWN = 90
_PLAIN = re.compile(r"sm_(?P<number>\d{2,3})")
_ASKS = re.compile(r"\b__CUDA_ARCH_(?:FEAT_SM\d+_ALL|SPECIFIC__|FAMILY_SPECIFIC__)")
_INSTRUCTIONS = re.compile(r"\b(?:wgmma|setmaxnreg|tcgen05)\b")
_REFUSED = re.compile(r"not supported on \.target|cannot be compiled for architecture|requires \.target")
"""What ptxas says of such an instruction."""


def own_architecture(architecture: str) -> str:
    """``sm_90a`` for ``sm_90``; nothing where there is none, or where it is one already."""
    match = _PLAIN.fullmatch(architecture)
    return f"{architecture}a" if match is not None and int(match["number"]) >= FIRST_WITH_OWN else ""


def is_plain(architecture: str) -> bool:
    """Whether code for it uses nothing that it alone has: ``sm_90``, but not ``sm_90a``."""
    return _PLAIN.fullmatch(architecture) is not None


def asks_for_own(text: str) -> bool:
    """Whether the text is another program there, by what it asks the compiler."""
    return _ASKS.search(text) is not None


def needs_own(log: str) -> bool:
    """Whether ptxas refused an instruction that may be one of those."""
    return _REFUSED.search(log) is not None


def may_need_own(text: str) -> bool:
    """Whether the text names such an instruction or asks for the architecture that has them."""
    return asks_for_own(text) or _INSTRUCTIONS.search(text) is not None
