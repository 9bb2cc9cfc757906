"""How a user's file gets at an operator that was written for it."""

from __future__ import annotations

import os
from pathlib import Path

OPERATOR_SUFFIX = "_cuda"
"""``softmax_cuda(x)`` stands for ``softmax(x)``: the operator goes by another name than what it came from."""


def import_statement(file: Path, out: Path, name: str, imported: str, *, is_in_package: bool) -> str:
    """``from .kernels.softmax import softmax as softmax_cuda``: relative where the file is in a package; else the
    folder must be below the file's. `imported` is what the file calls it."""
    parts = Path(os.path.relpath(out, file.parent)).parts
    module = ".".join([*(part for part in parts if part not in (".", "..")), name])
    dots = "." if is_in_package else ""
    renamed = imported if imported.startswith("use_") else f"{name} as {imported}"
    return f"from {dots}{module} import {renamed}"
