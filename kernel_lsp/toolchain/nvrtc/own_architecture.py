"""Architecture-specific instructions (`wgmma`, `setmaxnreg`, `tcgen05`).

Code for `sm_90a` may use them, but runs on that GPU only, not on later ones; code for `sm_90` may not. They exist since
compute capability 9.0 (CUDA C++ Programming Guide, architecture-specific features).

The exported operator uses the same rule (`worker/shipped/cuda_runtime.py`).
"""

from __future__ import annotations

import re

FIRST_WITH_OWN = 90
_PLAIN = re.compile(r"sm_(?P<number>\d{2,3})")
_ASKS = re.compile(r"\b__CUDA_ARCH_(?:FEAT_SM\d+_ALL|SPECIFIC__|FAMILY_SPECIFIC__)")
_INSTRUCTIONS = re.compile(r"\b(?:wgmma|setmaxnreg|tcgen05)\b")
_REFUSED = re.compile(r"not supported on \.target|cannot be compiled for architecture|requires \.target")
"""ptxas's errors for such an instruction."""


def own_architecture(architecture: str) -> str:
    """Return ``sm_90a`` for ``sm_90``; empty when there is none, or it is one already."""
    match = _PLAIN.fullmatch(architecture)
    return f"{architecture}a" if match is not None and int(match["number"]) >= FIRST_WITH_OWN else ""


def is_plain(architecture: str) -> bool:
    """Return True for an architecture without specific features: ``sm_90``, but not ``sm_90a``."""
    return _PLAIN.fullmatch(architecture) is not None


def asks_for_own(text: str) -> bool:
    """Return True when the text tests for the architecture and so compiles differently there."""
    return _ASKS.search(text) is not None


def needs_own(log: str) -> bool:
    """Return True when ptxas rejected an instruction that may be architecture-specific."""
    return _REFUSED.search(log) is not None


def may_need_own(text: str) -> bool:
    """Return True when the text names such an instruction, or tests for the architecture."""
    return asks_for_own(text) or _INSTRUCTIONS.search(text) is not None
