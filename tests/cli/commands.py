"""Runs `kernel-lsp` as a user does, in a folder of its own: in a process of its own, or in this one where that is
enough."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from kernel_lsp.cli import app

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


def run_here(folder: Path, *arguments: str, **settings: str) -> Ran:
    """Run a command in this process, which saves the imports: for one that ends in an error."""
    stdout, stderr, status = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.dict(os.environ, {**environment(folder), **settings}, clear=True),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            app(list(arguments))
        except SystemExit as ended:
            status = int(ended.code or 0)
    return Ran(status, stdout.getvalue(), stderr.getvalue())


def write(folder: Path, text: str, name: str = "model.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path
