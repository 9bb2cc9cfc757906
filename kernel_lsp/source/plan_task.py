"""Draft a plan for the PyTorch code that a CUDA file computes: a target beside it with a kernel's name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kernel_lsp.core.task import TensorInput
from kernel_lsp.errors import KernelLspError
from kernel_lsp.source.cuda import kernel_line_ranges, kernel_signatures
from kernel_lsp.source.plan_dims import TaskTensor
from kernel_lsp.source.plan_draft import TASK, draft_plan
from kernel_lsp.source.python_file import read_python_file
from kernel_lsp.source.pytorch import read_target, targets_in

MAX_FILES = 64
"""Maximum Python files of the folder that are read."""
MAX_BYTES = 400_000
_ENDINGS = re.compile(r"_(kernel|cuda|forward|fwd|f32|gpu)$")


def drafted_plan(path: Path, text: str, task: str | None = None, kernel: str = "", line: int = 0) -> str:
    """Return a drafted plan for a file. It is for `kernel`, else for the one at the 1-based `line`, else for the one
    with the task's name, else for the last that is launched. Empty without a kernel that writes to memory."""
    names = [signature.name.rpartition("::")[2] for signature in kernel_signatures(text)]
    at_line = next((each.name for each in kernel_line_ranges(text) if each.first_line <= line <= each.last_line), "")
    kernel = kernel or at_line.rpartition("::")[2]
    task = task or task_beside(path, [kernel] if kernel else names)
    symbol = _plain(task.rpartition("::")[2])
    kernel = kernel or next((name for name in names if task != TASK and _plain(name) == symbol), "")
    return draft_plan(text, task, kernel, _tensors_of(task, path.parent))


def _tensors_of(task: str, folder: Path) -> tuple[TaskTensor, ...]:
    """Return the tensors that a target states, none where they are not known."""
    try:
        stated = read_target(task, folder).inputs or () if task != TASK else ()
    except (KernelLspError, OSError):
        return ()
    tensors = [each for each in stated if isinstance(each, TensorInput)]
    names = [each.dim_names or (None,) * len(each.shape) for each in tensors]
    return tuple(
        TaskTensor(each.name, tuple(name or size for name, size in zip(of_dims, each.shape, strict=True)))
        for each, of_dims in zip(tensors, names, strict=True)
    )


def task_beside(kernel: Path, names: Sequence[str]) -> str:
    """Return the only target of the folder with one of these kernels' names, as ``model.py::symbol``; else the
    placeholder."""
    wanted = set(map(_plain, names))
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
