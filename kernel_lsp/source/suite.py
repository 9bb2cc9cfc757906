"""Find the targets in a folder of tasks, KernelBench files and robust-kbench folders, by their text alone."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernel_lsp.errors import TargetError
from kernel_lsp.source.pytorch import KERNELBENCH_CLASS
from kernel_lsp.source.task_folder import TASK_FILE

SKIPPED_FOLDERS = frozenset(("kernels", "build", "dist", "node_modules", "site-packages", "__pycache__"))
MAX_FILE_BYTES = 1 << 20


def expand_targets(targets: Sequence[str], directory: Path) -> list[str]:
    """Replace each folder that is not a task by the tasks below it, in path order.

    Raises TargetError for a folder with no task in it.
    """
    found: list[str] = []
    for target in targets:
        path = Path(os.path.abspath(directory / target))
        if "::" in target or not path.is_dir() or (path / TASK_FILE).is_file():
            found.append(target)
            continue
        inside = [os.path.join(target, os.path.relpath(task, path)) for task in _tasks(path)]
        if not inside:
            message = "the folder holds no KernelBench file and no robust-kbench task"
            raise TargetError(message, file=target, next_step=f"name a folder with {TASK_FILE}, or of such tasks")
        found += inside
    return found


# --- below


def _tasks(folder: Path) -> Iterator[Path]:
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir() and entry.name not in SKIPPED_FOLDERS and not entry.name.startswith((".", "_")):
            if (entry / TASK_FILE).is_file():
                yield entry
            else:
                yield from _tasks(entry)
        elif entry.suffix == ".py" and _is_kernelbench(entry):
            yield entry


def _is_kernelbench(file: Path) -> bool:
    """Return True when the file defines `Model` and `get_inputs`; False if it cannot be read or parsed."""
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            return False
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return {KERNELBENCH_CLASS, "get_inputs"} <= names
