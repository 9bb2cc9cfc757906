"""Find the tasks that a benchmark names: targets, folders of KernelBench files and robust-kbench tasks, and suites.

A suite is a folder with `suite.toml`: a table of tasks with their further dtypes, their backward and their peers.
"""

from __future__ import annotations

import ast
import os
import random
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernel_lsp.errors import TargetError
from kernel_lsp.source.pytorch import KERNELBENCH_CLASS
from kernel_lsp.source.task_folder import TASK_FILE

SKIPPED_FOLDERS = frozenset(("kernels", "build", "dist", "node_modules", "site-packages", "__pycache__"))
MAX_FILE_BYTES = 1 << 20
SUITE_FILE = "suite.toml"


@dataclass(frozen=True)
class BenchTask:
    """One row of a benchmark. `peers` are functions ``FILE::NAME`` that compute the same with another library."""

    target: str
    backward: bool = False
    peers: tuple[str, ...] = ()


def expand_tasks(targets: Sequence[str], directory: Path, backward: bool) -> list[BenchTask]:
    """Replace each folder by the tasks below it. A suite says itself which rows have a backward; `backward` holds for
    all others. Raises TargetError."""
    found: list[BenchTask] = []
    for target in targets:
        suite = directory / target / SUITE_FILE
        if "::" not in target and suite.is_file():
            found += _suite_tasks(suite, target)
        else:
            found += [BenchTask(name, backward) for name in expand_targets([target], directory)]
    return found


def sample_tasks(tasks: Sequence[BenchTask], n: int | None, seed: int) -> list[BenchTask]:
    """Return `n` of the tasks in their order, the same ones for the same seed; all of them without `n`."""
    if n is None or n >= len(tasks):
        return list(tasks)
    return [tasks[index] for index in sorted(random.Random(seed).sample(range(len(tasks)), n))]


def expand_targets(targets: Sequence[str], directory: Path) -> list[str]:
    """Replace each folder that is no task by the tasks below it, in path order. Raises TargetError without any."""
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


def _suite_tasks(suite: Path, folder: str) -> list[BenchTask]:
    """Return the rows of a suite, each followed by those of its further dtypes."""
    try:
        table = tomllib.loads(suite.read_text(encoding="utf-8"))
        file = os.path.abspath(suite.parent / table.get("peers", ""))
        return [task for row in table["task"] for task in _suite_rows(row, folder, file)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"the suite cannot be read: {type(error).__name__}: {error}"
        raise TargetError(message, file=str(suite), next_step='write [[task]] tables with target = "..."') from None


def _suite_rows(row: dict[str, Any], folder: str, peer_file: str) -> Iterator[BenchTask]:
    peers = tuple(f"{peer_file}::{name}" for name in row.get("peers", ()))
    first = BenchTask(os.path.join(folder, row["target"]), bool(row.get("backward", False)), peers)
    yield first
    for dtype in row.get("dtypes", ()):
        yield replace(first, target=f"{first.target}_{dtype}")


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
