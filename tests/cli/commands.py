"""Runs `kernel-lsp` as a user does: a process of its own, in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEADLINE_S = 240.0

SCALE = """
import torch


# kernel-lsp: x=f32[B=64, D=256], weight=f32[D]
def scale(x, weight):
    return torch.relu(x * weight + 1.0)
"""


@dataclass(frozen=True)
class Ran:
    """A finished command."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.stdout)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kernel_lsp", *arguments]


def environment(folder: Path) -> dict[str, str]:
    """Ours, with a cache of its own and this interpreter's torch."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNEL_LSP_")}
    return {**kept, "XDG_CACHE_HOME": str(folder / "cache"), "KERNEL_LSP_PYTHON": sys.executable}


def run(folder: Path, *arguments: str, **settings: str) -> Ran:
    result = subprocess.run(
        command(*arguments),
        cwd=folder,
        env={**environment(folder), **settings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return Ran(result.returncode, result.stdout, result.stderr)


def write(folder: Path, text: str, name: str = "model.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path
