"""Find the PyTorch code that a CUDA file without a plan computes: a target beside it with a kernel's name."""

from __future__ import annotations

import re
from pathlib import Path

from kernel_lsp.errors import KernelLspError
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.source.plan_draft import TASK
from kernel_lsp.source.python_file import read_python_file
from kernel_lsp.source.pytorch import targets_in

MAX_FILES = 64
"""Maximum Python files of the folder that are read."""
MAX_BYTES = 400_000
_ENDINGS = re.compile(r"_(kernel|cuda|forward|fwd|f32|gpu)$")


def task_beside(kernel: Path, text: str) -> str:
    """Return the only target of the folder whose name is a kernel's, as ``model.py::symbol``; else the placeholder."""
    wanted = {_plain(signature.name.rpartition("::")[2]) for signature in kernel_signatures(text)}
    files = [path for path in sorted(kernel.parent.glob("*.py")) if not path.name.startswith(".")][:MAX_FILES]
    found = [f"{path.name}::{symbol}" for path in files for symbol in _symbols(path) if _plain(symbol) in wanted]
    return found[0] if len(found) == 1 else TASK


def _symbols(path: Path) -> list[str]:
    try:
        if path.stat().st_size > MAX_BYTES:
            return []
        source = read_python_file(path, path.name)
    except (KernelLspError, OSError):
        return []
    return [each.symbol for each in targets_in(source)]


def _plain(name: str) -> str:
    """Return ``rms_norm`` as ``rmsnorm``, as for `RMSNorm` and `rms_norm_kernel`."""
    shorter = _ENDINGS.sub("", name)
    while shorter != name:
        name, shorter = shorter, _ENDINGS.sub("", shorter)
    return name.replace("_", "").lower()
