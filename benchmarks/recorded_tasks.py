"""The tasks whose models' replies are recorded, and where their files lie."""

from __future__ import annotations

import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "recorded_runs"
STRATEGIES = ("evolve", "best-of-n")
REFINED = "refine"
"""The search that goes on from the others' kernels (`recorded_search.py`)."""


@dataclass(frozen=True)
class RecordedTask:
    """A row of `tasks.toml`."""

    name: str
    target: str
    backward: bool

    def recording(self, strategy: str) -> Path:
        """Prompts and replies."""
        return FOLDER / f"{self.name}.{strategy}.jsonl"

    def kernels(self, strategy: str) -> Path:
        """Return what the replies hold, as `replay` wrote it."""
        return FOLDER / f"{self.name}.{strategy}.kernels.json"


def read_tasks() -> list[RecordedTask]:
    """Those of `tasks.toml`."""
    return [RecordedTask(**row) for row in tomllib.loads((FOLDER / "tasks.toml").read_text())["task"]]


def copy_target(task: RecordedTask, folder: Path) -> str:
    """The target's name inside of `folder`, as it was when it was recorded."""
    file, colons, symbol = task.target.partition("::")
    source = ROOT / file
    if source.is_dir():
        shutil.copytree(source, folder, dirs_exist_ok=True)
        return "."
    shutil.copy(source, folder)
    return f"{source.name}{colons}{symbol}"
