"""How a user's file gets at an operator that was written for it."""

from __future__ import annotations

import os
from pathlib import Path

USE_PREFIX = "use_"
"""``use_softmax(softmax)(x)`` stands for ``softmax(x)``, ``use_rms_norm(RMSNorm(8))`` for ``RMSNorm(8)``: the kernels
where they can, and what was there before everywhere else."""


def import_statement(file: Path, out: Path, name: str, *, is_in_package: bool) -> str:
    """``from .kernels.softmax import use_softmax``: relative where the file is in a package; else the folder must be
    below the file's."""
    parts = Path(os.path.relpath(out, file.parent)).parts
    module = ".".join([*(part for part in parts if part not in (".", "..")), name])
    return f"from {'.' if is_in_package else ''}{module} import {USE_PREFIX}{name}"


def is_offered(out: Path, name: str) -> bool:
    """Whether the operator's file is there, and has what can be used in place of something."""
    try:
        return f"def {USE_PREFIX}{name}(" in (out / f"{name}.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
